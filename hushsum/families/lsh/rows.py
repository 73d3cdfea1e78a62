"""All that an engine knows of the rows of a sketch."""

from dataclasses import dataclass

from hushsum.families.lsh.placement import Placement
from hushsum.families.lsh.projection import Projection


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows of p concatenated codes.

    Attributes:
        projection: Parameters of R·p codes, part after part of row after row.
        placement: Code vectors to buckets.
        power: p.
        buckets: W.
    """

    projection: Projection
    placement: Placement
    power: int
    buckets: int

    def __len__(self) -> int:
        """R."""
        return len(self.projection.offsets) // self.power
