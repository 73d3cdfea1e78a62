"""Independent rows, Sobol rows and orthogonal rows beside each other: error, and coverage of the stated intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy.curves import PURE, Curve, Truth, keys, measure
from benchmarks.accuracy.data import data_sets
from benchmarks.report import Row

DEFAULT_SETS: Final = 8  # independently scrambled sets of a plan that does not say
_SIZES: Final = (128, 1024)
_EPSILON: Final = 0.1
_KINDS: Final[Mapping[str, Mapping[str, object]]] = {
    "independent": {"draws": "independent"},
    "sobol": {"draws": "sobol", "sobol_sets": DEFAULT_SETS},
    "sobol, 4 sets": {"draws": "sobol", "sobol_sets": 4},
    "sobol, 2 sets": {"draws": "sobol", "sobol_sets": 2},
    "orthogonal": {"draws": "orthogonal"},
}


@dataclass(frozen=True)
class Study:
    """One kernel on one data set.

    Attributes:
        data: Its name.
        family: What the tables call it.
        sketch: ``[sketch]`` without draws, size and seed.
    """

    data: str
    family: str
    sketch: Mapping[str, object]


def _hashed(data: str, bandwidth: float) -> Study:
    return Study(data, "hashed euclidean", keys("hashed", "euclidean", bandwidth, buckets=1024))


def _fourier(data: str, bandwidth: float) -> Study:
    return Study(data, "fourier gaussian", keys("fourier", "gaussian", bandwidth))


STUDIES: Final = (
    _hashed("pay", 5000),
    _fourier("pay", 5000),
    _hashed("taxi", 0.005),
    _fourier("taxi", 0.01),
    _hashed("skin", 5),
    _fourier("skin", 20),
    _hashed("htru2", 2),
    _hashed("covtype-10", 50),
    _hashed("covtype", 50),
    _fourier("covtype", 500),
)


def measure_draws(*, quick: bool) -> list[Row]:
    """One row a study, kind of draws, size and ε."""
    rows: list[Row] = []
    for name in dict.fromkeys(study.data for study in STUDIES):
        for data in data_sets([name], quick=quick):
            truth = Truth(data)
            for study in STUDIES:
                if study.data == name:
                    rows += _of(study, truth, quick=quick)
            print(f"draws on {data.name}: measured", flush=True)
    return rows


def _of(study: Study, truth: Truth, *, quick: bool) -> Iterator[Row]:
    size = truth.data.record["dim"]
    assert isinstance(size, int), "these data sets are vectors"
    for kind, draws in _KINDS.items():
        if kind == "orthogonal" and (size == 1 or study.family.startswith("fourier")):
            continue  # one axis has no other at right angles; fourier wants a multiple of d pairs
        curve = Curve(
            f"{study.family}, {kind}",
            {**study.sketch, **draws},
            _SIZES[:1] if quick else _SIZES,
            seeds=(1, 1) if quick else (12, 32),
            rows=8192,
            epsilons=(_EPSILON,),
            deltas=(PURE,),
        )
        if curve.built(truth.data):
            for row in measure(curve, truth):
                yield {**row, "d": size, "family": study.family, "draws": kind}
