"""A sketch: a plan and its integer counters. Records are added, sketches of one plan are merged."""

from collections import Counter
from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError, MergeError, PlanMismatchError, RecordError
from hushsum.plan import Plan

Counters = npt.NDArray[np.int64]
_BLOCK_RECORDS = 1 << 16


class Sketch:
    """The exact counters of some records: not private yet, and never to be shown (see :func:`hushsum.release`).

    Args:
        plan: What is counted, and how.

    Attributes:
        counters: int64, (classes, shape of the family...).
        counts: int64, (classes,): the count counter of each class, its number of records times the mechanism's
            ``count_scale``.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters: Counters = np.zeros(plan.counters_shape, np.int64)
        self.counts: Counters = np.zeros(plan.counters_shape[0], np.int64)
        self._contributions: Counter[object] = Counter()
        # Which additions are in here: a random name for each sketch that was ever added to, and how often it was.
        self._parts: dict[bytes, int] = {}
        self._own = OsEntropy().read(16)

    @classmethod
    def of_counters(cls, plan: Plan, counters: Counters, counts: Counters) -> Self:
        """A sketch of counters that were folded elsewhere; the arrays are kept, not copied."""
        if counters.shape != plan.counters_shape or counts.shape != counters.shape[:1]:
            raise MergeError(f"counters of shape {counters.shape}, expected {plan.counters_shape}")
        sketch = cls(plan)
        sketch.counters, sketch.counts = counters, counts
        sketch._parts = {sketch._own: 1}
        return sketch

    @property
    def records(self) -> int:
        """The exact number of records."""
        return int(self.counts.sum()) // self.plan.privacy.mechanism.count_scale

    def add(self, records: npt.ArrayLike, clients: Iterable[object] | None = None, labels: None = None) -> int:
        """Adds records.

        Args:
            records: (n, d); float64, float32, integers or booleans. Clipped to the plan's bounds.
            clients: For unit ``client``: n client ids, one a record; the contribution bound holds over all additions.
            labels: Not built yet: a plan has no classes.

        Returns:
            The number of records that were dropped, each alone, for a NaN or an infinity.

        Raises:
            RecordError: The array cannot be used at all.
            ContributionError: A client exceeds the plan's ``records_per_client``. Nothing is added.
        """
        if labels is not None:
            raise RecordError("labels: this plan has no classes (not built yet in this version)")
        accepted, kept = self.plan.family.accept(records)
        contributions = self._bounded(clients, kept)
        for start in range(0, len(accepted), _BLOCK_RECORDS):
            self.plan.family.add(self.counters[0], accepted[start : start + _BLOCK_RECORDS])
        self.counts[0] += len(accepted) * self.plan.privacy.mechanism.count_scale
        self._contributions += contributions
        self._parts[self._own] = self._parts.get(self._own, 0) + 1
        return int(len(kept) - len(accepted))

    def __add__(self, other: "Sketch") -> "Sketch":
        """The merge of two sketches of one plan that have no part in common.

        Raises:
            PlanMismatchError: Their plan ids differ.
            MergeError: Something would be counted twice.
            ContributionError: A client is in both, and beyond the bound in their sum.
        """
        if not isinstance(other, Sketch):
            return NotImplemented
        self._same_plan(other)
        if self._parts.keys() & other._parts.keys():
            raise MergeError("the two sketches have a part in common, which would be counted twice")
        merged = Sketch(self.plan)
        merged._contributions = self._contributions + other._contributions
        self._check_bound(merged._contributions)
        merged.counters = self.counters + other.counters
        merged.counts = self.counts + other.counts
        merged._parts = {**self._parts, **other._parts}
        return merged

    def __sub__(self, part: "Sketch") -> "Sketch":
        """What is left when a part that was merged in is taken out again.

        Raises:
            PlanMismatchError: Their plan ids differ.
            MergeError: ``part`` is not in here as it is now.
        """
        if not isinstance(part, Sketch):
            return NotImplemented
        self._same_plan(part)
        if not part._parts.items() <= self._parts.items():
            raise MergeError("the sketch to subtract is no part of this one, or was added to since")
        rest = Sketch(self.plan)
        rest.counters = self.counters - part.counters
        rest.counts = self.counts - part.counts
        rest._contributions = self._contributions - part._contributions
        rest._parts = dict(self._parts.items() - part._parts.items())
        return rest

    def __repr__(self) -> str:
        return f"Sketch(plan={self.plan.name!r}, id={self.plan.hex_id[:12]})"

    def _same_plan(self, other: "Sketch") -> None:
        if self.plan.id != other.plan.id:
            raise PlanMismatchError(f"plan {self.plan.hex_id[:12]} and plan {other.plan.hex_id[:12]} cannot be merged")

    def _bounded(self, clients: Iterable[object] | None, kept: npt.NDArray[np.bool_]) -> Counter[object]:
        if self.plan.privacy.unit == "record":
            return Counter()
        if clients is None:
            raise RecordError("clients: this plan's unit is 'client', so each record needs its client's id")
        names = [*clients]
        if len(names) != len(kept):
            raise RecordError(f"clients: {len(names)} ids for {len(kept)} records")
        new = Counter(name for name, usable in zip(names, kept, strict=True) if usable)
        self._check_bound(Counter({name: count + self._contributions[name] for name, count in new.items()}))
        return new

    def _check_bound(self, contributions: Counter[object]) -> None:
        bound = self.plan.privacy.records_per_client
        if bound is None:
            return
        for client, count in contributions.items():
            if count > bound:
                expected = f"at most privacy.records_per_client = {bound}"
                raise ContributionError(f"client {client!r} would contribute {count} records, {expected}")
