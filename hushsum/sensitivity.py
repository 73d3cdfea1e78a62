"""How far one record can move the counters of a sketch (add/remove; docs/families.md)."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sensitivity:
    """Norms of the largest change of all counters that one unit can make, as exact integers.

    Attributes:
        l0: Number of counters that change.
        l1: Sum of the absolute changes.
        l2_squared: Sum of the squared changes (squared, so that it stays an integer).
        linf: Largest absolute change of one counter.
    """

    l0: int
    l1: int
    l2_squared: int
    linf: int

    def with_count(self, scale: int) -> "Sensitivity":
        """The same with the count counter beside it, which one record moves by ``scale``; 0: there is none."""
        if not scale:
            return self
        return Sensitivity(self.l0 + 1, self.l1 + scale, self.l2_squared + scale**2, max(self.linf, scale))

    def times(self, records: int, counters: int) -> "Sensitivity":
        """That of one client with at most ``records`` records (all may fall into one bucket).

        Args:
            records: m, at least 1.
            counters: Number of counters in the sketch, the count counters included: a bound on ``l0``.
        """
        return Sensitivity(
            min(records * self.l0, counters), records * self.l1, records**2 * self.l2_squared, records * self.linf
        )


@dataclass(frozen=True)
class RecordRows:
    """How well the sums of rows tell the number of records, where they sum to it; in variances of a counter's noise.

    Attributes:
        answer: What noise adds to the variance of an answer in buckets that are not rehashed.
        count: The variance of the number of records.
        exact: Whether answers have no error but noise: all counters are cells that are asked for.
    """

    answer: float
    count: float
    exact: bool = False


class Summed(Protocol):
    """A sketch, as far as the sums of its rows tell the number of records."""

    @property
    def rows_sum_to_records(self) -> bool:
        """Whether they do, so that a plan may have no count counter."""
        ...

    @property
    def record_rows(self) -> RecordRows:
        """How well, where they do."""
        ...
