"""What each role of a service does, and what it leaves to other processes."""

from dataclasses import dataclass
from typing import Self

from aggregator.config import Config


@dataclass(frozen=True)
class Duties:
    """What one process does.

    Attributes:
        collects: Takes deltas.
        folds: Owns partitions, and adds up what was taken.
        releases: May become the plan's releaser.
        opens: Opens windows by its clock.
        alone: No other process shares any of it: every fold is here.
    """

    collects: bool
    folds: bool
    releases: bool
    opens: bool
    alone: bool

    @classmethod
    def of(cls, config: Config) -> Self:
        """The duties of the configured role."""
        collects = config.role in {"all", "gateway"}
        folds = config.role in {"all", "worker"}
        return cls(
            collects=collects,
            folds=folds,
            releases=config.role in {"all", "releaser"},
            # With direct producers there may be no gateway, and what nobody has opened counts for nothing.
            opens=collects or (folds and config.direct_producers),
            alone=config.store == "sqlite",
        )

    @property
    def shows(self) -> bool:
        """Whether analysts may ask here."""
        return self.collects or self.releases
