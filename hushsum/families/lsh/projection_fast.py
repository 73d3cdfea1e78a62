"""Codes of a projection in compiled loops.

The block's products come from BLAS, or from a loop of our own where d is small; codes take their place in the same
memory.
"""

from typing import Final, NamedTuple

import numpy as np

from hushsum.families.lsh import loops, sign_loops
from hushsum.families.lsh.arrays import Float32, Int32, UInt64
from hushsum.families.lsh.placement import Direct, Rehash
from hushsum.families.lsh.projection import Projection

#: The largest d with which the loop of our own beats BLAS.
NARROW: Final = 8
_WIDE: Final = 64
_BLOCK_RECORDS: Final = 1024
_BLOCK_CODES: Final = 1 << 17
_NONE: Final[UInt64] = np.empty((0, 2), np.uint64)


class Block(NamedTuple):
    """n records with what every chunk of rows needs of them.

    Attributes:
        records: (n, d).
        columns: (d', n) where d is small: the records' coordinates, padded.
        norms: Of the filter: the largest of each tile of records.
    """

    records: Float32
    columns: Float32 | None
    norms: Float32


class FastProjection:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    block_records = _BLOCK_RECORDS

    def __init__(self, projection: Projection, lowest: Int32) -> None:
        self.computed, self.flagged = 0, 0
        self._projection, self._lowest = projection, lowest
        self._padded = _padded(projection.directions) if projection.directions.shape[1] <= NARROW else None
        self._products: Float32 = np.empty(0, np.float32)
        self._terms: tuple[Int32, ...] = ()
        self._line: Float32 = np.empty(0, np.float32)
        self._flags: Int32 = np.empty((2, 0), np.int32)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches: a block's codes in the second level."""
        # BLAS gains from more rows at once where d is large, more than the cache loses.
        codes = _BLOCK_CODES * (2 if len(self._projection.sizes) > _WIDE else 1)
        return codes // (n * power)

    def prepare(self, records: Float32) -> Block:
        """What every chunk of rows needs of some records, at least one."""
        norms = self._projection.norms(records)
        tiles: Float32 = np.maximum.reduceat(norms, np.arange(0, len(norms), loops.TILE))
        return Block(records, None if self._padded is None else np.ascontiguousarray(_padded(records).T), tiles)

    def codes(self, parts: slice, block: Block) -> Int32:
        """(k, n) less the least code of each part."""
        return self._loops(parts, block, _NONE, 0)

    def rehashed(self, rows: slice, block: Block, rehash: Rehash) -> Int32 | None:
        """(rows, n): buckets, where a row has one code and W is a power of two."""
        if rehash.multipliers.shape[1] > 2 or not rehash.bits:
            return None
        return self._loops(rows, block, rehash.multipliers[rows], rehash.bits)

    def placed(self, rows: slice, block: Block, direct: Direct, buckets: int) -> Int32 | None:
        """(rows, n): direct buckets where codes are signs, added up as they are made; W or more where one is outside.

        None where there is no faster way than :meth:`codes` and then to place them.
        """
        projection, (records, columns, norms) = self._projection, block
        power, n = direct.strides.shape[1], len(records)
        if not projection.signs or (columns is not None and len(columns) > loops.GROUP):
            return None
        if not self._terms and (power + 1) * buckets < 2**31:
            self._terms = tuple(_terms(direct, buckets, code) for code in (0, 1))
        if not self._terms:
            return None
        parts = slice(rows.start * power, rows.stop * power)
        count = parts.stop - parts.start
        self._grow(count * n, n * power)
        directions, (lows, highs) = projection.directions[parts], (terms[parts] for terms in self._terms)
        fixed = (norms, projection.limit, projection.slopes[parts], lows, highs, directions, records)
        memory = self._products[: count * n].reshape(count, n)
        out = memory[: count // power].view(np.int32)
        if columns is None or self._padded is None:
            np.dot(directions, records.T, out=memory)
            flagged = sign_loops.buckets(memory, *fixed, self._line[:n].view(np.int32), self._flags, out)
        else:
            flagged = sign_loops.narrow_buckets(self._padded[parts], columns, *fixed, self._flags, out)
        self.computed, self.flagged = self.computed + count * n, self.flagged + flagged
        return out

    def _loops(self, parts: slice, block: Block, multipliers: UInt64, bits: int) -> Int32:
        projection, (records, columns, norms) = self._projection, block
        count, n = parts.stop - parts.start, len(records)
        self._grow(count * n, n)
        directions, products = projection.directions[parts], self._products[: count * n].reshape(count, n)
        out, line, flags = products.view(np.int32), self._line[:n], self._flags
        fixed = (projection.limit, projection.slopes[parts], projection.shifts[parts], self._lowest[parts])
        rehash = (multipliers, bits)
        definition = (projection.signs, directions, projection.offsets[parts])
        if columns is None or self._padded is None:
            np.dot(directions, records.T, out=products)
            flagged = loops.codes(
                products, norms, *fixed, *definition, records, line.view(np.int32), flags, *rehash, out
            )
        else:
            padded = self._padded[parts]
            flagged = loops.narrow_codes(
                padded, columns, norms, *fixed, *definition, records, line, flags, *rehash, out
            )
        self.computed, self.flagged = self.computed + out.size, self.flagged + flagged
        return out

    def _grow(self, products: int, n: int) -> None:
        if products > len(self._products):
            self._products = np.empty(products, np.float32)
        if n > len(self._line):
            self._line = np.empty(n, np.float32)
        if n >= self._flags.shape[1]:  # (2, more than n) for parts and records
            self._flags = np.empty((2, n + 1024), np.int32)


def _padded(matrix: Float32) -> Float32:
    """The same columns, and zeroes up to a multiple of the loops' group: they add nothing to a product."""
    n, d = matrix.shape
    padded = np.zeros((n, -(-d // loops.GROUP) * loops.GROUP), np.float32)
    padded[:, :d] = matrix
    return padded


def _terms(direct: Direct, buckets: int, code: int) -> Int32:
    """What this code of each part adds to a bucket: W where it is outside, so that nothing brings the sum back."""
    above = code - direct.lowest
    inside = (above >= 0) & (above < direct.spans)
    return np.where(inside, above * direct.strides, buckets).astype(np.int32).reshape(-1)
