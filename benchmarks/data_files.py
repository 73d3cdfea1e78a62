"""Real data from ``../shared/data``, and generated stand-ins of the same shape where a file is not there."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FOLDER: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
#: The files, by the names that tables show.
FILES: Final = {
    "skin": "skin.parquet",
    "covtype": "covtype_100k.parquet",
    "taxi": "nyc_taxi_pickups.parquet",
    "pay": "sf_salaries.parquet",
    "slashdot": "slashdot0902.parquet",
    "ego_facebook": "ego_facebook.parquet",
    "htru2": "htru2.parquet",
    "airfoil": "airfoil.parquet",
    "naval": "naval.parquet",
}
#: The first ten columns of covtype are quantities, with these public ranges; the other 44 are 0 or 1.
COVTYPE_LOWER: Final = (1800, 0, 0, 0, -200, 0, 0, 0, 0, 0)
COVTYPE_UPPER: Final = (4000, 360, 90, 1400, 700, 7200, 255, 255, 255, 7200)
#: Of the eight columns of htru2: wider than the data's.
PULSAR_LOWER: Final = (0, 0, -10, -10, 0, 0, -10, -10)
PULSAR_UPPER: Final = (250, 120, 20, 100, 250, 120, 50, 1250)
#: Of the six columns of airfoil, the target last: as they are documented.
AIRFOIL_LOWER: Final = (0, 0, 0, 0, 0, 100)
AIRFOIL_UPPER: Final = (20_000, 25, 0.35, 80, 0.06, 145)
_CLUSTERS: Final = 4  # of a label
_NODES: Final = 82_168
_EDGES: Final = 948_464
_FRIENDS: Final = 4039
_FRIENDSHIPS: Final = 88_234


def columns(name: str) -> Floats:
    """Every column of a data set of :data:`FILES`, (n, columns) float64: its file's, or a stand-in's.

    A stand-in is the same each time. It has as many records and columns as the file, within the same ranges.
    """
    path = FOLDER / FILES[name]
    if not path.exists():
        print(f"{name}: a generated stand-in, there is no shared/data/{path.name} beside the project", flush=True)
        return _generated(name)
    from pyarrow import parquet

    table = parquet.read_table(path)
    return np.stack([table.column(each).to_numpy() for each in table.column_names], axis=1).astype(np.float64)


def shown(name: str) -> str:
    """A data set as tables name it, with a mark if its file is not there; "covtype, 2 columns" is of covtype's."""
    file = FILES.get(name.partition(",")[0])
    return name if file is None or (FOLDER / file).exists() else f"{name} (stand-in)"


@cache
def _generated(name: str) -> Floats:
    return _GENERATED[name](np.random.default_rng(1))


def _clusters(
    rng: np.random.Generator,
    n: int,
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    shares: tuple[float, ...],
) -> tuple[Floats, Floats]:
    """(n, d) records within the bounds, in normal clusters, and the number of the label of each."""
    low, high = np.array(lower, np.float64), np.array(upper, np.float64)
    label = rng.choice(len(shares), n, p=np.array(shares) / sum(shares))
    centres = rng.uniform(0.15, 0.85, (len(shares), _CLUSTERS, len(low)))
    spread = 0.1 ** rng.uniform(1.0, 2.3, (len(shares), _CLUSTERS, 1))
    cluster = rng.integers(_CLUSTERS, size=n)
    unit = centres[label, cluster] + spread[label, cluster] * rng.normal(size=(n, len(low)))
    return low + (high - low) * unit.clip(0, 1), label.astype(np.float64)


def _covtype(rng: np.random.Generator) -> Floats:
    shares = (0.365, 0.488, 0.062, 0.005, 0.016, 0.030, 0.034)
    quantities, label = _clusters(rng, 100_000, COVTYPE_LOWER, COVTYPE_UPPER, shares)
    area, soil = label.astype(np.int64) % 4, (label * 5 + rng.integers(0, 10, len(label))).astype(np.int64) % 40
    return np.column_stack([quantities.round(), np.eye(4)[area], np.eye(40)[soil], label + 1])


def _taxi(rng: np.random.Generator) -> Floats:
    """An island, two airports, and few trips elsewhere."""
    along, across = rng.normal(0, 1, (2, 73_154))
    places = np.stack([-73.98 + 0.012 * along + 0.007 * across, 40.755 + 0.02 * along - 0.004 * across], axis=1)
    kind = rng.random(len(places))
    for most, centre, spread in (
        (0.06, (-73.94, 40.74), 0.05),
        (0.04, (-73.78, 40.645), 0.004),
        (0.02, (-73.87, 40.774), 0.003),
    ):
        some = kind < most
        places[some] = rng.normal(centre, spread, (int(some.sum()), 2))
    return places.clip([-74.1, 40.5], [-73.15, 40.9])


