"""The plan of a run: the user's, or one that fits the records."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families import SetRecords
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import LOCAL, SECURE
from simulator import local_plans
from simulator.errors import RecordsError
from simulator.records import Floats, Records

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
        sketch, window = local_plans.sketch_keys(privacy, kernel), local_plans.window_keys(privacy)
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
