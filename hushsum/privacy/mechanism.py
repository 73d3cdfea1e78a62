"""A mechanism with its exact parameters: how the noise of a plan is distributed."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import PlanError
from hushsum.noise import DiscreteLaplace
from hushsum.noise.discrete_laplace import SCALE_MAX, SCALE_MIN
from hushsum.privacy.relation import is_positive
from hushsum.schema import Table

DISCRETE_LAPLACE: Final = "discrete-laplace"
DISCRETE_GAUSSIAN: Final = "discrete-gaussian"


@dataclass(frozen=True)
class Mechanism:
    """Independent noise of one distribution on every counter, the count counter included.

    Args:
        name: ``discrete-laplace``.
        scale: Its exact parameter: P(k) ∝ e^(−|k|/scale).
        count_scale: c, by which one record moves the count counter; at least 1.

    Raises:
        PlanError: A parameter is out of range; it names the key under ``privacy.mechanism``.
    """

    name: str
    scale: Fraction
    count_scale: int

    def __post_init__(self) -> None:
        if self.name != DISCRETE_LAPLACE:
            raise PlanError("privacy.mechanism.name", self.name, repr(DISCRETE_LAPLACE))
        if not is_positive(self.scale) or not SCALE_MIN <= self.scale <= SCALE_MAX:
            raise PlanError("privacy.mechanism.scale", self.scale, "an exact rational from 2^-48 to 2^48")
        if type(self.count_scale) is not int or not 1 <= self.count_scale <= INTEGER_LIMIT:
            raise PlanError("privacy.mechanism.count_scale", self.count_scale, f"an integer from 1 to {INTEGER_LIMIT}")

    def noise(self) -> DiscreteLaplace:
        """The sampler of one counter's noise."""
        return DiscreteLaplace(self.scale)

    def to_fields(self) -> dict[str, object]:
        """Strings and integers, ready for the canonical encoding."""
        return {"name": self.name, "scale": real_text(self.scale), "count_scale": self.count_scale}

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote, or what stands in a plan file.

        Raises:
            PlanError: A key is missing, unknown or out of range.
        """
        name = table.choice("name", built=(DISCRETE_LAPLACE,), known=(DISCRETE_GAUSSIAN,))
        scale = table.real("scale", expected="an exact rational above 0", above=0)
        count_scale = table.integer("count_scale", low=1)
        table.finish()
        return cls(name, scale, count_scale)
