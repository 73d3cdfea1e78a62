"""What an engine keeps from one query to the next: never an answer, never shared by threads, in no copy."""

import copy
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest

import hushsum as hs
from hushsum.families.lsh.placement import HashedRows
from tests.plans import small_plan

POINTS = np.random.default_rng(3).uniform(0, 10, (40, 2))


@pytest.fixture
def release() -> hs.Release:
    sketch = hs.Sketch(small_plan(sketch={"rows": 50, "buckets": 1024}))
    sketch.add(POINTS)
    return hs.release(sketch)


def test_queries_one_by_one_read_what_they_read_together(release: hs.Release) -> None:
    together = release.kernel_sum(POINTS)
    alone = [release.kernel_sum(POINTS[number : number + 1]) for number in range(len(POINTS))]
    assert [answer.value[0] for answer in alone] == together.value.tolist()
    assert [answer.std_error[0] for answer in alone] == together.std_error.tolist()


def test_threads_that_query_at_once_read_the_same(release: hs.Release) -> None:
    expected, found = release.kernel_sum(POINTS).value, list[bool]()

    def ask(first: int) -> None:
        for number in np.roll(np.arange(len(POINTS)), first).tolist() * 20:
            found.append(bool(release.kernel_sum(POINTS[number : number + 1]).value[0] == expected[number]))

    threads = [threading.Thread(target=ask, args=(7 * thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * 20 * len(POINTS)
    assert all(found)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_a_copy_of_rows_that_have_answered_keeps_nothing(
    release: hs.Release, copied: Callable[[HashedRows], HashedRows]
) -> None:
    release.kernel_sum(POINTS[:1])
    rows = release.plan.family._tables  # type: ignore[attr-defined]  # of the hashed family
    assert copied(rows).scratch.engine is None
