"""The data sets of the accuracy run: records, held-out queries and public bounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.data_files import COVTYPE_LOWER, COVTYPE_UPPER, PULSAR_LOWER, PULSAR_UPPER, columns

Floats = npt.NDArray[np.float64]

_HELD_OUT: Final = 2000
_QUICK_RECORDS: Final = 10_000
_QUICK_HELD_OUT: Final = 200


@dataclass(frozen=True, eq=False)
class DataSet:
    """Records of one kind, and where to ask.

    Attributes:
        name: What they are called.
        about: One line: how many, which bounds.
        record: ``[record]`` of a plan.
        records: (n, d), or n sets as a CSR matrix.
        queries: (m, d), or m sets; held out unless ``about`` says otherwise.
    """

    name: str
    about: str
    record: Mapping[str, object]
    records: Any
    queries: Any

    @property
    def size(self) -> int:
        """n."""
        return int(self.records.shape[0])


def data_sets(names: Sequence[str], *, quick: bool) -> Iterator[DataSet]:
    """Those of these names, one at a time."""
    for name in names:
        yield SOURCES[name](quick=quick)


def held_out(records: Any, *, quick: bool) -> tuple[Any, Any]:
    """Records and held-out queries, by a fixed permutation; few of each if quick."""
    order = np.random.default_rng(1).permutation(records.shape[0])
    asked = _QUICK_HELD_OUT if quick else _HELD_OUT
    kept = order[asked : asked + _QUICK_RECORDS] if quick else order[asked:]
    return records[kept], records[order[:asked]]


def covtype_bounds(dim: int) -> Sequence[tuple[float, float]]:
    """Of the first columns of covtype: the documented ranges."""
    return list(zip([*COVTYPE_LOWER, *[0] * 44], [*COVTYPE_UPPER, *[1] * 44], strict=True))[:dim]


def pulsar_bounds() -> Sequence[tuple[float, float]]:
    """Of the eight columns of htru2: wider than the data's."""
    return list(zip(PULSAR_LOWER, PULSAR_UPPER, strict=True))


def vectors(name: str, about: str, lower: Sequence[float], upper: Sequence[float], parts: tuple[Any, Any]) -> DataSet:
    """A data set of vectors."""
    record = {"dim": len(lower), "lower": [*lower], "upper": [*upper]}
    records, queries = parts
    text = f"{len(records):,} records of {len(lower)} {'number' if len(lower) == 1 else 'numbers'}, {about}"
    return DataSet(name, text, record, records, queries)


def _skin(*, quick: bool) -> DataSet:
    about = "bounds 0 to 255; 2,000 held-out queries"
    return vectors("skin", about, [0] * 3, [255] * 3, held_out(columns("skin")[:, :3], quick=quick))


def _covtype(*, quick: bool, dim: int = 54) -> DataSet:
    lower, upper = zip(*covtype_bounds(dim), strict=True)
    name = "covtype" if dim == 54 else f"covtype, {dim} columns"
    about = "bounds are the documented ranges; 2,000 held-out queries"
    return vectors(name, about, lower, upper, held_out(columns("covtype")[:, :dim], quick=quick))


def _covtype_10(*, quick: bool) -> DataSet:
    return _covtype(quick=quick, dim=10)


def _taxi(*, quick: bool) -> DataSet:
    about = "longitude −74.1 to −73.15 and latitude 40.5 to 40.9; 2,000 held-out queries, 100 others for each seed"
    return vectors("taxi", about, [-74.1, 40.5], [-73.15, 40.9], held_out(columns("taxi"), quick=quick))


def _covtype_2(*, quick: bool) -> DataSet:
    return _covtype(quick=quick, dim=2)


def _pay(*, quick: bool) -> DataSet:
    pay = columns("pay")[:, :1]
    records = pay[np.random.default_rng(1).permutation(len(pay))[:_QUICK_RECORDS]] if quick else pay
    about = "bounds 0 to 600,000; 200 queries from 10,000 to 250,000, as in RACE"
    return vectors("pay", about, [0], [600_000], (records, np.linspace(10_000, 250_000, 200)[:, None]))


def _pulsars(*, quick: bool) -> DataSet:
    values = columns("htru2")[:, :8]
    lower, upper = zip(*pulsar_bounds(), strict=True)
    return vectors(
        "htru2", "bounds wider than the data's; 2,000 held-out queries", lower, upper, held_out(values, quick=quick)
    )


def _slashdot(*, quick: bool) -> DataSet:
    return _graph("slashdot", columns("slashdot").astype(np.int64), "the out-neighbours of a node", quick=quick)


def _ego_facebook(*, quick: bool) -> DataSet:
    edges = columns("ego_facebook").astype(np.int64)
    both = np.concatenate([edges, edges[:, ::-1]])
    return _graph("ego_facebook", both, "the friends of a node", quick=quick)


def _graph(name: str, edges: npt.NDArray[np.int64], sets: str, *, quick: bool) -> DataSet:
    """The neighbours of each node that has any."""
    from scipy import sparse

    nodes = int(edges.max()) + 1
    matrix = sparse.csr_matrix((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), (nodes, nodes))
    matrix.sort_indices()
    filled = matrix[np.diff(matrix.indptr) > 0]
    records, queries = held_out(filled, quick=quick)
    asked = f"{queries.shape[0]:,} held-out nodes as queries"
    about = f"{records.shape[0]:,} sets: {sets}, {nodes:,} ids; {asked}"
    return DataSet(name, about, {"kind": "set", "universe": nodes}, records, queries)


SOURCES: Final[dict[str, Callable[..., DataSet]]] = {
    "skin": _skin,
    "covtype": _covtype,
    "taxi": _taxi,
    "pay": _pay,
    "slashdot": _slashdot,
    "ego_facebook": _ego_facebook,
    "htru2": _pulsars,
    "covtype-10": _covtype_10,
    "covtype-2": _covtype_2,
}
#: Data sets for linear regression, and the columns taken: features, and the target last.
SOURCES_REGRESSION: Final = {"airfoil": [*range(6)], "naval": [*range(17)]}
