"""The plan of a run in each mode: the user's, or one that fits the records and the number of clients."""

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
from hushsum.local.predicted_error import best_width
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import LOCAL, SECURE
from hushsum.privacy.local_mode import K_RR, ONE_BIT, PROJECTIVE, REPORT, SHUFFLE_MAX, SILO
from hushsum.schedule import ARRIVAL
from hushsum_simulator.data import Floats, Records
from hushsum_simulator.errors import RecordsError, SettingsConflictError

# R = 1000 rows of W = 1024 buckets are the published settings (RACE, section 6), and 8 MB of counters. The error of an
# answer is then that of the hash at any useful ε: noise adds √(2R)/ε = 45 records to kernel sums of thousands. R is a
# multiple of the 8 sets that rows of Sobol points come in by default.
_SOBOL_DIM: Final = 20  # up to which Sobol rows were seen to err less than independent ones
Tables = Mapping[str, Mapping[str, object]]
NO_TABLES: Final[Tables] = {}
#: Of a run's own plan in central mode.
CENTRAL_SIZES: Final[Mapping[str, object]] = {"rows": 1000, "buckets": 1024}
# A silo draws noise for every counter, and sends them all; in secure mode a client also masks all of them with each of
# its neighbours: a tenth of the counters, so that two cohorts of a hundred clients take a minute on two cores. With
# δ > 0 the noise of an answer is the same for any R, and so rows are kept at the cost of buckets.
_NOISED_SIZES: Final[Mapping[str, object]] = {"rows": 800, "buckets": 128}
# Clients and silos take part in every open window, and the hour that has just ended is open: a run is about one window.
_LONG_WINDOW: Final = {"length": "30d"}
# Bandwidth 5 of a cube of 255: RACE's for skin colours in RGB. For other records the same share of the box's diagonal.
_COLOUR_BANDWIDTH: Final = 5
_DIAGONALS: Final = 441.673 / _COLOUR_BANDWIDTH
_PURE: Final = Fraction(0)
_LEAST_DELTA: Final = Fraction(1, 10**9)  # pure ε in secure mode: above what the protocol itself may fail by
# The population's δ: where failures of the protocol are charged next to zCDP, an eighth of it is kept for them, and
# zCDP is converted at the rest, which is to be no less than the plan's own δ.
_DELTA_KEPT: Final = Fraction(6, 5)
_TOTAL: Final = 10  # the population's limit, in releases of this ε that add up


def load(path: Path, parameters: Iterable[npt.ArrayLike] = ()) -> Plan:
    """Reads a made ``plan.json``, or makes the plan of a ``plan.toml``, with the arrays that it names by their digests.

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
        raise PlanError("plan", str(path), "a plan in TOML (UTF-8), or a compiled plan") from error


def refuse_incomparable(plan: Plan) -> None:
    """Refuses a plan whose releases are no densities of vectors of a known window, which is all that a run compares.

    Raises:
        PlanError: It collects sets, is of the paired family, or its records belong to the window of their arrival.
    """
    if isinstance(plan.record, SetRecords):
        instead = "start hushsum serve, contribute with edge_client and ask with hushsum query --at 3,17,29"
        raise PlanError("record.kind", "set", f"'vector': simulate compares densities; for sets, {instead}")
    if plan.family.name == "paired":
        instead = "start hushsum serve, contribute with hushsum send and fit the release with hushsum.estimators"
        raise PlanError("sketch.family", "paired", f"another: simulate compares densities; for models, {instead}")
    if plan.window.time == ARRIVAL:
        instead = "make a plan with 'event' to try out; accuracy and noise are the same"
        raise PlanError("window.time", ARRIVAL, f"'event': simulate compares the records of one window; {instead}")


def of_photograph(privacy: Mapping[str, object], seed: int, tables: Tables = NO_TABLES) -> Plan:
    """The plan of 8-bit colours: its bounds are those of every picture.

    ``tables`` are keys of ``[sketch]`` and ``[window]`` that replace the defaults of a run.
    """
    record = {"lower": [0, 0, 0], "upper": [255, 255, 255], "names": ["red", "green", "blue"]}
    return _plan("pixel-colours", record, _COLOUR_BANDWIDTH, privacy, seed, tables)


def of_file(records: Records, privacy: Mapping[str, object], seed: int, tables: Tables = NO_TABLES) -> Plan:
    """A plan whose bounds are the file's own extremes: not private, and only for trying out; see :func:`of_photograph`.

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
    """The same in secure mode. The population's δ also pays for failures of the protocol."""
    table = privacy_table(epsilon, unit, records_per_client, delta=delta)
    secure = {key: value for key, value in cohort.to_fields().items() if key not in ("suite", "adversary", "directory")}
    return {**table, "mode": SECURE, "total_delta": max(_DELTA_KEPT * delta, _LEAST_DELTA), "secure": secure}


def central_twin(plan: Plan) -> Plan:
    """The plan of the same sketch, ε and δ in central mode, where one server sums up and draws the noise."""
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
        sketch, window = {**sketch, **_NOISED_SIZES}, _LONG_WINDOW
    elif mode == LOCAL:
        sketch, window = _local_tables(privacy, kernel)
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


