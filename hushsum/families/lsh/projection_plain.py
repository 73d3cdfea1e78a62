"""Codes of a projection in NumPy alone: BLAS, the filter, and the definition where it flags."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Int64
from hushsum.families.lsh.projection import Projection

_BLOCK_NUMBERS: Final = 1 << 17


class Prepared(NamedTuple):
    """A block of records (n, d), and for each part where its filter flags, (k,)."""

    records: Float32
    limits: Float32


class PlainProjection:
    """See :class:`~hushsum.families.lsh.coders.PlainCoder`."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._products: Float32 = np.empty(0, np.float32)
        self._rounded: Float32 = np.empty(0, np.float32)
        self._flags: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._codes: Int64 = np.empty(0, np.int64)

    def prepare(self, records: Float32) -> Prepared:
        """The limits that hold for every record of the block."""
        projection = self._projection
        reach = projection.slopes * projection.norms(records).max()
        return Prepared(records, projection.limit + reach if projection.signs else projection.limit - reach)

    def codes(self, parts: slice, prepared: Prepared) -> Int64:
        """(k, n) int64."""
        projection, (block, limits) = self._projection, prepared
        shape = (parts.stop - parts.start, len(block))
        size = shape[0] * shape[1]
        self._grow(size)
        t, g = self._products[:size].reshape(shape), self._rounded[:size].reshape(shape)
        flags, codes = self._flags[:size].reshape(shape), self._codes[:size].reshape(shape)
        np.dot(projection.directions[parts], block.T, out=t)
        if projection.signs:
            np.greater_equal(t, 0.0, out=codes, casting="unsafe")
            np.abs(t, out=t)
            np.greater(t, limits[parts, None], out=flags)
            np.logical_not(flags, out=flags)  # a NaN is flagged
        else:
            t += projection.shifts[parts, None]
            np.rint(t, out=g)
            t -= g
            np.abs(t, out=t)
            np.greater(t, limits[parts, None], out=flags)
            np.copyto(codes, g, casting="unsafe")
        flagged = np.flatnonzero(flags)
        few = max(1, _BLOCK_NUMBERS // block.shape[1])
        for start in range(0, len(flagged), few):
            some = flagged[start : start + few]
            part, record = np.divmod(some, shape[1])
            codes.reshape(-1)[some] = projection.exact_codes(part + parts.start, block[record])
        return codes

    def _grow(self, size: int) -> None:
        if size > len(self._products):
            self._products, self._rounded = np.empty(size, np.float32), np.empty(size, np.float32)
            self._flags, self._codes = np.empty(size, np.bool_), np.empty(size, np.int64)
