"""What is audited: small plans, and data sets that differ by one unit, as real records of real clients.

And what an attacker sees of one window: a row of numbers, from published outcomes alone. The attacker knows the plan,
both neighbouring data sets, and how the noise is meant to be distributed; whatever distinguishes the two must show in
one of these numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TARGET: Final = "target"  # the client that the neighbours differ by; for unit record it also holds others' records

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
    """What one client contributes to a window.

    Attributes:
        client: Its id.
        records: (n, 1); NaN is an unusable record, none at all is a submission without records.
    """

    client: str
    records: Floats = field(repr=False)


DataSet = tuple[Submission, ...]


@dataclass(frozen=True)
class Case:
    """Two neighbouring data sets of one plan.

    Attributes:
        what: In words.
        plan: What is collected.
        first: Submissions,
        second: and those of the neighbour.
    """

    what: str
    plan: Plan
    first: DataSet = field(repr=False)
    second: DataSet = field(repr=False)


def plan_of(*, sketch: Any = None, record: Any = None, min_clients: Any = 0, **privacy: Any) -> Plan:
    """A small plan: one row of two buckets, unless ``sketch`` says otherwise; ``privacy`` are keys of its table.

    A key whose value is None is left out.
    """
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
    return Plan.from_fields({"name": "audit", **tables})


def secure_plan_of(clients: int, *, sketch: Any = None, **privacy: Any) -> Plan:
    """The same for mode secure; one of so many clients may vanish and one be corrupt: h = ``clients`` − 2."""
    one = real_text(Fraction(1, clients))
    return plan_of(sketch=sketch, mode="secure", secure={"cohort": clients, "corrupt": one, "dropout": one}, **privacy)


def column(*values: float) -> Floats:
    """(n, 1) records."""
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def others(clients: int) -> DataSet:
    """What both neighbours hold: so many clients of one record each."""
    return tuple(Submission(f"other-{index}", column(2.5 * (index % 5))) for index in range(clients))


def case(plan: Plan, what: str = "", *, clients: int = 2) -> Case:
    """The neighbours that this plan's noise hides least: one more record, or one more client with all that it may hold.

    Args:
        plan: What is collected.
        what: In words.
        clients: How many others there are; the target of unit ``record`` is one of them.
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
    """One more record, of a client that has no other: whether it takes part hangs on that record."""
    rest = others(clients)
    return Case(what, plan, (*rest, Submission(TARGET, worst_content(plan))), rest)


def one_record_less(plan: Plan, what: str) -> Case:
    """A full client of three batches, against the same without its first record, which decides which of them fit.

    A batch that would pass the bound m is refused whole: with the record that are the m at one end of the bounds, and
    without it the m − 1 at the other.

    Args:
        plan: Of unit ``client``; what lies at the ends of its bounds has no counter in common, or few.
        what: In words.
    """
    bound = plan.privacy.records_per_client
    assert bound is not None, "unit client has a bound"
    near, far = (column(*[value] * bound) for value in (_GRID[0], _GRID[-1]))
    rest = (*others(2), *(Submission(TARGET, batch) for batch in (near, far[1:])))
    return Case(what, plan, (Submission(TARGET, far[:1]), *rest), (Submission(TARGET, far[:0]), *rest))


def bad_record(plan: Plan, what: str) -> Case:
    """One more record that is unusable, in a batch with others' records: it must take nothing with it."""
    good = column(*[5.0] * 6)
    batch = np.concatenate([good[:3], column(np.nan), good[3:]])
    rest = others(1)
    return Case(what, plan, (*rest, Submission(TARGET, good)), (*rest, Submission(TARGET, batch)))


def contents(plan: Plan) -> Iterator[Floats]:
    """Everything that one unit can hold, up to what falls into the same counters: (n, 1) records each."""
    most = plan.privacy.records_per_client or 1
    for number in range(1, most + 1):
        for chosen in combinations_with_replacement(_patterns(plan), number):
            yield column(*chosen)


def worst_content(plan: Plan) -> Floats:
    """The content that changes the counters most: all of a unit's records in the same buckets."""
    return column(*[_patterns(plan)[0]] * (plan.privacy.records_per_client or 1))


@lru_cache(maxsize=64)
def _patterns(plan: Plan) -> tuple[float, ...]:
    """One value for each set of counters that a record can fall into."""
    found: dict[bytes, float] = {}
    for value in _GRID:
        increments = plan.family.encode(plan.family.accept(column(value))[0])
        found.setdefault(increments.indices.tobytes() + increments.values.tobytes(), float(value))
    return tuple(found.values())


COLUMNS: Final = (
    "released",  # 1, or 0: the window is withheld
    "times withheld",  # before this outcome was final, by all that was told of the window
    "noisy count",
    "counters along the difference",  # the best test of Gaussian noise
    "counters along the difference, clipped",  # of Laplace noise
    "density",  # at a public place
    "count implied by answers",  # what a kernel sum is divided by to give a density
)
_PLACE: Final = np.array([[5.0]])


class View:
    """Looks at outcomes of two neighbouring data sets.

    Args:
        plan: Of the outcomes.
        first: The exact sketch of one data set,
        second: and of its neighbour.
        asks: Whether the release is asked too; that takes most of the time.
    """

    def __init__(self, plan: Plan, first: Sketch, second: Sketch, *, asks: bool = True) -> None:
        self._plan, self._asks = plan, asks
        values = [
            np.append(sketch.counters.reshape(-1), sketch.counts).astype(np.float64) for sketch in (first, second)
        ]
        self._change = values[1] - values[0]
        self._middle = (values[0] + values[1]) / 2

    def row(self, release: Release | None, *, withheld: int = 0) -> list[float]:
        """The numbers of one outcome; None: withheld for good."""
        if release is None:
            return [0.0, float(withheld), *[np.nan] * (len(COLUMNS) - 2)]
        shown = np.append(release.counters.reshape(-1), release.counts).astype(np.float64) - self._middle
        half = np.abs(self._change) / 2
        clipped = np.clip(shown, -half, half) @ np.sign(self._change)
        return [
            1.0,
            float(withheld),
            release.count,
            float(shown @ self._change),
            float(clipped),
            *self._answers(release),
        ]

    def _answers(self, release: Release) -> tuple[float, float]:
        if not self._asks:
            return np.nan, np.nan
        total, density = (float(answer.value[0]) for answer in (release.kernel_sum(_PLACE), release.density(_PLACE)))
        return density, total / density if density else np.nan


def stacked(rows: Sequence[Sequence[float]]) -> Floats:
    """(n, columns) of n runs."""
    return np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))