def _edges(rng: np.random.Generator) -> Floats:
    """(edges, 2), no edge twice: degrees of both ends are heavy-tailed, and nodes link near themselves."""
    from_node = (_NODES * rng.power(0.6, 2 * _EDGES)).astype(np.int64)
    near = (from_node + rng.geometric(0.05, 2 * _EDGES)) % _NODES
    known = (_NODES * (1 - rng.power(40.0, 2 * _EDGES))).astype(np.int64)
    to_node = np.where(rng.random(2 * _EDGES) < 0.5, near, known)
    unique = np.unique(from_node * _NODES + to_node)
    kept = np.sort(rng.choice(unique, _EDGES, replace=False))
    return np.column_stack([kept // _NODES, kept % _NODES]).astype(np.float64)


def _friendships(rng: np.random.Generator) -> Floats:
    """(edges, 2), each pair of nodes once, the lesser first: circles of many sizes, each with a node that all know."""
    circle = np.sort((40 * rng.power(0.5, _FRIENDS)).astype(np.int64))
    starts = np.searchsorted(circle, np.arange(41))
    one = rng.integers(_FRIENDS, size=20 * _FRIENDSHIPS)
    low, high = starts[circle[one]], starts[circle[one] + 1]
    other = np.where(rng.random(len(one)) < 0.05, low, (low + (high - low) * rng.random(len(one))).astype(np.int64))
    lesser, greater = np.minimum(one, other), np.maximum(one, other)
    unique = np.unique((lesser * _FRIENDS + greater)[lesser < greater])
    kept = np.sort(rng.choice(unique, _FRIENDSHIPS, replace=False))
    return np.column_stack([kept // _FRIENDS, kept % _FRIENDS]).astype(np.float64)


def _linear(rng: np.random.Generator, n: int, lower: tuple[float, ...], upper: tuple[float, ...]) -> Floats:
    """(n, d) records within the bounds, whose last column is half linear in the others and half noise."""
    low, high = np.array(lower, np.float64), np.array(upper, np.float64)
    features, _ = _clusters(rng, n, lower[:-1], upper[:-1], (1.0,))
    unit = (features - low[:-1]) / (high - low)[:-1]
    explained = (unit - unit.mean(axis=0)) @ rng.normal(size=len(low) - 1)
    target = 0.5 + 0.1 * (explained / explained.std() + rng.normal(size=n))
    return np.column_stack([features, low[-1] + (high - low)[-1] * target.clip(0, 1)])


def _skin(rng: np.random.Generator) -> Floats:
    colours, label = _clusters(rng, 245_057, (0,) * 3, (255,) * 3, (0.21, 0.79))
    return np.column_stack([colours.round(), label + 1])


def _pay(rng: np.random.Generator) -> Floats:
    """A quarter with little pay, and the year."""
    n = 148_654
    pay = np.where(rng.random(n) < 0.25, rng.gamma(1.0, 10_000, n), rng.gamma(6.0, 16_000, n))
    return np.column_stack([pay.clip(0, 567_000), rng.integers(2011, 2015, n)])


def _pulsars(rng: np.random.Generator) -> Floats:
    return np.column_stack(_clusters(rng, 17_898, PULSAR_LOWER, PULSAR_UPPER, (0.91, 0.09)))


def _airfoil(rng: np.random.Generator) -> Floats:
    return _linear(rng, 1503, AIRFOIL_LOWER, AIRFOIL_UPPER)


def _naval(rng: np.random.Generator) -> Floats:
    """With a second target, which nothing explains."""
    found = _linear(rng, 11_934, (0,) * 16 + (0.95,), (1,) * 16 + (1.0,))
    return np.column_stack([found, rng.uniform(0.975, 1, len(found))])


_GENERATED: Final[Mapping[str, Callable[[np.random.Generator], Floats]]] = {
    "skin": _skin,
    "covtype": _covtype,
    "taxi": _taxi,
    "pay": _pay,
    "slashdot": _edges,
    "ego_facebook": _friendships,
    "htru2": _pulsars,
    "airfoil": _airfoil,
    "naval": _naval,
}
