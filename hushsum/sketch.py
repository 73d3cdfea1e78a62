"""A sketch: a plan and its integer counters. Records are added, sketches of one plan are merged."""

import operator
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from math import prod
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.collection import by_class
from hushsum.entropy import OsEntropy
from hushsum.errors import (
    ContributionError,
    GuaranteeError,
    MergeError,
    NoUsableRecordsError,
    PlanMismatchError,
    RecordError,
    warn,
)
from hushsum.families import Increments, Records
from hushsum.notebook import pairs_html
from hushsum.plan import Plan
from hushsum.tables import Columns, read_table
from hushsum.usable_records import read

Counters = npt.NDArray[np.int64]
ClientId = str | bytes | int
_FEW: Final = 32  # records are few that change fewer than one counter in so many of their class


class Sketch:
    """The exact counters of records: not private, do not publish (see :func:`hushsum.release`).

    Args:
        plan: What is counted, and how.

    Attributes:
        counters: int64, (classes, shape of the family...).
        counts: int64, (classes,): the count counter of each class, its number of records times the mechanism's
            ``count_scale``; (0,) where that is 0.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters: Counters = np.zeros(plan.counters_shape, np.int64)
        self.counts: Counters = np.zeros(plan.count_counters, np.int64)
        self._contributions: Counter[ClientId] = Counter()
        # Which additions are in here: a random name for each sketch that was ever added to, and how often it was.
        self._parts: dict[bytes, int] = {}
        self._own = OsEntropy().read(16)

    @classmethod
    def of_counters(cls, plan: Plan, counters: Counters, counts: Counters) -> Self:
        """A sketch of counters that were folded elsewhere; the arrays are kept, not copied."""
        if counters.shape != plan.counters_shape:
            raise MergeError(f"counters of shape {counters.shape}, expected {plan.counters_shape}")
        if counts.shape != (plan.count_counters,):
            raise MergeError(f"count counters of shape {counts.shape}, expected ({plan.count_counters},)")
        if counters.dtype != np.int64 or counts.dtype != np.int64:
            raise MergeError(f"counters of type {counters.dtype} and {counts.dtype}, expected int64")
        sketch = cls(plan)
        sketch.counters, sketch.counts = counters, counts
        sketch._parts = {sketch._own: 1}
        return sketch

    @property
    def records(self) -> int:
        """The exact number of records."""
        return int(self.class_records.sum())

    @property
    def class_records(self) -> Counters:
        """(classes,) int64: the exact number of records of each class."""
        if scale := self.plan.privacy.mechanism.count_scale:
            return self.counts // scale
        return np.array([round(self.plan.family.records_in(counters)) for counters in self.counters], np.int64)

    def under(self, plan: Plan) -> "Sketch":
        """The same counters under another plan of the same sketch, whose count counters may have another multiplier."""
        counts = (self.class_records * plan.privacy.mechanism.count_scale)[: plan.count_counters]
        return Sketch.of_counters(plan, self.counters, counts)

    def add(
        self,
        records: Any,
        clients: Iterable[ClientId] | None = None,
        labels: object = None,
        *,
        columns: Columns | None = None,
        by_position: bool = False,
    ) -> Self:
        """Adds records: all usable ones of the array, or none. Additions chain: ``Sketch(plan).add(a).add(b)``.

        A record that cannot be used is dropped alone: for a NaN or an infinity, for an empty set, for a label that the
        plan does not have.

        A batch with more records of one client than the bound is refused whole. Who goes on without it lets one client
        decide about the others of that batch, which no guarantee covers: cut batches by client, or drop what exceeds
        the bound, before they come here. Where a batch is of one client alone, the same holds of a batch without a
        usable record: catch its error, and go on.

        Args:
            records: (n, d); float64, float32, integers or booleans, clipped to the plan's bounds. Sets: a list of n
                sets or integer arrays, or a scipy CSR matrix. Each row of a list is read by itself. A data frame, an
                Arrow table, a list of rows with names (dicts, named tuples, dataclasses, Series) or the path of a CSV,
                Parquet or ``.npy`` file: by the plan's names.
            clients: For unit ``client``: n client ids, one a record, all strings, all bytes or all integers; the
                contribution bound holds over all additions. Of a table, also the name of a column.
            labels: For a plan with classes: n strings or integers, one a record. Of a table, also the name of a column.
            columns: Of a table: the columns to take, or by the plan's names those of the table.
            by_position: Take a table's columns in their order, whatever they are called.

        Returns:
            This sketch.

        Warns:
            DroppedRecordsWarning: Some records were dropped: how many, and why.
            ClippedRecordsWarning: Some lay outside the plan's bounds: how many, and in which columns.

        Raises:
            RecordError: An array of another type or dimension, ids or labels of another number, or no record of these
                can be used (:class:`hushsum.errors.NoUsableRecordsError`). Of a table, a column that is missing, one
                too many, or without numbers.
            ContributionError: A client exceeds the plan's ``records_per_client``. Nothing is added.
            GuaranteeError: The plan's records become reports: nobody has counters of records.
        """
        if self.plan.report_sizes is not None:
            raise GuaranteeError(f"plan {self.plan.name!r} collects randomised reports: use hushsum.local")
        table = read_table(self.plan, records, labels=labels, clients=clients, columns=columns, by_position=by_position)
        usable = read(self.plan, table.records, table.labels, table.lines)
        problems, numbers = usable.problems, usable.numbers
        contributions = self._bounded(table.clients, usable.kept)
        if problems.records and problems.dropped == problems.records:
            raise NoUsableRecordsError(f"records: none of {problems.records} can be used: {problems.reasons}")
        for warning in problems.warnings():  # before anything changes: where a warning is an error, nothing was added
            warn(warning)
        added, sparse = self._hashed(usable.accepted, numbers)
        # In this order an interruption between two lines may cost the client some of its bound, and never passes it.
        self._contributions += contributions
        self._parts[self._own] = self._parts.get(self._own, 0) + 1
        for index, counters in added.items():
            self.counters[index] += counters
        self.counters[np.unravel_index(sparse.indices, self.counters.shape)] += sparse.values
        if scale := self.plan.privacy.mechanism.count_scale:
            self.counts += np.bincount(numbers, minlength=len(self.counts)) * scale
        return self

    def _hashed(self, accepted: Records, numbers: Counters) -> tuple[dict[int, Counters], Increments]:
        """What records of these classes add: to whole classes, and where that is little, to single counters of all."""
        family, size = self.plan.family, prod(self.plan.family.shape)
        changes = family.sensitivity.l0
        dense: dict[int, Counters] = {}
        indices, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, mine in by_class(accepted, numbers):
            if len(mine) * changes * _FEW <= size:
                increments = family.encode(mine)
                indices.append(increments.indices + index * size)
                values.append(increments.values)
            else:
                dense[index] = np.zeros_like(self.counters[0])
                family.add(dense[index], mine)
        return dense, Increments(np.concatenate(indices), np.concatenate(values))

    def __add__(self, other: "Sketch") -> "Sketch":
        """The merge of two sketches of one plan that have no part in common.

        Raises:
            PlanMismatchError: Their plan ids differ.
            MergeError: Something would be counted twice, or clients' ids are of another type there.
            ContributionError: A client is in both, and beyond the bound in their sum.
        """
        if not isinstance(other, Sketch):
            return NotImplemented
        self._same_plan(other)
        if self._parts.keys() & other._parts.keys():
            raise MergeError("the two sketches share records, which would be counted twice")
        kinds = _kinds(islice(self._contributions, 1), islice(other._contributions, 1))
        if len(kinds) > 1:
            raise MergeError(f"clients: ids of types {' and '.join(kinds)}, expected one type in a sketch")
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
            raise MergeError("the sketch to subtract is not contained in this one, or was changed since")
        rest = Sketch(self.plan)
        rest.counters = self.counters - part.counters
        rest.counts = self.counts - part.counts
        rest._contributions = self._contributions - part._contributions
        rest._parts = dict(self._parts.items() - part._parts.items())
        return rest

    def __repr__(self) -> str:
        return f"Sketch(plan={self.plan.name!r}, id={self.plan.hex_id[:12]})"

    def _repr_html_(self) -> str:
        """The plan and the shape alone: counters are exact, and so is the number of records; neither may be shown."""
        shape = " x ".join(f"{size:,}" for size in self.counters.shape)
        pairs = [
            *self.plan.summary(),
            ("counters", f"{shape}: exact, not private; hushsum.release(sketch) makes a private release"),
        ]
        return pairs_html(f"Sketch of {self.plan.name}", pairs)

    def _same_plan(self, other: "Sketch") -> None:
        if self.plan.id != other.plan.id:
            raise PlanMismatchError(f"plan {self.plan.hex_id[:12]} and plan {other.plan.hex_id[:12]} cannot be merged")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has the same parts, and a name of its own for what is added to it from here on."""
        self.__dict__.update(state)
        self._parts = dict(self._parts)
        self._own = OsEntropy().read(16)

    def _bounded(self, clients: Iterable[ClientId] | None, kept: npt.NDArray[np.bool_]) -> Counter[ClientId]:
        if self.plan.privacy.unit == "record":
            return Counter()
        ids = client_ids(clients, len(kept), earlier=islice(self._contributions, 1))
        new = Counter(client for client, usable in zip(ids, kept, strict=True) if usable)
        self._check_bound(Counter({client: count + self._contributions[client] for client, count in new.items()}))
        return new

    def _check_bound(self, contributions: Counter[ClientId]) -> None:
        bound = self.plan.privacy.records_per_client
        if bound is None:
            return
        for client, count in contributions.items():
            if count > bound:
                raise ContributionError(
                    f"client {client!r} would have {count} records, expected at most privacy.records_per_client = "
                    f"{bound}: cut each client to its first {bound} records; do not choose the bound by this number, "
                    "which one client decides"
                )


