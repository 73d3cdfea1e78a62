"""Cuts work over rows or queries into one piece a core.

Each piece writes to memory of its own, so nothing is locked and the result does not depend on the number of pieces.
Compiled loops and BLAS run without the interpreter's lock. A BLAS that starts threads of its own for each product
competes with these: processes that sketch large batches of many columns should set ``OPENBLAS_NUM_THREADS=1`` (or
``MKL_NUM_THREADS=1``) before they start. Bytes do not depend on it.
"""

import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

#: Batches of more records or queries than this are spread over all cores.
RECORDS_MIN: Final = 100_000
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


def spread(work: Callable[[slice], _Result], parts: list[slice]) -> list[_Result]:
    """What ``work`` gives for each part, each in a thread of its own but the last, which runs here.

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
    for thread in threads:
        thread.start()
    if parts:
        run(len(parts) - 1)
    for thread in threads:
        thread.join()
    for index in sorted(errors):
        raise errors[index]
    return [results[index] for index in range(len(parts))]
