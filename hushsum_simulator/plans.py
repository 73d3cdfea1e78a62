"""The plan of a run in each mode: the user's, or one that fits the records.

A run in local mode that was given no plan gets its ``[privacy]``, the size of its sketch and its windows here; a run in
secure mode cohorts that its clients fit into.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families import SetRecords
from hushsum.local.errors import best_width
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import LOCAL, SECURE
from hushsum.privacy.local_mode import K_RR, ONE_BIT, PROJECTIVE, REPORT, SHUFFLE_MAX, SILO
from hushsum_simulator.data import Floats, Records
from hushsum_simulator.errors import RecordsError, SettingsConflictError

# R = 1000 rows of W = 1024 buckets are the published settings (RACE, section 6), and 8 MB of counters. The error of an
# answer is then the hash's alone at any useful ε: noise adds √(2R)/ε = 45 records to kernel sums of thousands. R is a
# multiple of the 8 sets that rows of Sobol points come in by default.
_SOBOL_DIM: Final = 20  # up to which Sobol rows were seen to err less than independent ones
Tables = Mapping[str, Mapping[str, object]]
NO_TABLES: Final[Tables] = {}
#: Of a run's own plan in central mode.
CENTRAL_SIZES: Final[Mapping[str, object]] = {"rows": 1000, "buckets": 1024}
# In secure mode every client draws noise for every counter, masks all of them with each of its neighbours, and sends
# them all: a tenth of the counters, so that two cohorts of a hundred clients are done within a minute on two cores.
# With δ > 0 the noise of an answer is the same for any R, and so rows are kept at the cost of buckets.
_SECURE_SIZES: Final[Mapping[str, object]] = {"rows": 800, "buckets": 128}
# Clients take part in every window that is open, and the hour that has just ended still is: a run is about one window.
_SECURE_WINDOW: Final = {"length": "30d"}
# Bandwidth 5 of a cube of 255: RACE's for skin colours in RGB. For other records the same share of the box's diagonal.
_COLOUR_BANDWIDTH: Final = 5
_DIAGONALS: Final = 441.673 / _COLOUR_BANDWIDTH
_PURE: Final = Fraction(0)
_LEAST_DELTA: Final = Fraction(1, 10**9)  # pure ε in secure mode: above what the protocol itself may fail by
# The population's δ: where failures of the protocol are charged beside zCDP, an eighth of it is kept for them, and zCDP
# is converted at the rest, which is to be no less than the plan's own δ.
_DELTA_KEPT: Final = Fraction(6, 5)
_TOTAL: Final = 10  # the population's limit, in releases of this ε that add up


def load(path: Path, parameters: Iterable[npt.ArrayLike] = ()) -> Plan:
    """A made ``plan.json``, or a ``plan.toml`` that is made now, with the arrays that it names by their digests.

    Raises:
        PlanError: It is not a plan.
        OSError: It cannot be read.
    """
    data = path.read_bytes()
    if data.lstrip().startswith(b"{"):
        return Plan.from_bytes(data)
    try:
        return Plan.from_toml(data.decode("utf-8") + "\n", parameters)
    except UnicodeDecodeError as error:
        raise PlanError("plan", str(path), "TOML in UTF-8, or the canonical bytes of a made plan") from error


def refuse_incomparable(plan: Plan) -> None:
    """Refuses a plan whose release a run cannot compare with the truth, which is a density of vectors.

    Raises:
        PlanError: It collects sets, or is of the paired family.
    """
    if isinstance(plan.record, SetRecords):
        instead = "start hushsum serve, contribute with edge_client and ask with hushsum query --at 3,17,29"
        raise PlanError("record.kind", "set", f"'vector': simulate compares densities; for sets, {instead}")
    if plan.family.name == "paired":
        instead = "start hushsum serve, contribute with hushsum send and fit the release with hushsum.fitting"
        raise PlanError("sketch.family", "paired", f"another: simulate compares densities; for models, {instead}")


def of_photograph(privacy: Mapping[str, object], seed: int, tables: Tables = NO_TABLES) -> Plan:
    """The plan of 8-bit colours: its bounds are those of every picture.

    Args:
        privacy: ``[privacy]``.
        seed: Of the hash.
        tables: Keys of ``[sketch]`` and ``[window]`` instead of those that a run takes.
    """
    record = {"lower": [0, 0, 0], "upper": [255, 255, 255], "names": ["red", "green", "blue"]}
    return _plan("pixel-colours", record, _COLOUR_BANDWIDTH, privacy, seed, tables)


def of_file(records: Records, privacy: Mapping[str, object], seed: int, tables: Tables = NO_TABLES) -> Plan:
    """A plan whose bounds are the file's own extremes: good enough to try things out, and not private.

    Args:
        records: The file's.
        privacy: ``[privacy]``.
        seed: Of the hash.
        tables: As of :func:`of_photograph`.

    Raises:
        RecordsError: No usable record.
        PlanError: Bounds that no plan can have.
    """
    lower, upper = _extremes(records.values)
    diagonal = float(np.sqrt(np.sum((upper - lower) ** 2)))
    bandwidth = Context(prec=2, rounding=ROUND_UP).create_decimal(Decimal(diagonal / _DIAGONALS))
    record: dict[str, object] = {"lower": lower.tolist(), "upper": upper.tolist()}
    if len(set(records.names)) == len(records.names):
        record["names"] = list(records.names)
    return _plan(Path(records.source).stem or "records", record, bandwidth, privacy, seed, tables)


def privacy_table(
    epsilon: Fraction, unit: str, records_per_client: int | None, *, delta: Fraction = _PURE
) -> dict[str, object]:
    """``[privacy]`` of a run's own plan, with room for ten such releases in the population's ledger."""
    table: dict[str, object] = {"epsilon": epsilon, "total_epsilon": _TOTAL * epsilon, "unit": unit}
    if delta:
        table |= {"delta": delta, "total_delta": delta}
    if records_per_client is not None:
        table["records_per_client"] = records_per_client
    return table


def secure_table(
    epsilon: Fraction, unit: str, records_per_client: int | None, *, delta: Fraction, cohort: Cohort
) -> dict[str, object]:
    """The same of a run in secure mode. The population's δ also pays for a protocol that may fail."""
    table = privacy_table(epsilon, unit, records_per_client, delta=delta)
    secure = {key: value for key, value in cohort.to_fields().items() if key not in ("suite", "adversary", "directory")}
    return {**table, "mode": SECURE, "total_delta": max(_DELTA_KEPT * delta, _LEAST_DELTA), "secure": secure}


