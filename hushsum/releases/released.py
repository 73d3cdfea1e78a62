"""A release: what anybody may see, saved, loaded and queried for ever."""

import os
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.entropy import OsEntropy
from hushsum.families import Answer
from hushsum.fsync import sync_folder
from hushsum.plan import Plan
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.mode_statements import contributors_text, shuffled_text
from hushsum.privacy.relations import Cost
from hushsum.privacy.shuffle_amplification import amplified
from hushsum.privacy.spending import spend_of
from hushsum.privacy.statement import spend_told
from hushsum.release_format import COUNTERS_MAX, Header, check_reports, decode, encode
from hushsum.tables import read_queries

Counters = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Release:
    """A differentially private sketch: it may be shown to anybody, and answers any number of queries.

    Attributes:
        plan: Whose counters these are.
        kind: ``tumbling`` (one window) or ``in-process`` (a sketch built by an analyst).
        window: Index of the window; None without one.
        counters: int64, (classes, shape of the family...): the noised integers. Of reports (1, R, outputs): how many
            came of each row and output, which queries undo.
        counts: int64, (classes,): the noised count counters. Of reports (1,): how many came, exactly.
        guarantee: What was promised, and by which mechanism.
        accounted: Whether a ledger was charged.
        submissions: How many clients are in it, where each drew noise, or a share of it; None for others and reports.
        cohorts: Of how many cohorts it is the sum; None but in mode ``secure``.
        shuffled: Whether all its reports came through a shuffler, as the plan demands.

    Both arrays are read-only views: answers keep what they compute from them.
    """

    plan: Plan
    kind: str
    window: int | None
    counters: Counters
    counts: Counters
    guarantee: Guarantee
    accounted: bool
    submissions: int | None = None
    cohorts: int | None = None
    shuffled: bool = False

    def __post_init__(self) -> None:
        for name in ("counters", "counts"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def count(self) -> float:
        """The noisy number of records: unbiased, and maybe below 0. Of reports the exact one, for it is visible."""
        return query.count(self.plan, self.counts)

    def count_of(self, label: str) -> float:
        """The noisy number of records of one class."""
        return query.count(self.plan, self.counts, label=label, counters=self.counters)

    def kernel_sum(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """Estimates of Σ k(x, q) over all records, at (m, d) queries or m sets, with standard errors.

        Args:
            queries: Where to ask: an array, or a table with the plan's columns (:meth:`hushsum.Sketch.add`).
            label: Over the records of this class alone.
            groups: The median of the means of so many groups of rows instead of the mean (RACE, Lemma 3.3). It badly
                underestimates where few records are near: a warning says so.

        Raises:
            RecordError: The queries cannot be used, or there is no such class.
            ValueError: The sketch has no such groups.
        """
        return query.kernel_sum(
            self.plan,
            self.counters,
            read_queries(self.plan, queries),
            label=label,
            groups=groups,
            submissions=self.submissions,
            prepared=self._prepared,
        )

    def density(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """The mean kernel at each query, in [0, 1] but for noise: :meth:`kernel_sum` over the number of records.

        It is no probability density: how similar a record is to the query on average. The number of records is the
        noisy one, and at least 1. Arguments and errors are those of :meth:`kernel_sum`.
        """
        return query.density(
            self.plan,
            self.counters,
            self.counts,
            read_queries(self.plan, queries),
            label=label,
            groups=groups,
            submissions=self.submissions,
            prepared=self._prepared,
        )

    @cached_property
    def _prepared(self) -> query.Prepared:
        """Computed at the first query and kept: at most the size of the counters again."""
        return query.prepare(self.plan, self.counters)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is made from the fields alone, and computes anew what its answers share."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def statement(self) -> str:
        """What is promised, and what that tells about one unit, in plain words (what is left: `Ledger.statement`)."""
        spend = spend_of(self.plan, kind=self.kind, window=self.window)
        told = spend_told(spend, delta=self.plan.privacy.total_delta, own_delta=self.guarantee.delta)
        promised = self.guarantee.statement(accounted=self.accounted, windowed=self.window is not None)
        return " ".join(part for part in (promised, self._contributors(), self._amplified(), told) if part)

    @property
    def amplified(self) -> Cost | None:
        """What holds beside the guarantee against those who see nothing before the shuffler.

        None where the reports did not come through one, and where it is not proven to say more than the guarantee.
        """
        privacy = self.plan.privacy
        if not self.shuffled or privacy.local is None or int(self.counts.sum()) < privacy.local.shuffle_min:
            return None
        m = privacy.records_per_client or 1
        epsilon = amplified(privacy.mechanism.scale, privacy.local.shuffle_min, privacy.delta, m)
        return None if epsilon is None else Cost(epsilon, privacy.delta)

    def _contributors(self) -> str:
        if self.plan.privacy.local is not None:
            return contributors_text(self.submissions, self.counts, self.plan.privacy.mechanism)
        if self.submissions is None:
            return ""
        clients, cohorts = (
            f"{number:,} {noun}{'' if number == 1 else 's'}"
            for number, noun in ((self.submissions, "client"), (self.cohorts or 0, "cohort"))
        )
        return f"It is the sum of {clients} in {cohorts}."

    def _amplified(self) -> str:
        local, m = self.plan.privacy.local, self.plan.privacy.records_per_client
        if not self.shuffled or local is None or self.plan.privacy.reports is None:
            return ""
        return shuffled_text(self.amplified, local.shuffle_min, m)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a ``.hush`` file: after a crash there is the whole of it, or what was there before."""
        target = Path(path)
        new = target.with_name(f".{target.name}.{OsEntropy().read(8).hex()}")
        try:
            with new.open("xb") as file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            new.replace(target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_folder(target.absolute().parent)

    def to_bytes(self) -> bytes:
        """The bytes of a ``.hush`` file."""
        shape, about = self.counters.shape, (self.submissions, self.cohorts, self.shuffled)
        header = Header(self.kind, self.window, shape, self.accounted, *about)
        return encode(self.plan, header, np.concatenate([self.counters.reshape(-1), self.counts]))

    @classmethod
    def from_bytes(cls, data: bytes, *, counters_max: int = COUNTERS_MAX) -> "Release":
        """The release of the bytes of a ``.hush`` file.

        Args:
            data: All of them.
            counters_max: A plan with more counters is refused before anything of that size is allocated.

        Raises:
            ReleaseError: Truncated, altered, larger than ``counters_max``, or of a newer format.
        """
        plan, header, values = decode(data, counters_max)
        size = prod(header.shape)
        counters, counts = values[:size].reshape(header.shape), values[size:]
        if plan.privacy.reports is not None:
            check_reports(plan, header, counters, counts)
        about = (plan.guarantee, header.accounted, header.submissions, header.cohorts, header.shuffled)
        return cls(plan, header.kind, header.window, counters, counts, *about)

    def __repr__(self) -> str:
        delta = f", δ={numeral(self.guarantee.delta, up=True)}" if self.guarantee.delta else ""
        promise = f"ε={numeral(self.guarantee.epsilon, up=True)}{delta} per {self.guarantee.unit}"
        where = "" if self.window is None else f", window={self.window}"
        accounting = "" if self.accounted else ", unaccounted"
        return f"Release({self.plan.name!r}{where}, {promise}{accounting})"


def load(path: str | PathLike[str], *, counters_max: int = COUNTERS_MAX) -> Release:
    """The release in a ``.hush`` file, of at most ``counters_max`` counters (8 bytes each in memory).

    Raises:
        ReleaseError: Truncated, altered, larger than that, or of a newer format.
    """
    return Release.from_bytes(Path(path).read_bytes(), counters_max=counters_max)
