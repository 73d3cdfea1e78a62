"""Cuts work over rows or queries into one piece a core.

Each piece writes to memory of its own, so nothing is locked and the result does not depend on the number of pieces.
Compiled loops and BLAS run without the interpreter's lock. A BLAS that starts threads of its own for each product would
compete with these (and, on a busy machine, wait for each other), so calls from the main thread hold it to one
meanwhile, where threadpoolctl is installed (extra ``fast``); elsewhere ``OPENBLAS_NUM_THREADS=1`` does the same. Bytes
do not depend on it.
"""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Final, TypeVar

#: Batches of more records or queries than this are spread over all cores.
RECORDS_MIN: Final = 100_000
_BLAS_RECORDS: Final = 256
_Result = TypeVar("_Result")


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pieces(length: int, count: int, *, grain: int = 1) -> list[slice]:
    """At most ``count`` runs of about equal length, that start at multiples of ``grain``."""
    size = max(1, -(-length // (count * grain))) * grain
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def spread(work: Callable[[slice], _Result], parts: list[slice], records: int) -> list[_Result]:
    """What ``work`` gives for each part, each in a thread of its own but the last, which runs here.

    Args:
        work: On rows, or queries.
        parts: Of them.
        records: Or queries, in all: of few, BLAS starts no threads that would have to be held back.

    Raises:
        BaseException: What the first part that failed raised, once all have ended.
    """
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            results[index] = work(parts[index])
        except BaseException as error:  # noqa: BLE001 -- it is raised below, in the thread that asked
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(parts) - 1)]
    with _one_blas_thread(records):
        for thread in threads:
            thread.start()
        if parts:
            run(len(parts) - 1)
        for thread in threads:
            thread.join()
    for index in sorted(errors):
        raise errors[index]
    return [results[index] for index in range(len(parts))]


def _one_blas_thread(records: int) -> AbstractContextManager[object]:
    """Only in the main thread: OpenBLAS takes its number of threads from one thread alone, and must get it back."""
    if records < _BLAS_RECORDS or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    controller = _blas()
    limits: AbstractContextManager[object] = (
        nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")
    )
    return limits


@lru_cache(maxsize=1)
def _blas() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
