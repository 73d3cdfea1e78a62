"""Uniform integers below a total, and the words that decide them."""

from collections.abc import Iterable

import numpy as np
import pytest

from hushsum.entropy import OsEntropy
from hushsum.noise.random_words import TOTAL_MAX, Blocks, uniform


class Words:
    """Entropy of these words alone, 8 little-endian bytes each."""

    def __init__(self, words: Iterable[int]) -> None:
        self._left = b"".join(word.to_bytes(8, "little") for word in words)

    def read(self, size: int) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    @property
    def left(self) -> int:
        return len(self._left) // 8


@pytest.mark.parametrize("total", (1, 2, 3, 10, 2**32 + 1, 2**61 + 1, 3 * 2**60 + 5, TOTAL_MAX))
def test_every_word_up_to_the_largest_multiple_counts_and_none_above(total: int) -> None:
    """So each number has the same number of words: exactly uniform."""
    largest = 2**64 // total * total
    words = [0, 1, total - 1, total % 2**64, largest - 1]
    assert uniform(total, len(words), Words(words)).tolist() == [word % total for word in words]
    for above in sorted({min(largest, 2**64 - 1), 2**64 - 1}):
        if above >= largest:
            entropy = Words([above, 2 * total - 1])
            assert uniform(total, 1, entropy).tolist() == [total - 1]
            assert entropy.left == 0


def test_a_rejected_word_is_followed_by_one_after_those_of_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    out, total = 2**64 - 1, 10
    for block in (1, 2, 100):
        monkeypatch.setattr(Blocks, "draws", block)
        entropy = Words([out, 1, out, 3, out, 14, 25, 99])
        assert uniform(total, 5, entropy).tolist() == [4, 1, 5, 3, 9]
        assert entropy.left == 0


def test_a_source_that_runs_dry_is_an_error() -> None:
    with pytest.raises(OSError, match="bytes"):
        uniform(10, 3, Words([1, 2]))


def test_a_negative_number_of_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        uniform(10, -1, OsEntropy())


def test_no_draws_read_nothing() -> None:
    assert uniform(10, 0, Words([])).dtype == np.int64
