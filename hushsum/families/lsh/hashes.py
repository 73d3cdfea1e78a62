"""What a kernel of the hashed family is made of: its keys, its draws and its closed form; one file a hash.

Vectors come as a :class:`~hushsum.families.vectors.Space`; sets in a form of their own, which only the hashes of sets
read (both have ``accept``, ``accepted``, ``queries``, ``exact`` and ``ends``).
"""

from typing import Any, Protocol, Self

import numpy.typing as npt

from hushsum.families.lsh.coders import Coder
from hushsum.families.lsh.sources import Source
from hushsum.schema import Table

#: What records are made of: a Space of vectors, or one of sets.
Domain = Any


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

    def draw(self, source: Source, domain: Domain) -> Coder:
        """The parameters of every row."""
        ...

    def kernel(self, x: Any, y: Any) -> npt.NDArray[Any]:
        """The kernel of what ``domain.exact`` gives, (n,) and (m,) points to (n, m) float64."""
        ...

    def kernel_error(self, domain: Domain) -> float:
        """How far the collision probability may be from the kernel: where draws are cut off."""
        ...
