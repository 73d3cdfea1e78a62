"""The hash of the angular kernel: the sign of a·x, a ~ N(0, I) (Charikar 2002, section 3).

The code is 1 where a·x ≥ 0, else 0: that of the zero vector is 1 in every part.

**Frozen**: directions are float32(a), a from the normals in the order (row, part, coordinate). Records are not centred.
Walsh–Hadamard directions: :mod:`hushsum.families.lsh.codes.fastfood`.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.fastfood import Rotated
from hushsum.families.lsh.codes.projection import Signs
from hushsum.families.lsh.hash import read_power
from hushsum.families.lsh.row_sources import Source
from hushsum.families.vectors import VectorSpace
from hushsum.schema import Table


@dataclass(frozen=True)
class Angular:
    """The key ``power``.

    Attributes:
        power: p, hashes concatenated in a row: the kernel to the power p.
    """

    kernel_name: ClassVar[str] = "angular"
    centred: ClassVar[bool] = False

    power: int = 1

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads ``power``."""
        return cls(read_power(table))

    def to_fields(self) -> dict[str, object]:
        """The keys."""
        return {"kernel": self.kernel_name, "power": self.power}

    def codes(self, domain: VectorSpace) -> int:
        """p, one a part."""
        del domain
        return self.power

    def uniforms(self, domain: VectorSpace) -> int:
        """p·d."""
        return self.power * domain.dim

    def refuse_codes(self, domain: VectorSpace, key: str, draws: str) -> None:
        """Nothing: codes are 0 and 1."""
        del domain, key, draws

    def draw(self, source: Source, domain: VectorSpace) -> Code:
        """The parameters of every row."""
        if isinstance(source, Rotated):
            return source.signs("angular", self.power, domain.dim)
        normals = source.normals("angular/directions", self.power, domain.dim)
        return Signs.of(normals.astype(np.float32), domain.sizes)

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """(n, d) and (m, d) to (n, m)."""
        return kernels.angular(kernels.angles(x, y), self.power)

    def kernel_error(self, domain: VectorSpace) -> float:
        """0: the kernel is that of the float32 coordinates (:attr:`VectorSpace.rounded`)."""
        del domain
        return 0.0
