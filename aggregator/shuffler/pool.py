"""All reports of a window as one multiset, and how it is cut into batches: pure.

The bytes of a pool are a function of its multiset alone: they tell nothing of what came first, or with what.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy

Int64 = npt.NDArray[np.int64]

_VALUE: Final = np.dtype("<u4")  # a report is below 2^31
_COUNTS: Final = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_KEY_BYTES: Final = 8


@dataclass(frozen=True, eq=False)
class Pool:
    """A multiset of reports.

    Attributes:
        values: Those that occur, ascending; below 2³².
        counts: How often each occurs, at least once.
    """

    values: Int64
    counts: Int64

    @classmethod
    def of(cls, reports: Int64) -> Self:
        """The pool of these reports, in any order."""
        values, counts = np.unique(reports, return_counts=True)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What :meth:`to_bytes` wrote."""
        width = data[0]
        number = (len(data) - 1) // (_VALUE.itemsize + width)
        values = np.frombuffer(data, _VALUE, number, 1)
        counts = np.frombuffer(data, _COUNTS[width], number, 1 + values.nbytes)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    def to_bytes(self) -> bytes:
        """The width of a count (1 byte), the values (4 bytes each), the counts; little-endian."""
        most = int(self.counts.max(initial=0))
        width = next(width for width in _COUNTS if most < 1 << 8 * width)
        return bytes([width]) + self.values.astype(_VALUE).tobytes() + self.counts.astype(_COUNTS[width]).tobytes()

    @property
    def size(self) -> int:
        """How many reports are in it."""
        return int(self.counts.sum())

    def plus(self, other: "Pool") -> "Pool":
        """Both in one."""
        values = np.union1d(self.values, other.values)
        counts = np.zeros(values.size, dtype=np.int64)
        for pool in (self, other):
            counts[np.searchsorted(values, pool.values)] += pool.counts
        return Pool(values, counts)

    def reports(self) -> Int64:
        """Each report, ascending."""
        return np.repeat(self.values, self.counts)


def sizes_of(total: int, least: int, most: int) -> list[int]:
    """How large the batches of so many reports are: as few as fit, as equal as possible; none below ``least``.

    Args:
        total: At least ``least``.
        least: Reports of a batch, at least.
        most: Reports of a batch, at most: twice ``least`` or more, as every plan has it.
    """
    assert least <= total, "what is smaller is dropped"
    assert 2 * least <= most, "a plan's delta_records_max is at least twice its shuffle_min"
    number = -(-total // most)
    # number ≥ 2: total > (number − 1)·most ≥ 2·(number − 1)·least ≥ number·least, so that the smallest is ≥ least.
    smaller, larger = divmod(total, number)
    return [smaller + 1] * larger + [smaller] * (number - larger)


def split(pool: Pool, sizes: list[int], entropy: Entropy) -> list[Int64]:
    """The pool in batches of these sizes, each ascending: which report stands in which is uniformly random.

    Every assignment of the reports to places is as likely as every other: they are sorted by independent uniform keys,
    which are drawn again in the (rare) case that two are equal.

    Args:
        pool: What is split.
        sizes: They add up to the pool's.
        entropy: Where the keys come from.
    """
    reports = pool.reports()
    assert sum(sizes) == reports.size
    if len(sizes) == 1:
        return [reports]
    while True:
        keys = np.frombuffer(entropy.read(_KEY_BYTES * reports.size), dtype=np.uint64)
        order = np.argsort(keys)
        ranked = keys[order]
        if not np.any(ranked[1:] == ranked[:-1]):
            break
    shuffled = reports[order]
    return [np.sort(part) for part in np.split(shuffled, np.cumsum(sizes)[:-1])]
