"""The input of a run: its settings, and the records, plan, queries and shares that follow from them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from hushsum.delta_sizes import RECORDS_MAX
from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.privacy.local_mode import REPORT
from hushsum.tables import Columns
from hushsum_simulator import plans
from hushsum_simulator.data import ClientRecords, Floats, Records, deal, hold_out, load, photograph
from hushsum_simulator.errors import RecordsError
from hushsum_simulator.plans import fit, require_room
from hushsum_simulator.progress import Progress

# Gaussian noise grows with the root of a sketch's rows, that of pure ε with their number.
_SECURE_DELTA: Final = Fraction(1, 10**6)
_BATCHES: Final = 4  # of a client in secure mode, on average


@dataclass(frozen=True)
class RunSettings:
    """The options of ``hushsum simulate``.

    Attributes:
        data: File of the user's records; None for the photograph's.
        columns: Of the user's records, by default all; as a mapping, by the names in the plan.
        label_column: Of the user's records, for a plan with classes.
        plan: A plan file; None makes a plan that fits the records.
        clients: Number of clients that the records are dealt out to.
        deltas: At least so many deltas, or one a record where there are fewer.
        queries: At most so many records are held out as queries.
        epsilon: None takes the plan's, or 1; with reports 4.
        delta: None takes the plan's, or 0; in secure mode, with silos and with a shuffler 10⁻⁶.
        unit: ``record`` or ``client``; None takes the plan's, or ``record``.
        records_per_client: For unit ``client`` only.
        partitions: Of the server's log.
        seed: Of the held-out records, the size of each client's share, and the hash of a plan that is made here.
        out: The folder of the results.
        mode: ``central``; or ``secure``: clients draw the noise, and the server sees only sums of cohorts; or
            ``local``: clients randomise their data.
        dropout_rate: Secure mode: the share of the clients that vanish.
        cohort: Secure mode: N; None takes the plan's, or chooses.
        form: Local mode: ``report`` or ``silo``.
        randomiser: Of reports; None takes ``k-rr``.
        shuffler: Of reports: whether a shuffler stands between the fleet and the server.
        windows: How many windows the records are dealt out to.
    """

    data: Path | None = None
    columns: Columns = ()
    label_column: str | None = None
    plan: Path | None = None
    clients: int = 200
    deltas: int = 5000
    queries: int = 2000
    epsilon: Fraction | None = None
    delta: Fraction | None = None
    unit: str | None = None
    records_per_client: int | None = None
    partitions: int = 1
    seed: int = 7
    out: Path = Path("out")
    mode: str = CENTRAL
    dropout_rate: float = 0.1
    cohort: int | None = None
    form: str = REPORT
    randomiser: str | None = None
    shuffler: bool = False
    windows: int = 1


@dataclass(frozen=True, eq=False)
class Material:
    """The data of a run.

    Attributes:
        shares: The records of each client.
        counted: (n, d): the records of all shares, in one array.
        queries: (m, d): the records that were held out.
        labels: n of them, of ``counted``; None without classes.
    """

    plan: Plan
    shares: list[ClientRecords]
    counted: Floats
    queries: Floats
    labels: tuple[str | None, ...] | None = None

    @property
    def labelled(self) -> Floats:
        """The records of ``counted`` whose labels are classes of the plan: a client drops the others."""
        return self.counted[self.plan.collection.class_indices(self.labels, len(self.counted)) >= 0]

    def only(self, clients: Collection[str]) -> "Material":
        """The same with the shares of these clients only."""
        return self.parts(
            {share.client_id: range(len(share.batches)) for share in self.shares if share.client_id in clients}
        )

    def parts(self, batches: Mapping[str, Sequence[int]]) -> "Material":
        """The same with these batches only: places in a client's share, by client id."""
        shares = [share.parts(batches[share.client_id]) for share in self.shares if share.client_id in batches]
        counted = np.concatenate([batch for share in shares for batch in share.batches] or [self.counted[:0]])
        return replace(self, shares=shares, counted=counted, labels=None if self.labels is None else _labels(shares))


