"""What a kernel of the hashed family is made of: its keys, its draws and its closed form; one file a hash.

Vectors come as a :class:`~hushsum.families.vectors.VectorSpace`; sets in a form of their own, which only the hashes of
sets read (both have ``accept``, ``accepted``, ``queries``, ``exact`` and ``ends``). Hashes of vectors share the keys
``bandwidth`` and ``power``, and the refusal of codes beyond int32.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final, Protocol, Self

import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.projection import CODE_LIMIT
from hushsum.families.lsh.row_sources import Source
from hushsum.families.vectors import MAGNITUDE_MAX, VectorSpace
from hushsum.schema import Table

#: What records are made of: a Space of vectors, or one of sets.
Domain = Any

POWER_MAX: Final = 8


class Hash(Protocol):
    """One hash with its keys: immutable."""

    @property
    def kernel_name(self) -> str:
        """The value of ``kernel``."""
        ...

    @property
    def centred(self) -> bool:
        """Whether records may be moved: not where the origin means something."""
        ...

    @property
    def power(self) -> int:
        """p."""
        ...

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads the hash's keys, all but ``kernel``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        ...

    def to_fields(self) -> dict[str, object]:
        """Every key with its canonical value."""
        ...

    def codes(self, domain: Domain) -> int:
        """Codes of a row."""
        ...

    def uniforms(self, domain: Domain) -> int:
        """Uniforms that a row is made of: coordinates of a Sobol point."""
        ...

    def refuse_codes(self, domain: Domain, key: str, draws: str) -> None:
        """Refuses parameters with which some code might leave int32, whatever the seed; ``key`` is their table.

        Raises:
            PlanError: With the least that would do.
        """
        ...

    def draw(self, source: Source, domain: Domain) -> Code:
        """The parameters of every row."""
        ...

    def kernel(self, x: Any, y: Any) -> npt.NDArray[Any]:
        """The kernel of what ``domain.exact`` gives, (n,) and (m,) points to (n, m) float64."""
        ...

    def kernel_error(self, domain: Domain) -> float:
        """How far the collision probability may be from the kernel: where draws are cut off."""
        ...


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

    def codes(self, domain: VectorSpace) -> int:
        """p, one a part."""
        del domain
        return self.power

    def uniforms(self, domain: VectorSpace) -> int:
        """p·(d + 1): directions and offsets."""
        return self.power * (domain.dim + 1)

    def rounding(self, domain: VectorSpace) -> float:
        """How far the kernel may move with coordinates of float32 (:mod:`hushsum.families.vectors`)."""
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
