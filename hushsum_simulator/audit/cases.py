"""The audited cases: small plans, and data sets that differ by one unit, as real records of real clients.

An attacker sees a row of numbers of each window, from published outcomes alone. The attacker knows the plan, both
neighbouring data sets and the intended law of the noise; every difference must show in one of these numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, Final, Protocol

import numpy as np

from hushsum import query
from hushsum.canonical import real_text
from hushsum.plan import Plan
from hushsum.privacy.calibration import AUTO, calibrate
from hushsum.releases import Release
from hushsum_simulator.audit.report import Floats, Integers

TARGET: Final = "target"  # the client that the neighbours differ by; for unit record it also holds others' records
#: Keys of ``[privacy]`` for unit ``client``.
CLIENT: Final[Mapping[str, Any]] = {"unit": "client", "records_per_client": 2}

_TABLES: Final[Mapping[str, Mapping[str, object]]] = {
    "record": {"kind": "vector", "dim": 1, "lower": [0], "upper": [10]},
    "sketch": {"family": "hashed", "kernel": "euclidean", "bandwidth": 5, "rows": 1, "buckets": 2, "seed": 3},
    # Of any number of windows: unit client adds them up.
    "privacy": {"epsilon": 1, "total_epsilon": 10**9, "total_delta": "0.999999"},
    "window": {"length": "1h", "lateness": "0s"},
}
_GRID: Final = np.linspace(0.0, 10.0, 41)  # every pattern of buckets that one coordinate can show


@dataclass(frozen=True)
class Submission:
    """The records (n, 1) of one client in a window; NaN is an unusable record, n may be 0."""

    client: str
    records: Floats = field(repr=False)


DataSet = tuple[Submission, ...]


@dataclass(frozen=True)
class Case:
    """Two neighbouring data sets of one plan."""

    what: str
    plan: Plan
    first: DataSet = field(repr=False)
    second: DataSet = field(repr=False)


def plan_of(
    *, sketch: Any = None, record: Any = None, min_clients: Any = 0, counted: Any = True, **privacy: Any
) -> Plan:
    """A small plan: one row of two buckets, unless ``sketch`` says otherwise; ``privacy`` are keys of its table.

    It has a count counter; or with ``counted`` false what its maker chooses, which for small sketches is none.

    A key whose value is None is left out. With a δ its noise is Gaussian: of few rows a maker would take Laplace noise.
    """
    if "delta" in privacy and (privacy.get("mode") != "local" or privacy["local"].get("form") == "silo"):
        privacy.setdefault("noise", "gaussian")
    window: dict[str, object] = {"min_clients": min_clients} if min_clients else {}
    if privacy.get("mode") in {"secure", "local"}:
        window["lateness"] = "1m"  # in which cohorts fill, and devices submit after a window
    changes: Mapping[str, Mapping[str, object]] = {
        "record": record or {},
        "sketch": sketch or {},
        "privacy": privacy,
        "window": window,
    }
    tables = {
        name: {key: value for key, value in {**table, **changes[name]}.items() if value is not None}
        for name, table in _TABLES.items()
    }
    plan = Plan.from_fields({"name": "audit", **tables})
    return with_count_counter(plan, noise=privacy.get("noise", AUTO)) if counted else plan


def with_count_counter(plan: Plan, *, noise: str = AUTO) -> Plan:
    """The same plan with a count counter, where its maker chose to have none."""
    if plan.count_counters:
        return plan
    privacy = plan.privacy
    mechanism = calibrate(plan.family.sensitivity, privacy.claim, privacy.budget, noise=noise)
    return plan.replace_privacy(mechanism=mechanism.to_fields())


def secure_plan_of(clients: int, *, sketch: Any = None, **privacy: Any) -> Plan:
    """A small plan of mode secure; one of its clients may vanish and one be corrupt: h = ``clients`` − 2."""
    one = real_text(Fraction(1, clients))
    return plan_of(sketch=sketch, mode="secure", secure={"cohort": clients, "corrupt": one, "dropout": one}, **privacy)


def column(*values: float) -> Floats:
    """(n, 1) records."""
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def others(clients: int) -> DataSet:
    """The part that both neighbours share: clients with one record each."""
    return tuple(Submission(f"other-{index}", column(2.5 * (index % 5))) for index in range(clients))


def case(plan: Plan, what: str = "", *, clients: int = 2) -> Case:
    """The neighbours that this plan's noise hides least: one more record, or one more client with all that it may hold.

    For unit ``record`` the target is one of the other clients.
    """
    protection = plan.privacy
    mine, rest = worst_content(plan), others(clients)
    if protection.unit == "client":
        first = (*rest, Submission(TARGET, mine))
        second = rest
    else:
        kept = column(5.0)
        first = (*rest, Submission(TARGET, np.concatenate([kept, mine])))
        second = (*rest, Submission(TARGET, kept))
    return Case(what, plan, first, second)


def lone_record(plan: Plan, what: str, *, clients: int) -> Case:
    """One more record, of a client without others: the number of clients depends on it."""
    rest = others(clients)
    return Case(what, plan, (*rest, Submission(TARGET, worst_content(plan))), rest)


def one_record_less(plan: Plan, what: str) -> Case:
    """A full client of three batches, against the same without its first record, which decides which of them fit.

    A batch that would exceed the bound m is refused as a whole: with the record the m records at one end of the bounds,
    without it the m − 1 at the other. Records at the two ends must share no counter, or few. Unit ``client`` alone.
    """
    bound = plan.privacy.records_per_client
    assert bound is not None, "unit client has a bound"
    near, far = (column(*[value] * bound) for value in (_GRID[0], _GRID[-1]))
    rest = (*others(2), *(Submission(TARGET, batch) for batch in (near, far[1:])))
    return Case(what, plan, (Submission(TARGET, far[:1]), *rest), (Submission(TARGET, far[:0]), *rest))


def bad_record(plan: Plan, what: str) -> Case:
    """One more record that is unusable, in a batch with usable ones, which must count."""
    good = column(*[5.0] * 6)
    batch = np.concatenate([good[:3], column(np.nan), good[3:]])
    rest = others(1)
    return Case(what, plan, (*rest, Submission(TARGET, good)), (*rest, Submission(TARGET, batch)))


def contents(plan: Plan) -> Iterator[Floats]:
    """Everything that one unit can hold, (n, 1) records each; of equal counters one."""
    most = plan.privacy.records_per_client or 1
    for number in range(1, most + 1):
        for chosen in combinations_with_replacement(_patterns(plan), number):
            yield column(*chosen)


def worst_content(plan: Plan) -> Floats:
    """The content that changes the counters most: all records of a unit in the same buckets."""
    return column(*[_patterns(plan)[0]] * (plan.privacy.records_per_client or 1))


@lru_cache(maxsize=64)
def _patterns(plan: Plan) -> tuple[float, ...]:
    """One value for each set of counters that a record can change."""
    found: dict[bytes, float] = {}
    for value in _GRID:
        increments = plan.family.encode(plan.family.accept(column(value))[0])
        found.setdefault(increments.indices.tobytes() + increments.values.tobytes(), float(value))
    return tuple(found.values())


COLUMNS: Final = (
    "released",  # 1, or 0: the window is withheld
    "times withheld",  # reported before this outcome was final
    "noisy count",
    "counters along the difference",  # the best test of Gaussian noise
    "counters along the difference, clipped",  # of Laplace noise
    "density",  # at a public place
    "count implied by answers",  # what a kernel sum is divided by to give a density
)
_PLACE: Final = np.array([[5.0]])


class Counted(Protocol):
    """Counters and count counters: of a sketch, a release, or a device's submission."""

    @property
    def counters(self) -> Integers: ...

    @property
    def counts(self) -> Integers: ...


