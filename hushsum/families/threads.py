"""Cuts work over rows or queries into one piece a core.

Each piece writes to memory of its own, so nothing is locked and the result does not depend on the number of pieces.
Compiled loops and BLAS run without the interpreter's lock. A BLAS that starts threads of its own for each product would
compete with these (and, on a busy machine, wait for each other), so calls from the main thread hold it to one
meanwhile, where threadpoolctl is installed (extra ``fast``); elsewhere ``OPENBLAS_NUM_THREADS=1`` does the same. Bytes
do not depend on it.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from typing import Any, Final, TypeVar

#: Batches of more records or queries than this are spread over all cores.
RECORDS_MIN: Final = 100_000
_BLAS_RECORDS: Final = 256
_Result = TypeVar("_Result")


class Scratch(threading.local):
    """Memory of one thread. A copy of it is empty.

    Attributes:
        engine: What computed here last.
        derived: A weak reference to the read-only counters that were read here last, and what was computed of them: one
            value, so that an interrupt cannot part them.
    """

    engine: object = None
    derived: tuple[Callable[[], object], Any] | None = None

    def __reduce__(self) -> tuple[type["Scratch"], tuple[()]]:
        return Scratch, ()


def cores() -> int:
    """The cores that this process may use, or as many as ``PYTHON_CPU_COUNT`` says (Python 3.13 and later)."""
    counted = getattr(os, "process_cpu_count", None)
    if counted is not None:
        return counted() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pieces(length: int, count: int, *, grain: int = 1) -> list[slice]:
    """At most ``count`` runs of about equal length, that start at multiples of ``grain``."""
    size = max(1, -(-length // (count * grain))) * grain
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def shares(length: int, records: int, *, grain: int = 1) -> list[slice]:
    """The pieces of rows or queries, one a core where there are many records, and at least one, which may be empty."""
    return pieces(length, cores() if records > RECORDS_MIN else 1, grain=grain) or [slice(0, 0)]


def spread(work: Callable[[slice], _Result], parts: list[slice], records: int) -> list[_Result]:
    """What ``work`` gives for each part, each in a thread of its own but the last, which runs here.

    So does a part whose thread cannot be started. Whatever happens, no thread works on when this returns or raises.

    Args:
        work: On rows, or queries.
        parts: Of them.
        records: Or queries, in all, of work that calls BLAS: of few, it starts no threads that would have to be held
            back. 0 for work that does not.

    Raises:
        BaseException: What the first part that failed raised, once all have ended; or an interrupt meanwhile.
    """
    if len(parts) == 1:
        with _one_blas_thread(records):
            return [work(parts[0])]
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}
    threads: dict[int, threading.Thread] = {}
    gate, going = threading.Event(), False

    def run(index: int) -> None:
        try:
            results[index] = work(parts[index])
        except BaseException as error:  # noqa: BLE001 -- it is raised below, in the thread that asked
            errors[index] = error

    def wait_and_run(index: int) -> None:
        gate.wait()
        if going:  # not where an interrupt came while threads were started
            run(index)

    with _one_blas_thread(records):
        try:
            for index in range(len(parts) - 1):
                thread = threading.Thread(target=wait_and_run, args=(index,), daemon=True)
                with suppress(RuntimeError):  # no thread is to be had
                    thread.start()
                    threads[index] = thread
            going = True
            gate.set()
            for index in range(len(parts)):
                if index not in threads:
                    run(index)
        finally:
            gate.set()
            _join(threads.values())
    for index in sorted(errors):
        raise errors[index]
    return [results[index] for index in range(len(parts))]


def _join(threads: Iterable[threading.Thread]) -> None:
    """Waits for all, and only then raises an interrupt that came meanwhile."""
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # noqa: BLE001 -- it is raised below; no thread may be left behind
                interrupt = error
    if interrupt is not None:
        raise interrupt


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
