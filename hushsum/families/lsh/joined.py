"""Codes of several hashes, each of its own columns, as one code vector a row: the product of their kernels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Int32, Int64
from hushsum.families.lsh.coders import Coder, FastCoder, PlainCoder
from hushsum.families.lsh.placement import Rehash

_BLOCK_CODES = 1 << 17


@dataclass(frozen=True, eq=False)
class Joined:
    """The codes of groups of columns, one group's after the other's in each row.

    Attributes:
        coders: One a group, for as many rows each.
        powers: The codes of a row, a group.
        columns: The columns of the records that a group's coder takes.
    """

    coders: tuple[Coder, ...]
    powers: tuple[int, ...]
    columns: tuple[Int64, ...]

    @property
    def power(self) -> int:
        """The codes of a row, of all groups."""
        return sum(self.powers)

    def __len__(self) -> int:
        """R times the codes of a row."""
        return sum(map(len, self.coders))

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(k,) int64, twice: see :class:`~hushsum.families.lsh.coders.Coder`."""
        ends = [coder.ends(lower[some], upper[some]) for coder, some in zip(self.coders, self.columns, strict=True)]
        least, largest = (
            [pair[side].reshape(-1, p) for pair, p in zip(ends, self.powers, strict=True)] for side in (0, 1)
        )
        return np.concatenate(least, axis=1).reshape(-1), np.concatenate(largest, axis=1).reshape(-1)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries with some code that leaves 32 bits."""
        far = np.zeros(len(queries), np.bool_)
        for coder, some in zip(self.coders, self.columns, strict=True):
            far |= coder.far(queries[:, some])
        return far

    def plain(self) -> "_PlainJoined":
        """See :class:`~hushsum.families.lsh.coders.Coder`."""
        return _PlainJoined(self, [coder.plain() for coder in self.coders])

    def fast(self, lowest: Int32) -> "_FastJoined":
        """See :class:`~hushsum.families.lsh.coders.Coder`."""
        split = np.split(lowest.reshape(-1, self.power), np.cumsum(self.powers)[:-1], axis=1)
        coders = [
            coder.fast(np.ascontiguousarray(part).reshape(-1)) for coder, part in zip(self.coders, split, strict=True)
        ]
        return _FastJoined(self, coders)


class _Parts:
    """The parts of each group for parts of all."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._starts = np.concatenate([[0], np.cumsum(joined.powers)]).tolist()

    def prepared(self, coders: list[Any], records: Float32) -> list[Any]:
        pairs = zip(coders, self._joined.columns, strict=True)
        return [coder.prepare(np.ascontiguousarray(records[:, some])) for coder, some in pairs]

    def fill(self, coders: list[Any], parts: slice, blocks: list[Any], dtype: type[Any]) -> npt.NDArray[Any]:
        first, last, out = parts.start // self._joined.power, parts.stop // self._joined.power, None
        for index, (coder, p) in enumerate(zip(coders, self._joined.powers, strict=True)):
            codes = coder.codes(slice(first * p, last * p), blocks[index])
            if out is None:
                out = np.empty((last - first, self._joined.power, codes.shape[1]), dtype)
            out[:, self._starts[index] : self._starts[index + 1]] = codes.reshape(last - first, p, -1)
        assert out is not None
        return out.reshape(-1, out.shape[2])


class _PlainJoined:
    """See :class:`~hushsum.families.lsh.coders.PlainCoder`."""

    def __init__(self, joined: Joined, coders: list[PlainCoder]) -> None:
        self._parts, self._coders = _Parts(joined), coders

    def prepare(self, records: Float32) -> list[Any]:
        """A block a group."""
        return self._parts.prepared(self._coders, records)

    def codes(self, parts: slice, prepared: list[Any]) -> Int64:
        """(k, n)."""
        return self._parts.fill(self._coders, parts, prepared, np.int64)


class _FastJoined:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    def __init__(self, joined: Joined, coders: list[FastCoder]) -> None:
        self._parts, self._coders = _Parts(joined), coders
        self.block_records = min(coder.block_records for coder in coders)

    @property
    def computed(self) -> int:
        """Codes so far."""
        return sum(coder.computed for coder in self._coders)

    @property
    def flagged(self) -> int:
        """Of them, by the definition."""
        return sum(coder.flagged for coder in self._coders)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches."""
        return _BLOCK_CODES // (n * power)

    def prepare(self, records: Float32) -> list[Any]:
        """A block a group."""
        return self._parts.prepared(self._coders, records)

    def codes(self, parts: slice, block: list[Any]) -> Int32:
        """(k, n) less the least code of each part."""
        return self._parts.fill(self._coders, parts, block, np.int32)

    def rehashed(self, rows: slice, block: list[Any], rehash: Rehash) -> Int32 | None:
        """None: the codes are written down first."""
        del rows, block, rehash
        return None
