"""The pool: a multiset, its bytes, and how it is split."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.shuffler.reports_file import ReportPool, sizes_of, split
from hushsum.entropy import OsEntropy, ReplayableEntropy

REPORTS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5), min_size=1, max_size=60)


def pool_of(reports: list[int]) -> ReportPool:
    return ReportPool.of(np.array(reports, dtype=np.int64))


@given(REPORTS, REPORTS)
def test_a_pool_holds_what_came_in_whatever_groups(first: list[int], second: list[int]) -> None:
    pool = ReportPool.from_bytes(pool_of(first).to_bytes()).plus(pool_of(second))
    assert pool.reports().tolist() == sorted(first + second)
    assert pool.size == len(first) + len(second)


@given(REPORTS, st.randoms(use_true_random=False))
def test_the_bytes_of_a_pool_tell_nothing_of_the_order_or_the_groups(reports: list[int], random: object) -> None:
    other = list(reports)
    random.shuffle(other)  # type: ignore[attr-defined]  # a Random of hypothesis
    grown = pool_of(other[:1])
    for report in other[1:]:
        grown = grown.plus(pool_of([report]))
    assert grown.to_bytes() == pool_of(reports).to_bytes()


@pytest.mark.parametrize("count", [1, 255, 256, 65_535, 65_536, 2**32])
def test_counts_of_any_size_are_read_back(count: int) -> None:
    pool = ReportPool(np.array([3, 9]), np.array([1, count]))
    assert ReportPool.from_bytes(pool.to_bytes()).counts.tolist() == [1, count]


@given(st.integers(1, 500), st.integers(0, 700), st.integers(0, 10_000))
def test_batches_are_as_few_as_fit_and_as_equal_as_possible_and_none_is_too_small(
    least: int, room: int, more: int
) -> None:
    most, total = 2 * least + room, least + more
    sizes = sizes_of(total, least, most)
    assert sum(sizes) == total
    assert least <= min(sizes)
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert (len(sizes) - 1) * most < total


@given(REPORTS, st.data())
def test_a_split_keeps_every_report_and_puts_each_batch_in_order(reports: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(reports)))
    parts = split(pool_of(reports), [cut, len(reports) - cut], OsEntropy())
    assert sorted(np.concatenate(parts).tolist()) == sorted(reports)
    assert [part.size for part in parts] == [cut, len(reports) - cut]
    for part in parts:
        assert part.tolist() == sorted(part.tolist())


@pytest.mark.statistical
def test_every_assignment_of_reports_to_batches_is_equally_likely() -> None:
    """False-alarm rate 10⁻⁷: χ² of 89 degrees of freedom above 178.6."""
    entropy, rounds = ReplayableEntropy(b"split"), 4_500
    pool = pool_of([0, 1, 2, 3, 4, 5])
    seen: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for _ in range(rounds):
        seen[tuple(tuple(part.tolist()) for part in split(pool, [2, 2, 2], entropy))] += 1
    every = {tuple(tuple(sorted(p[i : i + 2])) for i in (0, 2, 4)) for p in permutations(range(6))}
    assert seen.keys() <= every
    expected = rounds / len(every)
    chi2 = sum((seen[each] - expected) ** 2 / expected for each in every)
    assert len(every) == 90
    assert chi2 < 178.6


class RepeatingEntropy:
    """Gives equal keys first, and then others."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, size: int) -> bytes:
        self.reads += 1
        return bytes(size) if self.reads == 1 else ReplayableEntropy(b"other").read(size)


def test_equal_keys_are_drawn_again() -> None:
    entropy = RepeatingEntropy()
    split(pool_of([1, 2, 3, 4]), [2, 2], entropy)
    assert entropy.reads == 2
