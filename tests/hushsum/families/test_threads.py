"""Work cut over rows: pieces cover everything once, errors come back, and BLAS gets its threads again."""

import os
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from hushsum.families import threads
from hushsum.families.threads import pieces, spread


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


def test_few_records_are_one_share_and_none_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 3)
    assert threads.shares(9, threads.RECORDS_MIN) == [slice(0, 9)]
    assert threads.shares(9, threads.RECORDS_MIN + 1) == pieces(9, 3)
    assert threads.shares(0, 10**6) == [slice(0, 0)]


def test_cores_are_as_many_as_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)
    for said, meant in ((3, 3), (None, 1)):
        monkeypatch.setattr(os, "process_cpu_count", lambda said=said: said, raising=False)
        assert threads.cores() == meant


def test_a_part_whose_thread_cannot_start_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    start, asked = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        asked.append(thread)
        if len(asked) > 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    ran = spread(lambda part: (part.start, threading.current_thread() is threading.main_thread()), pieces(8, 4), 0)
    assert ran == [(0, False), (2, True), (4, True), (6, True)]
    assert len(asked) == 3


def test_an_interrupt_while_threads_start_leaves_none_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []
    worked: list[slice] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spread(worked.append, pieces(8, 4), 0)
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()
    assert worked == []


def test_an_interrupt_while_threads_are_waited_for_comes_once_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    join, ended, go = threading.Thread.join, [], threading.Event()
    interrupts: list[threading.Thread] = []

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if len(interrupts) < 2:
            interrupts.append(thread)
            go.set()
            raise KeyboardInterrupt
        join(thread, timeout)

    def work(part: slice) -> None:
        if threading.current_thread() is not threading.main_thread():
            go.wait(30)
            ended.append(part.start)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spread(work, pieces(8, 4), 0)
    assert sorted(ended) == [0, 2, 4]


def test_an_error_here_comes_once_all_other_parts_have_ended() -> None:
    ended, go = [], threading.Event()

    def work(part: slice) -> None:
        if part.start == 6:
            go.set()
            raise ZeroDivisionError
        go.wait(30)
        ended.append(part.start)

    with pytest.raises(ZeroDivisionError):
        spread(work, pieces(8, 4), 0)
    assert sorted(ended) == [0, 2, 4]