def central_twin(plan: Plan) -> Plan:
    """The plan of the same sketch, ε and δ in central mode, where one server adds up and draws the noise."""
    return plan.replace_privacy(mode=None, secure=None, total_delta=max(plan.privacy.delta, plan.privacy.total_delta))


def _plan(
    name: str,
    record: Mapping[str, object],
    bandwidth: int | Decimal,
    privacy: Mapping[str, object],
    seed: int,
    tables: Tables,
) -> Plan:
    lower = record["lower"]
    assert isinstance(lower, list), "both callers write a list"
    mode = privacy.get("mode")
    window: Mapping[str, object] = {}
    kernel = {"bandwidth": bandwidth, "draws": "sobol" if len(lower) <= _SOBOL_DIM else "independent"}
    sketch: dict[str, object] = {"family": "hashed", "kernel": "euclidean", **kernel, **CENTRAL_SIZES}
    if mode == SECURE:
        sketch, window = {**sketch, **_SECURE_SIZES}, _SECURE_WINDOW
    elif mode == LOCAL:
        sketch, window = local_sketch_keys(privacy, kernel), local_window_keys(privacy)
    record = {"kind": "vector", "dim": len(lower), **record}
    sketch, window = {**sketch, "seed": seed, **tables.get("sketch", {})}, {**window, **tables.get("window", {})}
    return Plan(name=name, record=record, sketch=sketch, privacy=privacy, window=window)


def _extremes(values: Floats) -> tuple[Floats, Floats]:
    usable = values[np.isfinite(values).all(axis=1)]
    if not len(usable):
        raise RecordsError("expected at least one record without missing values, got none")
    lower, upper = usable.min(axis=0), usable.max(axis=0)
    lower = lower + 0.0  # a minimum of -0.0 is 0
    flat = upper <= lower
    upper[flat] = lower[flat] + np.maximum(1.0, np.abs(lower[flat]) * 1e-3)
    return lower, upper