def gather(settings: RunSettings, progress: Progress) -> Material:
    """Reads or makes records, plan, queries and shares.

    Raises:
        RecordsError: The records cannot be used, or do not fit the plan.
        PlanError: The plan cannot be used.
        SettingsConflictError: Options exclude each other.
    """
    declared = _declared(settings)
    source = (
        photograph()
        if settings.data is None
        else load(settings.data, settings.columns, settings.label_column, declared)
    )
    plan = declared or _fitting(settings, source, progress)
    if plan.classes and source.labels is None:
        raise RecordsError(f"{source.source}: the plan has classes; name the labels of --data with --label-column")
    if source.labels is not None and not plan.classes:
        raise RecordsError(f"{source.source}: the plan has no classes: remove --label-column")
    if source.values.shape[1] != plan.vectors.dim:
        columns = ", ".join(source.names)
        raise RecordsError(
            f"{source.source} has {source.values.shape[1]} columns ({columns}), the plan expects {plan.vectors.dim}; "
            "name the columns to take with --columns"
        )
    rest, queries = hold_out(source, settings.queries, settings.seed)
    shares = _dealt(settings, plan, rest)
    counted = np.concatenate([batch for share in shares for batch in share.batches])
    progress.step(f"{len(counted):,} records of {source.source}, {len(queries):,} more are held out as queries")
    return Material(plan, shares, counted, queries, _labels(shares) if plan.classes else None)


def _dealt(settings: RunSettings, plan: Plan, source: Records) -> list[ClientRecords]:
    deltas, bound = settings.deltas, plan.privacy.records_per_client
    if plan.privacy.mode == SECURE:
        if len(source.values) < settings.clients:
            raise RecordsError(f"{source.source}: {len(source.values)} records for {settings.clients} clients")
        deltas = _BATCHES * settings.clients  # they never leave their clients
        bound = bound or RECORDS_MAX
    if plan.privacy.is_silo:
        deltas = _BATCHES * settings.clients  # likewise
    return deal(
        source.values,
        clients=settings.clients,
        deltas=deltas,
        seed=settings.seed,
        records_per_client=bound,
        labels=source.labels,
    )


def _labels(shares: list[ClientRecords]) -> tuple[str | None, ...]:
    return tuple(label for share in shares for batch in share.labels or () for label in batch)


def _declared(settings: RunSettings) -> Plan | None:
    """The user's plan, which is checked before the records are read."""
    if settings.plan is None:
        return None
    plan = plans.load(settings.plan)
    plans.refuse_incomparable(plan)
    if plan.privacy.mode != settings.mode:
        mode = plan.privacy.mode
        raise PlanError("privacy.mode", mode, f"{settings.mode!r}, or --mode {mode} beside --plan")
    if plan.privacy.cohort is not None:
        require_room(plan.privacy.cohort, settings.clients, settings.dropout_rate)
    changes = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "unit": settings.unit,
        "records_per_client": settings.records_per_client,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    return plan.replace_privacy(**given) if given else plan


def _fitting(settings: RunSettings, source: Records, progress: Progress) -> Plan:
    """A new plan that fits the records."""
    unit = settings.unit or ("record" if settings.records_per_client is None else "client")
    epsilon, bound = settings.epsilon or Fraction(1), settings.records_per_client
    if settings.mode == LOCAL:
        privacy = _local_privacy(settings, source, unit)
    elif settings.mode == SECURE:
        found = fit(settings.clients, size=settings.cohort, dropout_rate=settings.dropout_rate)
        delta = _SECURE_DELTA if settings.delta is None else settings.delta
        privacy = plans.secure_table(epsilon, unit, bound, delta=delta, cohort=found)
    else:
        privacy = plans.privacy_table(epsilon, unit, bound, delta=settings.delta or Fraction(0))
    if settings.data is None:
        return plans.of_photograph(privacy, settings.seed)
    progress.warn("the plan's bounds are the minimum and maximum of the file: NOT private, only for trials; see --plan")
    return plans.of_file(source, privacy, settings.seed)


def _local_privacy(settings: RunSettings, source: Records, unit: str) -> dict[str, object]:
    left, bound = len(source.values) - settings.queries, settings.records_per_client
    table = plans.privacy_table(settings.epsilon or plans.LOCAL_EPSILON[settings.form], unit, bound)
    keys = plans.local_privacy_keys(
        form=settings.form,
        randomiser=settings.randomiser,
        delta=settings.delta,
        shuffled=settings.shuffler,
        reports=max(1, left if bound is None else min(left, bound * settings.clients)),
    )
    return {**table, **keys}