# Each report names one row: more rows add no noise and reduce the error of the hash. At 4,000 rows as wide as ε = 4
# advises, that error is below the randomiser's, and a report has 3 bytes.
_K_RR_ROWS: Final = 4000
# A projective response wants wide rows whatever ε is; its points are more than its buckets, and each has a counter.
_PROJECTIVE: Final = {"rows": 1000, "buckets": 256}
_PAIRS: Final = 2000
_LOCAL_DELTA: Final = Fraction(1, 10**6)  # of a silo's Gaussian noise, and of the guarantee of shuffled reports
#: The default ε of a run: a report bears all noise by itself.
LOCAL_EPSILON: Final = {REPORT: Fraction(4), SILO: Fraction(1)}
# A shuffler forwards after a window's end: short windows make a short run.
_SHUFFLED_WINDOW: Final = {"length": "10s", "lateness": "8s"}


def local_privacy_keys(
    *, form: str, randomiser: str | None, delta: Fraction | None, shuffled: bool, reports: int
) -> dict[str, object]:
    """Keys of ``[privacy]`` of a plan of mode local, without ε, the unit and the population's limit.

    Args:
        form: ``report`` or ``silo``.
        randomiser: Of reports; None is ``k-rr``.
        delta: None: 10⁻⁶ with silos and a shuffler, else 0.
        shuffled: Whether a shuffler stands before the server.
        reports: Their number; a shuffled batch has at least half as many.
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
        keys["delta"] = delta  # the plan refuses it and says why
    return keys


def _local_tables(
    privacy: Mapping[str, object], kernel: Mapping[str, object]
) -> tuple[dict[str, object], Mapping[str, object]]:
    """``[sketch]`` without its seed, and ``[window]``, of sizes that suit ``[privacy]``."""
    local = privacy["local"]
    assert isinstance(local, dict), "of a run's own plan"
    sketch: dict[str, object] = {"family": "hashed", "kernel": "euclidean", **kernel}
    if local["form"] == SILO:
        return {**sketch, **_NOISED_SIZES}, _LONG_WINDOW
    window = _SHUFFLED_WINDOW if local.get("shuffle_min") else {}
    if local["randomiser"] == PROJECTIVE:
        return {**sketch, **_PROJECTIVE}, window
    if local["randomiser"] == ONE_BIT:
        return {**sketch, "family": "fourier", "kernel": "gaussian", "rows": _PAIRS}, window
    return {**sketch, "rows": _K_RR_ROWS, "buckets": _advised_width(privacy)}, window


def central_twin_of_local(plan: Plan, sizes: Mapping[str, object]) -> Plan:
    """The plan of the same records, kernel, ε and δ in central mode, with these keys of ``[sketch]`` changed."""
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
    assert isinstance(epsilon, Fraction), "of a run's own plan"
    assert isinstance(m, int), "likewise"
    return best_width(Fraction(math.exp(min(float(epsilon) / m, 20.0))))


_USUAL: Final = 100  # the plan's own default
_DROPOUT_MIN: Final = Fraction(1, 10)
_DROPOUT_MAX: Final = Fraction(1, 2)
# A client that vanishes while it waits is missing in the last cohort, which then starts after this wait. The wait is
# long enough for a whole fleet to connect: a cohort that starts early leaves too few for the last.
_WAIT_MS: Final = 8000


def fit(clients: int, *, size: int | None, dropout_rate: float) -> Cohort:
    """Cohorts of about a hundred clients, or of ``size``, that can lose the share of the clients that will vanish.

    Raises:
        SettingsConflictError: Clients would be left over, or no round of this size can lose as many as are to vanish.
    """
    cohorts = max(1, round(clients / (size or _USUAL)))
    each = size or -(-clients // cohorts)
    lost = _losses(each, clients, dropout_rate)
    dropout = max(_DROPOUT_MIN, Fraction(lost, each))
    if dropout >= _DROPOUT_MAX:
        raise SettingsConflictError(_too_many(each, clients, dropout_rate, lost, "a round ends without half of them"))
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
            f"the plan draws cohorts from a pool of {cohort.pool}, so up to {cohort.pool - 1} clients of a window are "
            "in no cohort, but a run compares the release with all clients: remove corrupt_clients and pool from the "
            "plan (hushsum plan advise shows their effect)"
        )
    lost, most = _losses(cohort.size, clients, dropout_rate), cohort.size - cohort.survivors_min
    if lost > most:
        raise SettingsConflictError(
            f"a round of the plan's {cohort.size} members can lose {most}; with {clients} clients and --dropout-rate "
            f"{dropout_rate:g} it could lose {lost}: raise the plan's privacy.secure.dropout, or lower --dropout-rate"
        )


def tolerated(cohort: int, cohorts: int, clients: int, vanishing: int) -> int:
    """How many of its N members a round must be able to lose, so that only one run in a million fails.

    Cohorts are formed as clients arrive, so one cohort may get more than its part of the vanishing clients: their
    number in it is hypergeometric. The last cohort also misses the clients that there are too few of.
    """
    from scipy.stats import hypergeom

    worst = int(hypergeom(clients, vanishing, min(cohort, clients)).isf(1e-6 / cohorts)) if vanishing else 0
    return min(vanishing, worst) + max(0, cohort * cohorts - clients)


def _too_many(size: int, clients: int, dropout_rate: float, lost: int, why: str) -> str:
    return (
        f"--dropout-rate {dropout_rate:g}: cohorts of {size} of {clients} clients could miss {lost} each ({why}); "
        "lower it, or use another --cohort"
    )


def _losses(size: int, clients: int, dropout_rate: float) -> int:
    """How many members a cohort can miss in all but one of a million runs: vanished ones, and unfilled places.

    Raises:
        SettingsConflictError: The last clients would fill no cohort.
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