# Each report names one row: more rows cost no noise and take off what the hash errs by. At 4,000 rows as wide as ε = 4
# wants them, what is left of that is below what the randomiser adds, and a report is 3 bytes.
_K_RR_ROWS: Final = 4000
# A projective response wants wide rows whatever ε is; its points are more than its buckets, and each has a counter.
_PROJECTIVE: Final = {"rows": 1000, "buckets": 256}
_PAIRS: Final = 2000
# Every silo noises, packs and sends every counter. With δ > 0 the noise of an answer is the same for any R.
_SILO: Final = {"rows": 800, "buckets": 128}
_LOCAL_DELTA: Final = Fraction(1, 10**6)  # of a silo's Gaussian noise, and of what is said of shuffled reports
#: ε of a run that is asked for none: a report bears all noise by itself.
LOCAL_EPSILON: Final = {REPORT: Fraction(4), SILO: Fraction(1)}
# A silo submits in every window that is open, and the hour that has just ended still is: a run is about one window.
_SILO_WINDOW: Final = {"length": "30d"}
# A shuffler forwards after a window's end: short ones, so that a run need not wait for long.
_SHUFFLED_WINDOW: Final = {"length": "10s", "lateness": "8s"}


def local_privacy_keys(
    *, form: str, randomiser: str | None, delta: Fraction | None, shuffled: bool, reports: int
) -> dict[str, object]:
    """What ``[privacy]`` of such a plan has beside ε, the unit and the population's limit.

    Args:
        form: ``report`` or ``silo``.
        randomiser: Of reports; None is ``k-rr``.
        delta: None: none with reports, 10⁻⁶ of a silo or of shuffled reports.
        shuffled: Whether a shuffler stands before the server.
        reports: How many there will be; a shuffled batch has at least half as many.
    """
    if form == SILO:
        delta = _LOCAL_DELTA if delta is None else delta
        keys: dict[str, object] = {"mode": LOCAL, "local": {"form": SILO}}
        return keys | ({"delta": delta, "total_delta": delta} if delta else {})
    local: dict[str, object] = {"form": REPORT, "randomiser": randomiser or K_RR}
    keys = {"mode": LOCAL, "local": local}
    if shuffled:
        local["shuffle_min"] = max(1, min(reports // 2, SHUFFLE_MAX))
        keys["delta"] = delta or _LOCAL_DELTA
    elif delta:
        keys["delta"] = delta  # the plan's own words say what is wrong with it
    return keys


def local_sketch_keys(privacy: Mapping[str, object], kernel: Mapping[str, object]) -> dict[str, object]:
    """``[sketch]`` without its seed, of a size that goes with ``[privacy]``.

    Args:
        privacy: Of mode ``local``.
        kernel: ``bandwidth`` and ``draws`` as in other modes.
    """
    local = privacy["local"]
    assert isinstance(local, dict), "of a run's own plan"
    hashed = {"family": "hashed", "kernel": "euclidean", **kernel}
    if local["form"] == SILO:
        return {**hashed, **_SILO}
    if local["randomiser"] == PROJECTIVE:
        return {**hashed, **_PROJECTIVE}
    if local["randomiser"] == ONE_BIT:
        return {"family": "fourier", "kernel": "gaussian", **kernel, "rows": _PAIRS}
    return {**hashed, "rows": _K_RR_ROWS, "buckets": _advised_width(privacy)}


def local_window_keys(privacy: Mapping[str, object]) -> Mapping[str, object]:
    """``[window]`` of such a plan."""
    local = privacy["local"]
    assert isinstance(local, dict), "of a run's own plan"
    if local["form"] == SILO:
        return _SILO_WINDOW
    return _SHUFFLED_WINDOW if local.get("shuffle_min") else {}


def central_twin_of_local(plan: Plan, sizes: Mapping[str, object]) -> Plan:
    """The plan of the same records, kernel, ε and δ in central mode, where one server adds up and draws the noise.

    Args:
        plan: Of mode ``local``.
        sizes: Keys of ``[sketch]`` that central mode would take otherwise.
    """
    fields = plan.to_fields()
    del fields["format"]
    window = {key: value for key, value in plan.window.to_fields().items() if key not in ("min_reports", "min_clients")}
    of_reports = plan.privacy.reports is not None
    changes: dict[str, object] = {"mode": None, "local": None, **({"delta": 0, "total_delta": 0} if of_reports else {})}
    sketch = {"family": plan.family.name, **plan.family.to_fields(), **sizes}
    tables = {"sketch": sketch, "window": window, "privacy": plan.privacy.changed(changes)}
    return Plan.from_fields({**fields, **tables}, plan.parameters)


def _advised_width(privacy: Mapping[str, object]) -> int:
    """W of k-rr for which a record adds the least variance."""
    epsilon, m = privacy["epsilon"], privacy.get("records_per_client", 1)
    assert isinstance(epsilon, Fraction), "as the run was told"
    assert isinstance(m, int), "as well"
    return best_width(Fraction(math.exp(min(float(epsilon) / m, 20.0))))


_USUAL: Final = 100  # the plan's own default
_DROPOUT_MIN: Final = Fraction(1, 10)
_DROPOUT_MAX: Final = Fraction(1, 2)
# Whoever vanishes while it waits is missing in the last cohort, which then starts after this wait. Long enough for a
# whole fleet to come: a cohort that starts early leaves too few for the last.
_WAIT_MS: Final = 8000


def fit(clients: int, *, size: int | None, dropout_rate: float) -> Cohort:
    """Cohorts of about a hundred, or of the size that was asked for, that can lose those that are to vanish.

    Args:
        clients: That take part.
        size: N; None chooses.
        dropout_rate: The share of the clients that will vanish.

    Raises:
        SettingsConflictError: Clients would be left over, or no round of this size can lose as many as are to vanish.
    """
    cohorts = max(1, round(clients / (size or _USUAL)))
    each = size or -(-clients // cohorts)
    lost = _losses(each, clients, dropout_rate)
    dropout = max(_DROPOUT_MIN, Fraction(lost, each))
    if dropout >= _DROPOUT_MAX:
        raise SettingsConflictError(_too_many(each, clients, dropout_rate, lost, "none goes on without half of them"))
    try:
        return Cohort(size=each, dropout=_written(dropout, each), wait_ms=_WAIT_MS)
    except PlanError as error:
        raise SettingsConflictError(_too_many(each, clients, dropout_rate, lost, str(error))) from error


def require_room(cohort: Cohort, clients: int, dropout_rate: float) -> None:
    """Refuses a run in which not every client can be in a sum.

    Raises:
        SettingsConflictError: A round would most likely lose more members than it can, or the plan states a pool, of
            which the last clients are in no cohort.
    """
    if cohort.pool:
        raise SettingsConflictError(
            f"the plan draws cohorts from a pool of {cohort.pool}, so that up to {cohort.pool - 1} clients of a window "
            "are in none, and a run compares the release with all of them: leave corrupt_clients and pool out of the "
            "plan (hushsum plan advise says what they cost)"
        )
    lost, most = _losses(cohort.size, clients, dropout_rate), cohort.size - cohort.survivors_min
    if lost > most:
        raise SettingsConflictError(
            f"a round of the plan's {cohort.size} members can lose {most}; with {clients} clients and --dropout-rate "
            f"{dropout_rate:g} it could lose {lost}: raise the plan's privacy.secure.dropout, or ask for fewer dropouts"
        )


def tolerated(cohort: int, cohorts: int, clients: int, vanishing: int) -> int:
    """How many members a round must be able to lose, so that a run comes to its end but once in a million.

    Cohorts are formed as clients arrive, so one cohort may get more than its part of those that vanish: their number in
    it is hypergeometric. The last cohort is also short of what fills no cohort.

    Args:
        cohort: N.
        cohorts: How many there are.
        clients: Of them all.
        vanishing: Of these.
    """
    from scipy.stats import hypergeom

    worst = int(hypergeom(clients, vanishing, min(cohort, clients)).isf(1e-6 / cohorts)) if vanishing else 0
    return min(vanishing, worst) + max(0, cohort * cohorts - clients)


def _too_many(size: int, clients: int, dropout_rate: float, lost: int, why: str) -> str:
    return (
        f"--dropout-rate {dropout_rate:g}: cohorts of {size} of {clients} clients could miss {lost} each ({why}); ask "
        "for fewer dropouts, or for another --cohort"
    )


def _losses(size: int, clients: int, dropout_rate: float) -> int:
    """How many members a cohort can miss but once in a million runs, those that vanish and those that never were.

    Raises:
        SettingsConflictError: Clients would be left over that fill no cohort.
    """
    cohorts = -(-clients // size)
    if 2 * (missing := cohorts * size - clients) >= size:
        raise SettingsConflictError(
            f"{clients} clients do not fit into cohorts of {size}: the last {size - missing} fill none; choose "
            "--cohort so that it divides --clients"
        )
    return tolerated(size, cohorts, clients, round(dropout_rate * clients))


def _written(dropout: Fraction, size: int) -> Fraction:
    """A short decimal that leaves the same whole number of members."""
    members = dropout.numerator * size // dropout.denominator
    for digits in range(1, 7):
        short = Fraction(-(-members * 10**digits // size), 10**digits)
        if short.numerator * size // short.denominator == members:
            return short
    raise AssertionError("a cohort of 10,000 needs four digits")
