"""Codes of several hashes, each of its own columns, as one code vector a row: the product of their kernels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Int64
from hushsum.families.lsh.codes.code import Code


@dataclass(frozen=True, eq=False)
class Joined:
    """The codes of groups of columns, one group's after the other's in each row.

    Attributes:
        codes: One a group, for as many rows each.
        powers: The codes of a row, a group.
        columns: The columns of the records that a group's code takes.
    """

    codes: tuple[Code, ...]
    powers: tuple[int, ...]
    columns: tuple[Int64, ...]

    @property
    def power(self) -> int:
        """The codes of a row, of all groups."""
        return sum(self.powers)

    def __len__(self) -> int:
        """R times the codes of a row."""
        return sum(map(len, self.codes))

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(k,) int64, twice: see :class:`~hushsum.families.lsh.codes.code.Code`."""
        ends = [code.ends(lower[some], upper[some]) for code, some in zip(self.codes, self.columns, strict=True)]
        least, largest = (
            [pair[side].reshape(-1, p) for pair, p in zip(ends, self.powers, strict=True)] for side in (0, 1)
        )
        return np.concatenate(least, axis=1).reshape(-1), np.concatenate(largest, axis=1).reshape(-1)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries with some code that leaves 32 bits."""
        far = np.zeros(len(queries), np.bool_)
        for code, some in zip(self.codes, self.columns, strict=True):
            far |= code.far(queries[:, some])
        return far
