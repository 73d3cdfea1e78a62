"""Work cut over rows: pieces cover everything once, errors come back, and BLAS gets its threads again."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from hushsum.families.parallel import pieces, spread


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_pieces_cover_everything_once_at_multiples_of_the_grain() -> None:
    for length in (0, 1, 7, 8, 100):
        for count in (1, 2, 3, 200):
            parts = pieces(length, count, grain=4)
            assert [i for part in parts for i in range(length)[part]] == list(range(length))
            assert len(parts) <= count
            assert all(part.start % 4 == 0 for part in parts)


def test_results_come_in_the_order_of_the_parts_and_errors_are_raised() -> None:
    assert spread(lambda part: part.start, pieces(9, 3), 9) == [0, 3, 6]
    with pytest.raises(ZeroDivisionError):
        spread(lambda part: 1 // part.start, pieces(9, 3), 9)


def test_blas_has_one_thread_meanwhile_and_its_own_number_afterwards() -> None:
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    before = blas_threads()
    assert spread(lambda part: blas_threads(), pieces(1, 1), 10_000) == [[1] * len(before)]
    assert blas_threads() == before


def test_other_threads_leave_blas_alone() -> None:
    before, seen = blas_threads(), []
    other = threading.Thread(target=lambda: seen.append(spread(lambda part: blas_threads(), pieces(1, 1), 10_000)))
    other.start()
    other.join(30)
    assert seen == [[before]]
    assert blas_threads() == before
