"""Which records can be used, what is wrong with the others, and which are clipped: every ``add`` begins here.

A record that cannot be used drops alone: nothing about it decides what becomes of the others.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.collection import label_list
from hushsum.errors import ClippedRecordsWarning, DroppedRecordsWarning, HushsumWarning
from hushsum.families import Records, VectorRecords
from hushsum.families.vectors import Box, readable
from hushsum.plan import Plan

Int64 = npt.NDArray[np.int64]
_SIDE_BY_SIDE: Final = 128  # records
_LABELS_SHOWN: Final = 3
_LINES_SHOWN: Final = 3
_LABEL_SHOWN: Final = 40  # characters


@dataclass(frozen=True)
class RecordProblems:
    """What was wrong with some of n records: for whoever has the records, and nobody else.

    Attributes:
        records: n.
        unreadable: How many have NaN, infinity, another number of columns, or are an empty set.
        unlabelled: How many of the others have no label, or one that the plan does not have.
        labels: Some of the labels that the plan does not have.
        clipped: How many of the usable ones lie outside the plan's bounds, and are moved to them.
        columns: How many of these lie outside in each column, by its name; columns without any are left out.
        lines: Some of the unreadable ones, each with its line in a file or its number from 0, and why.
    """

    records: int
    unreadable: int = 0
    unlabelled: int = 0
    labels: tuple[str, ...] = ()
    clipped: int = 0
    columns: tuple[tuple[str, int], ...] = ()
    lines: tuple[str, ...] = ()

    def __add__(self, other: "RecordProblems") -> "RecordProblems":
        """The problems of both: of records that were given one batch after the other."""
        columns = Counter(dict(self.columns)) + Counter(dict(other.columns))
        return RecordProblems(
            self.records + other.records,
            self.unreadable + other.unreadable,
            self.unlabelled + other.unlabelled,
            tuple(dict.fromkeys((*self.labels, *other.labels)))[:_LABELS_SHOWN],
            self.clipped + other.clipped,
            tuple(columns.items()),
            (*self.lines, *other.lines)[:_LINES_SHOWN],
        )

    @property
    def dropped(self) -> int:
        """How many cannot be used."""
        return self.unreadable + self.unlabelled

    def warnings(self) -> Iterator[HushsumWarning]:
        """What a caller should be warned of."""
        if self.dropped:
            yield DroppedRecordsWarning(f"{self.dropped} of {self.records} records were left out: {self.reasons}")
        if self.clipped:
            yield ClippedRecordsWarning(self.clipped_text)

    @property
    def reasons(self) -> str:
        """Why records cannot be used, half a sentence."""
        reasons = []
        if self.unreadable:
            some = f", such as {', '.join(self.lines)}" if self.lines else ""
            reasons.append(
                f"{self.unreadable} cannot be read (NaN, infinity, an empty set, or another number of columns){some}"
            )
        if self.unlabelled:
            some = f", such as {', '.join(map(repr, self.labels))}" if self.labels else ""
            reasons.append(f"{self.unlabelled} without a label of the plan{some}")
        return "; ".join(reasons)

    @property
    def clipped_text(self) -> str:
        """How many records were clipped, with the share and the columns."""
        columns = ", ".join(f"{name} {_share(count, self.records)}" for name, count in self.columns)
        share = _share(self.clipped, self.records)
        return f"{share} of {self.records} records lay outside the plan's bounds and were clipped to them: {columns}"


@dataclass(frozen=True, eq=False)
class UsableRecords:
    """Those of n records that can be used, as a family takes them.

    Attributes:
        accepted: The k usable ones, for :meth:`hushsum.families.Family.encode`.
        classes: (n,): the class of each record; −1 where it cannot be used.
        problems: What is wrong with the others.
    """

    accepted: Records
    classes: Int64
    problems: RecordProblems

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """(n,): which can be used."""
        return np.asarray(self.classes >= 0, np.bool_)

    @property
    def numbers(self) -> Int64:
        """(k,): the class of each usable record."""
        return self.classes if len(self.accepted) == len(self.classes) else self.classes[self.classes >= 0]


def read(plan: Plan, records: Any, labels: object = None, lines: tuple[str, ...] = ()) -> UsableRecords:
    """Reads records as :meth:`hushsum.Sketch.add` takes them: an array, sets, or a list.

    Args:
        plan: What they are collected for.
        records: n of them.
        labels: For a plan with classes: n strings or integers.
        lines: Of :class:`RecordProblems`.

    Raises:
        RecordError: The array, or the number or the type of all labels, is wrong; nothing that one record decides.
    """
    given = None if labels is None else label_list(labels)
    if given is not None and plan.report_sizes is not None:
        # A label of another type is an unusable one: an error would show that this record came.
        given = [label if isinstance(label, str) else None for label in given]
    vectors = plan.record if isinstance(plan.record, VectorRecords) else None
    if vectors is not None:
        records = readable(records, vectors.dim)
    accepted, kept = plan.family.accept(records)
    classes = plan.collection.class_indices(given, len(kept))
    unreadable, unlabelled = len(kept) - len(accepted), 0
    labels_shown: tuple[str, ...] = ()
    if given is not None:
        is_unlabelled = kept & (classes < 0)
        unlabelled, labels_shown = int(is_unlabelled.sum()), _unknown(given, is_unlabelled)
        if unlabelled:
            accepted = accepted[classes[kept] >= 0]
    if unreadable:
        classes[~kept] = -1
    clipped = 0
    columns: tuple[tuple[str, int], ...] = ()
    if vectors is not None:
        some = np.asarray(records)
        clipped, columns = _clipped(plan, vectors, some[classes >= 0] if unreadable or unlabelled else some)
    if unreadable and not lines:
        lines = tuple(_unreadable(plan, records, kept))
    problems = RecordProblems(len(kept), unreadable, unlabelled, labels_shown, clipped, columns, lines)
    return UsableRecords(accepted, classes, problems)


def _unreadable(plan: Plan, records: Any, kept: npt.NDArray[np.bool_]) -> Iterator[str]:
    """Some of the records that cannot be read, by their numbers, with the columns that are no finite numbers."""
    for number in np.flatnonzero(~kept)[:_LINES_SHOWN].tolist():
        row = records[number] if isinstance(records, np.ndarray) and records.dtype.kind == "f" else ()
        names = plan.collection.names or [f"x{place}" for place in range(len(row))]
        odd = [f"{name} is {value:g}" for name, value in zip(names, row, strict=False) if not np.isfinite(value)]
        some = (
            f" ({', '.join(odd[:_LINES_SHOWN])})" if 0 < len(odd) < len(row) else ""
        )  # else no one column is to blame
        yield f"record {number}{some}"


_box = lru_cache(maxsize=8)(Box.of)


def _clipped(
    plan: Plan, vectors: VectorRecords, records: npt.NDArray[np.generic]
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """How many of usable records are clipped, and how many in each column that has any."""
    box = _box(vectors)
    if not box.outside(_extremes(records)).any():
        return 0, ()
    outside = box.outside(records)
    names = plan.collection.names or [f"x{number}" for number in range(vectors.dim)]
    counts = zip(names, outside.sum(axis=0).tolist(), strict=True)
    return int(outside.any(axis=1).sum()), tuple((name, count) for name, count in counts if count)


def _extremes(records: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Few rows (k, d) that have the least and the largest value of each column of records (n, d).

    Many records are laid side by side first: NumPy reduces long rows 20 times as fast as rows of three numbers.
    """
    n, dim = records.shape
    rows = n // _SIDE_BY_SIDE
    if rows < 2 or not records.flags.c_contiguous:
        return records if n < _SIDE_BY_SIDE else np.stack([records.min(axis=0), records.max(axis=0)])
    wide = records[: rows * _SIDE_BY_SIDE].reshape(rows, _SIDE_BY_SIDE * dim)
    ends = (wide.min(axis=0).reshape(-1, dim), wide.max(axis=0).reshape(-1, dim))
    return np.concatenate([*ends, records[rows * _SIDE_BY_SIDE :]])


def _unknown(given: list[object] | None, unlabelled: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    if given is None or not unlabelled.any():
        return ()
    found = (given[number] for number in np.flatnonzero(unlabelled).tolist())
    return tuple(dict.fromkeys(label[:_LABEL_SHOWN] for label in found if isinstance(label, str)))[:_LABELS_SHOWN]


def _share(count: int, total: int) -> str:
    percent = 100 * count / total
    return f"{count:,} ({percent:.{2 if percent < 99.5 else 3}g} %)"
