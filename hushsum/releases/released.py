"""A release: what anybody may see, saved, loaded and queried for ever."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.errors import DroppedRecordsWarning, NoUsableRecordsError, RecordError, ReleaseError, warn
from hushsum.fsync import write_whole
from hushsum.notebook import pairs_html
from hushsum.plan import Plan
from hushsum.privacy.accountant import Limits
from hushsum.privacy.events import CUMULATIVE
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.ledger import Ledger
from hushsum.privacy.mode_statements import contributors_text, shuffled_text
from hushsum.privacy.relations import Cost
from hushsum.privacy.shuffle_amplification import amplified
from hushsum.privacy.spending import spend_of
from hushsum.privacy.statement import spend_told
from hushsum.release_format import COUNTERS_MAX, Header, check_reports, decode, encode
from hushsum.releases.query_methods import QueryMethods
from hushsum.sketch import Sketch
from hushsum.tables import read_file, rows_have_names, table_of

if TYPE_CHECKING:
    from hushsum.proposal import Bounds

Counters = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Release(QueryMethods):
    """A differentially private sketch: it may be published, and answers any number of queries.

    Attributes:
        plan: Whose counters these are.
        kind: ``tumbling`` (one window), ``cumulative`` (all windows so far) or ``in-process`` (a sketch built by an
            analyst).
        window: Index of the window, of a cumulative release the last one; None without one.
        counters: int64, (classes, shape of the family...): the noised integers. Of reports (1, R, outputs): how many
            came of each row and output, which queries undo.
        counts: int64, (classes,): the noised count counters; (0,) where the plan has none. Of reports (1,): how many
            came, exactly.
        guarantee: (ε, δ), whose, between which neighbours, and by which mechanism.
        accounted: Whether a ledger was charged.
        submissions: How many clients are in it, where each drew noise, or a share of it; None for others and reports.
        cohorts: Of how many cohorts it is the sum; None but in mode ``secure``.
        shuffled: Whether all its reports came through a shuffler, as the plan demands.
        step: Of a cumulative release: its number in the sequence, from 1 on; None for others.
        first_window: Of a cumulative release: index of the first window of the sequence; None for others.
        new_ledger: The path of the ledger that :meth:`from_data` charged, if it had no spend before; empty for all
            others. It shows in the repr and is not saved.

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
    step: int | None = None
    first_window: int | None = None
    new_ledger: str = ""

    def __post_init__(self) -> None:
        if self.counts.shape != (self.plan.count_counters,):
            came, expected = self.counts.shape, (self.plan.count_counters,)
            raise ReleaseError(f"count counters of shape {came}, expected {expected}: those of the plan")
        for name in ("counters", "counts"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_data(  # noqa: PLR0913 -- one argument a question
        cls,
        data: Any,
        *,
        bounds: "Bounds",
        epsilon: object,
        ledger: Ledger | str | PathLike[str] | None = None,
        total_epsilon: object = None,
        delta: object = None,
        question: str = "density",
        columns: Sequence[str] | None = None,
        target: str | None = None,
        labels: object = None,
        classes: Sequence[str] = (),
        clients: Any = None,
        records_per_client: int | None = None,
        records: int | None = None,
        bandwidth: object = None,
        name: str = "data",
    ) -> "Release":
        """The private release of a table or an array, by a plan that is proposed from public bounds and what is said.

        The plan is :func:`hushsum.proposal.propose`'s, in mode ``central``; nothing of it depends on the data. Records
        are added as :meth:`hushsum.Sketch.add` does, the ledger is charged as :func:`hushsum.release` does.

        Args:
            data: What :meth:`hushsum.Sketch.add` takes: a data frame, an Arrow table, a mapping, a list of dicts, the
                path of a CSV, Parquet or ``.npy`` file, or an array (n, d).
            bounds: For each column its public lower and upper bound, by its name: ``{"x": (0, 10)}``; of an array,
                whose columns have no names, a list of d pairs. They must be known without the data.
            epsilon: ε of this release.
            ledger: A ledger or its path; None: the release says "unaccounted". A file that is not there is created. The
                repr of the release names a ledger that had no spend before: it is a new budget and counts no earlier
                release.
            total_epsilon: The most that all releases of the ledger may spend in all. None: what the ledger allows; of a
                new one ε, so that it pays for this release and no other.
            delta: δ; None: 0.
            question: ``density``, ``outliers``, ``classes``, ``histogram`` or ``regression``.
            columns: To take; None: all but those of labels and clients. Each needs its bounds.
            target: For ``regression`` the column of a table to predict; None: the last of the bounds.
            labels: For classes, the name of their column, or n labels.
            classes: All labels that records may have.
            clients: For unit ``client``, the name of their column, or n ids.
            records_per_client: For unit ``client``, the most records of one.
            records: About how many there are, from public knowledge; None: 100,000. It sizes the sketch.
            bandwidth: Of the kernel, as a share of the width of the bounds, from public knowledge; None: see
                :func:`hushsum.proposal.propose`.
            name: Of the plan.

        Warns:
            DroppedRecordsWarning: Some records, or all, were left out: how many, and why. All the same there is a
                release, for a single record may not decide whether there is one.
            ClippedRecordsWarning: Some lay outside the bounds.

        Raises:
            RecordError: A column has no bounds, or the data cannot be read. Nothing was charged.
            ValueError: Answers that contradict each other.
            PlanError: There is no such plan.
            ContributionError: A client has more records than ``records_per_client``.
            BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
        """
        from hushsum.proposal import bounds_of, propose  # which is not loaded otherwise
        from hushsum.releases import release  # which makes objects of this class

        if (clients is None) != (records_per_client is None):
            raise ValueError("clients: expected together with records_per_client, for unit 'client', or neither")
        others = [column for column in (labels, clients) if isinstance(column, str)]
        if isinstance(data, str | PathLike):
            named = [str(column) for column in bounds] if isinstance(bounds, Mapping) else []
            data = read_file(data, names=named, texts=others)
        table = table_of(data)
        if table is None and target is not None:
            raise ValueError(
                "target: expected a table with names of columns; of an array the last column is the target"
            )
        if table is not None and columns is None:
            columns = [column for column in table.names if column not in others]
        if columns is not None:
            bounds = bounds_of(columns, bounds)
        elif isinstance(bounds, Mapping) and not rows_have_names(data):
            raise RecordError(
                "bounds: got them by names, but the columns of the data have none: "
                "give a list of pairs in the order of its columns"
            )
        limits = limits_of(ledger)
        proposal = propose(
            bounds,
            epsilon=epsilon,
            total_epsilon=(limits.epsilon if limits else epsilon) if total_epsilon is None else total_epsilon,
            delta=delta,
            total_delta=limits.delta if limits and limits.delta else None,
            question=question,
            target=target,
            classes=classes,
            records=records,
            records_per_client=records_per_client,
            bandwidth=bandwidth,
            name=name,
        )
        sketch = Sketch(proposal.plan)
        taken = None if columns is None else proposal.plan.collection.names
        try:
            sketch.add(data, clients=clients, labels=labels, columns=taken)
        except NoUsableRecordsError as error:  # released all the same: a single record would decide it otherwise
            warn(DroppedRecordsWarning(str(error)))
        if ledger is None or isinstance(ledger, Ledger):
            return release(sketch, ledger=ledger)
        with Ledger(ledger) as opened:
            is_new = not opened.events()
            made = release(sketch, ledger=opened)
            return replace(made, new_ledger=os.fspath(ledger)) if is_new else made

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last window that it is of; None for a sketch that was built in process."""
        if self.window is None:
            return None
        return (self.window if self.first_window is None else self.first_window), self.window

    @property
    def draws(self) -> float | None:
        """The variance of the noise on one counter, in variances of one draw of the plan's noise; None: of one draw.

        In a secure sum each client drew a share of 1/h of it, in a silo all of it; in a cumulative release it is the
        sum of what its step has of earlier draws.
        """
        if self.step is not None:
            return query.noise_covariance(self.plan, self.step, self.step)
        return None if self.submissions is None else query.draws_of(self.plan, self.submissions)

    @property
    def steps(self) -> tuple[int, int] | None:
        """0 and its step, of a cumulative release; None for others."""
        return None if self.step is None else (0, self.step)

    @property
    def windows(self) -> int:
        """How many windows its records are of; 1 without windows."""
        return self.step or 1

    @property
    def period_ms(self) -> tuple[int, int] | None:
        """When its first window begins and its last ends, in ms since 1970 UTC; None without windows."""
        if self.span is None:
            return None
        first, last = self.span
        return self.plan.window.start_ms(first), self.plan.window.end_ms(last)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is made from the fields alone, and computes anew what its answers share."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def statement(self) -> str:
        """The guarantee and what it means for one unit, in plain words; for the budget see `Ledger.statement`."""
        spend = spend_of(self.plan, kind=self.kind, window=None if self.kind == CUMULATIVE else self.window)
        told = spend_told(spend, delta=self.plan.privacy.total_delta, own_delta=self.guarantee.delta)
        promised = self.guarantee.statement(accounted=self.accounted, windowed=self.window is not None)
        return " ".join(part for part in (promised, self._contributors(), self._amplified(), told) if part)

    @property
    def amplified(self) -> Cost | None:
        """The amplified (ε, δ) against observers after the shuffler; None if there is none.

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

    def save(self, path: str | PathLike[str], *, replace: bool = True) -> None:
        """Writes a ``.hush`` file: after a crash there is the whole of it, or what was there before.

        Args:
            path: The file.
            replace: Whether it replaces a file of this name. If not, none is replaced, also if another process creates
                it while this one is written.

        Raises:
            FileExistsError: The name exists, as a file or a link, and ``replace`` is false. It stays as it is.
            OSError: The file cannot be written.
        """
        write_whole(Path(path), self.to_bytes(), replace=replace)

    def to_bytes(self) -> bytes:
        """The bytes of a ``.hush`` file."""
        shape = self.counters.shape
        about = (self.submissions, self.cohorts, self.shuffled, self.step, self.first_window)
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
        sequence = (header.step, header.first_window)
        return cls(plan, header.kind, header.window, counters, counts, *about, *sequence)

    def _repr_html_(self) -> str:
        where = "released in process" if self.window is None else f"window {self.window:,}"
        if self.first_window is not None:
            where = f"windows {self.first_window:,} to {self.window:,}, step {self.step:,}"
        error = query.count_std_error(self.plan, draws=self.draws, counters=self.counters)
        counted = f"{self.count:,.0f}" + (f" ± {error:,.3g}" if error else "")
        pairs = [
            ("records", f"{counted}{'' if self.plan.report_sizes else ': their noisy number'}"),
            ("window", where),
            *self.plan.summary(),
            ("ledger", self._new_ledger_text or ("charged" if self.accounted else "none: unaccounted")),
        ]
        return pairs_html(f"Release of {self.plan.name}", pairs)

    def __repr__(self) -> str:
        delta = f", δ={numeral(self.guarantee.delta, up=True)}" if self.guarantee.delta else ""
        promise = f"ε={numeral(self.guarantee.epsilon, up=True)}{delta} per {self.guarantee.unit}"
        where = "" if self.window is None else f", window={self.window}"
        if self.step is not None:
            where = f", windows={self.first_window} to {self.window}, step={self.step}"
        accounting = "" if self.accounted else ", unaccounted"
        if self.new_ledger:
            accounting = f", {self._new_ledger_text}"
        return f"Release({self.plan.name!r}{where}, {promise}, {self.plan.sketch_text}{accounting})"

    @property
    def _new_ledger_text(self) -> str:
        return f"new ledger {self.new_ledger}: it counts no earlier release" if self.new_ledger else ""


def limits_of(ledger: Ledger | str | PathLike[str] | None) -> Limits | None:
    """What a ledger allows; None where nothing was charged to it, or it is not there yet."""
    if ledger is None or isinstance(ledger, Ledger):
        return None if ledger is None else ledger.limits
    if not Path(ledger).exists():
        return None
    with Ledger(ledger, read_only=True) as opened:
        return opened.limits


def load(path: str | PathLike[str], *, counters_max: int = COUNTERS_MAX) -> Release:
    """The release in a ``.hush`` file, of at most ``counters_max`` counters (8 bytes each in memory).

    Raises:
        ReleaseError: Truncated, altered, larger than that, or of a newer format.
    """
    return Release.from_bytes(Path(path).read_bytes(), counters_max=counters_max)
