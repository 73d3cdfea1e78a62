"""Compiled loops that read and count packed reports; :mod:`hushsum.local.report_batch` alone calls them.

Reports of 1, 2 or 4 bytes are words, those of 3 are put together. Nothing here is checked but the order.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined

_THREE: Final = 3  # bytes: no integer of NumPy has as many

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def read(octets: bytes, n: int, width: int) -> tuple[Int64, bool]:
    """(n,) int64, and whether they ascend."""
    reports = np.empty(n, np.int64)
    if width == _THREE:
        _read_threes(np.frombuffer(octets, np.uint8), reports)
    else:
        reports[:] = _words(octets, width)
    return reports, bool(_falls(reports) == 0)


def look(octets: bytes, width: int) -> tuple[bool, int]:
    """Whether they ascend, and the last of them, of at least one."""
    if width == _THREE:
        return bool(_falls_of_threes(np.frombuffer(octets, np.uint8)) == 0), int.from_bytes(octets[-3:], "little")
    words = _words(octets, width)
    return bool(_falls(words) == 0), int(words[-1])


def count(octets: bytes, width: int, counters: Int64) -> None:
    """Adds one to flat counters at each: within range, which is checked before."""
    if width == _THREE:
        _count_threes(np.frombuffer(octets, np.uint8), counters)
    else:
        add(_words(octets, width), counters)


def _words(octets: bytes, width: int) -> npt.NDArray[Any]:
    words = np.frombuffer(octets, f"<u{width}")
    return words.astype(words.dtype.newbyteorder("="), copy=False)


@inlined
def _three(octets: Bytes, i: int) -> np.int64:
    return np.int64(octets[3 * i]) | np.int64(octets[3 * i + 1]) << 8 | np.int64(octets[3 * i + 2]) << 16


@compiled
def _falls(reports: npt.NDArray[Any]) -> int:
    falls = 0
    for i in range(1, len(reports)):
        falls += reports[i] < reports[i - 1]
    return falls


@compiled
def _falls_of_threes(octets: Bytes) -> int:
    falls = 0
    for i in range(1, len(octets) // 3):
        falls += int(_three(octets, i) < _three(octets, i - 1))
    return falls


@compiled
def _read_threes(octets: Bytes, reports: Int64) -> None:
    for i in range(len(reports)):
        reports[i] = _three(octets, i)


@compiled
def add(reports: npt.NDArray[Any], counters: Int64) -> None:
    """Adds one to flat counters at each report.

    From both halves in turn: equal reports stand together, and increments of one counter wait for each other.
    """
    half = len(reports) // 2
    for i in range(half):
        counters[np.uint64(reports[i])] += 1
        counters[np.uint64(reports[i + half])] += 1
    for i in range(2 * half, len(reports)):
        counters[np.uint64(reports[i])] += 1


@compiled
def _count_threes(octets: Bytes, counters: Int64) -> None:
    half = len(octets) // 6
    for i in range(half):
        counters[np.uint64(_three(octets, i))] += 1
        counters[np.uint64(_three(octets, i + half))] += 1
    for i in range(2 * half, len(octets) // 3):
        counters[np.uint64(_three(octets, i))] += 1


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before."""
    counters = np.zeros(2, np.int64)
    for width in (1, 2, 3, 4):
        octets = bytes(2 * width)
        read(octets, 2, width)
        look(octets, width)
        count(octets, width, counters)
    add(np.zeros(2, np.int64), counters)