def client_ids(clients: Iterable[Any] | None, n: int, earlier: Iterable[ClientId] = ()) -> list[ClientId]:
    """The ids of n records' clients as plain strings, bytes or integers: of one type, so that no client has two.

    Strings, bytes and integers of other types (NumPy's, enumerations) become plain ones.

    Args:
        clients: n ids, one a record, of unusable records too.
        n: The number of records.
        earlier: Ids that these are counted together with.

    Raises:
        RecordError: No ids, or another number of them; one that is no string, bytes or integer; or several types.
    """
    if clients is None:
        raise RecordError("clients: missing, expected a client id per record (unit 'client')")
    if isinstance(clients, str | bytes):
        raise RecordError(f"clients: got the single id {clients!r}, expected a list of ids, one per record")
    ids = [_client_id(client) for client in clients]
    if len(ids) != n:
        raise RecordError(f"clients: {len(ids)} ids for {n} records")
    kinds = _kinds(ids, earlier)
    if len(kinds) > 1:
        raise RecordError(f"clients: ids of types {' and '.join(kinds)}, expected one type")
    return ids


def _kinds(*ids: Iterable[ClientId]) -> list[str]:
    """The types of ids, by name: of two types, one client could be two, as "7" and 7, and pass the bound."""
    return sorted({type(client).__name__ for client in chain(*ids)})


def _client_id(value: object) -> ClientId:
    """An id that is equal to itself alone: a missing one (None, NaN) would be another client in each record."""
    # Its content, whatever a type of its own says of itself: str() of an enumeration is the name of its member.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return operator.index(value)
    raise RecordError(
        f"clients: got the id {value!r} of type {type(value).__name__}, expected a string, bytes or an int"
    )
