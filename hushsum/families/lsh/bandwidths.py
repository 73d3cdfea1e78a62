"""Keys that the hashes of vectors share: a bandwidth and a power, and the refusal of codes beyond int32."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Self

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families.lsh.projection import CODE_LIMIT
from hushsum.families.vectors import MAGNITUDE_MAX, Space
from hushsum.schema import Table

POWER_MAX: Final = 8


def read_power(table: Table) -> int:
    """p, by default 1."""
    return table.integer("power", low=1, high=POWER_MAX, default=1)


@dataclass(frozen=True)
class Wide:
    """A hash with a bandwidth.

    Attributes:
        bandwidth: w or σ, in the unit of the records.
        power: p, hashes concatenated in a row: the kernel to the power p.
    """

    kernel_name: ClassVar[str]
    centred: ClassVar[bool] = True

    bandwidth: Fraction
    power: int = 1

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads ``bandwidth`` and ``power``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        bandwidth = table.real("bandwidth", expected="a number above 0", above=0)
        if not 1 / MAGNITUDE_MAX <= bandwidth <= MAGNITUDE_MAX:
            raise PlanError(table.name("bandwidth"), real_text(bandwidth), "a number from 2^-64 to 2^64")
        return cls(bandwidth, read_power(table))

    def to_fields(self) -> dict[str, object]:
        """The keys."""
        return {"kernel": self.kernel_name, "bandwidth": real_text(self.bandwidth), "power": self.power}

    def codes(self, domain: Space) -> int:
        """p, one a part."""
        del domain
        return self.power

    def uniforms(self, domain: Space) -> int:
        """p·(d + 1): directions and offsets."""
        return self.power * (domain.dim + 1)

    def rounding(self, domain: Space) -> float:
        """How far the kernel may move with coordinates of float32 (:mod:`hushsum.families.rounding`)."""
        raise NotImplementedError

    def _refuse(self, reach: float, key: str) -> None:
        """Refuses codes up to ``reach`` over the bandwidth."""
        width = float(self.bandwidth)
        if not reach < CODE_LIMIT * width:
            raise PlanError(
                f"{key}.bandwidth",
                real_text(self.bandwidth),
                f"more than {reach / CODE_LIMIT:.3g}: within record.lower and record.upper bucket codes may reach "
                f"{reach / width:.3g}, and they must stay within 32 bits",
            )
