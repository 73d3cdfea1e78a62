"""A hash that the plan carries as data: directions learned on public data, or laid out with care.

Codes are those of a projection, or signs, with the given numbers. The kernel is what they make it: the share of rows in
which two points share all their codes.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families.lsh.arrays import Float32
from hushsum.families.lsh.codes.projection import CODE_LIMIT, Projection, Signs
from hushsum.families.lsh.row_sources import Source
from hushsum.families.vectors import VectorSpace
from hushsum.schema import Table

_SIGNS_MAX: Final = 2.0**20


@dataclass(frozen=True)
class GivenDirections:
    """Directions and offsets of R·p codes.

    Attributes:
        kernel_name: ``euclidean``: floors; ``angular``: signs.
        power: p.
        digest: Of the matrix.
        matrix: (R·p, d + 1) float32: directions, already over the bandwidth, and offsets.
    """

    kernel_name: str
    power: int
    digest: str
    matrix: Float32 = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        steps = self.matrix[:, -1].astype(np.float64) * 2.0**24
        good = (steps >= 0) & (steps < 2.0**24) & (steps == np.floor(steps))
        expected = "offsets in [0, 1) that are multiples of 2^-24"
        if self.kernel_name == "angular":
            good, expected = (
                (steps == 0) & (np.abs(self.matrix) <= _SIGNS_MAX).all(axis=1),
                "offsets 0, entries to 2^20",
            )
        for row in np.flatnonzero(~good):
            raise PlanError("sketch.parameters", f"row {row}: {self.matrix[row, -1]}", f"{expected} as the last column")

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Never: the matrix comes beside the plan, see :func:`hushsum.families.hashed.row_draws.read_given`."""
        raise NotImplementedError

    @property
    def centred(self) -> bool:
        """Whether records may be moved."""
        return self.kernel_name != "angular"

    def to_fields(self) -> dict[str, object]:
        """The keys."""
        return {"kernel": self.kernel_name, "power": self.power}

    def uniforms(self, domain: VectorSpace) -> int:
        """None."""
        del domain
        return 0

    def codes(self, domain: VectorSpace) -> int:
        """p, one a part."""
        del domain
        return self.power

    def refuse_codes(self, domain: VectorSpace, key: str, draws: str) -> None:
        """Refuses a matrix with which a code of some record leaves int32.

        Raises:
            PlanError: With the row.
        """
        del key, draws
        directions = np.abs(self.matrix[:, :-1].astype(np.float64))
        reach = directions @ domain.sizes.astype(np.float64)
        for row in np.flatnonzero(~(reach < CODE_LIMIT)):
            if self.kernel_name != "angular":
                raise PlanError("sketch.parameters", f"row {row}: codes to {reach[row]:.3g}", "codes within 32 bits")

    def draw(self, source: Source, domain: VectorSpace) -> Projection:
        """What was given."""
        del source
        directions = np.ascontiguousarray(self.matrix[:, :-1])
        if self.kernel_name == "angular":
            return Signs.of(directions, domain.sizes)
        return Projection(directions, self.matrix[:, -1].astype(np.float64), domain.sizes)

    def kernel(self, x: Any, y: Any) -> npt.NDArray[Any]:
        """Never: there is no closed form, see :func:`hushsum.families.hashed.answers.shared_codes`."""
        raise NotImplementedError

    def kernel_error(self, domain: VectorSpace) -> float:
        """0: the kernel is that of these rows."""
        del domain
        return 0.0