def flat(counted: Counted) -> Integers:
    """All counters in one row, the count counters last."""
    return np.append(counted.counters.reshape(-1), counted.counts)


def along_the_difference(shown: Integers | Floats, first: Integers, second: Integers) -> tuple[Floats, Floats]:
    """The likelihood of the second data set against the first, for Gaussian and (clipped) for Laplace noise.

    ``shown`` is (..., counters) with noise; the two exact data sets are (counters,).
    """
    change, middle = (second - first).astype(np.float64), shown - (first + second) / 2
    half = np.abs(change) / 2
    return middle @ change, np.clip(middle, -half, half) @ np.sign(change)


def seen_of(release: Release | None, withheld: int, exact: tuple[Integers, Integers], *, asks: bool) -> list[float]:
    """What an attacker sees of one outcome: the numbers of :data:`COLUMNS`.

    Args:
        release: None: withheld for good.
        withheld: How often the window was reported as withheld before.
        exact: The counters of the two neighbouring data sets.
        asks: Whether the release is queried too, which takes most of the time.
    """
    if release is None:
        return [0.0, float(withheld), *[np.nan] * (len(COLUMNS) - 2)]
    along, clipped = along_the_difference(flat(release), *exact)
    total = density = np.nan
    if asks:
        total, density = (float(answer.value[0]) for answer in (release.kernel_sum(_PLACE), release.density(_PLACE)))
    implied = total / density if density else np.nan
    # Of the count counter alone, where a mistake would show most, if there is one.
    rows = None if release.plan.count_counters else release.counters
    counted = query.count(release.plan, release.counts, counters=rows)
    return [1.0, float(withheld), counted, float(along), float(clipped), density, implied]
