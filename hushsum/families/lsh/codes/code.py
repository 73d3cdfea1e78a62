"""What every definition of codes offers, whatever computes them."""

from typing import Any, Protocol

import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Int64, Points


class Code(Protocol):
    """The drawn parameters of R·p codes, part after part of row after row: immutable.

    A new definition is one file here, and one entry in the table of each engine:
    :mod:`~hushsum.families.lsh.numpy_engine` and :mod:`~hushsum.families.lsh.compiled.engine`.
    """

    def __len__(self) -> int:
        """R·p."""
        ...

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(R·p,) twice: no record within the bounds has a smaller or a larger code of a part.

        Buckets are direct where all codes fit.
        """
        ...

    def far(self, queries: Points) -> npt.NDArray[Any]:
        """(m,) bool: queries with some code that leaves 32 bits."""
        ...
