"""All that an engine knows of the rows of a sketch."""

from dataclasses import dataclass

from hushsum.families.lsh.coders import Coder
from hushsum.families.lsh.placement import Placement
from hushsum.families.lsh.projection import Projection


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows of p concatenated codes.

    Attributes:
        coder: R·p codes, part after part of row after row.
        placement: Code vectors to buckets.
        power: p, the codes of a row.
        buckets: W.
    """

    coder: Coder
    placement: Placement
    power: int
    buckets: int

    def __len__(self) -> int:
        """R."""
        return len(self.coder) // self.power

    @property
    def projection(self) -> Projection:
        """The coder, where it is a projection."""
        assert isinstance(self.coder, Projection), "these rows round no projection"
        return self.coder
