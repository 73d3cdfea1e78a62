"""The same data, the same queries, and other people to trust: errors of modes central, secure and local.

Every figure is an answer of a release. Reports are made one a record by the device's own code, counted, and released.
Of secure sums and silos the counters are the exact ones and the noise of all their clients: as the release of all
cohorts, or submissions, would have them, with no protocol run and no submission packed. That noise is drawn as one
discrete Gaussian of the variance of all, which their sum is but for less than 10⁻⁵⁰ (Kairouz, Liu, Steinke 2021).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import SMALL_DELTA, errors_of, keys
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.subjects import ABSOLUTE, RELATIVE
from benchmarks.accuracy.sums import exact_sums
from benchmarks.report import Row
from hushsum.advice import advise_reports
from hushsum.advice.local import ReportForecast, report_plan
from hushsum.entropy import OsEntropy
from hushsum.local import reports as encoding
from hushsum.noise.discrete_gaussian import DiscreteGaussian
from hushsum.privacy.shuffle_amplification import amplified
from hushsum.query import noise_std_error
from hushsum.releases import Release, of_reports, of_silos, of_sums
from hushsum_simulator.audit.cases import with_count_counter

Int64 = npt.NDArray[np.int64]

EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA: Final = Fraction(1, 10**6)
#: Records, of which the last is all; of taxi the second is.
NUMBERS: Final = (10_000, 100_000, 10**9)
COHORT: Final = 100
CLIENTS: Final = 1000
SILOS: Final = (100, 1000)
_ROWS: Final = 2048
_BUCKETS: Final = 256
_SEEDS: Final = 3
_QUERIES: Final = 200
_LIMIT: Final = 1_000_000  # of ε: these are no releases of anybody's
_SKIN: Final = "skin"


@dataclass(frozen=True)
class ModeSubject:
    """One sketch of one data set.

    Attributes:
        data: Its name.
        label: What a table calls the sketch.
        sketch: ``[sketch]`` without rows and seed.
        metric: The column of the tables and the figure.
    """

    data: str
    label: str
    sketch: Mapping[str, object]
    metric: str

    @property
    def randomisers(self) -> tuple[str, ...]:
        """Of its reports."""
        return ("k-rr", "projective") if self.sketch["family"] == "hashed" else ("one-bit",)

    def plan(self, data: DataSet, seed: int, privacy: Mapping[str, object]) -> hs.Plan:
        """A plan of it."""
        sketch = {**self.sketch, "rows": _ROWS, "seed": seed}
        totals = {"total_epsilon": _LIMIT, **({} if "local" in privacy else {"total_delta": SMALL_DELTA})}
        return hs.Plan(name=f"modes-{data.name}", record=data.record, sketch=sketch, privacy={**totals, **privacy})


MODE_SUBJECTS: Final = (
    ModeSubject(_SKIN, "hashed euclidean", keys("hashed", "euclidean", 5, buckets=_BUCKETS), RELATIVE),
    ModeSubject("taxi", "hashed laplacian", keys("hashed", "laplacian", 0.01, buckets=_BUCKETS), ABSOLUTE),
    ModeSubject("taxi", "fourier laplacian", keys("fourier", "laplacian", 0.01), ABSOLUTE),
)


@dataclass(frozen=True, eq=False)
class Asked:
    """Some records and queries, with what is known of them.

    Attributes:
        subject: Of which sketch.
        data: The data set, with so many records as are counted, and the queries.
        exact: (m,) kernel sums.
        forecast: Predictions for this sketch.
        density: The mean kernel, of all records of the data set.
    """

    subject: ModeSubject
    data: DataSet
    exact: npt.NDArray[np.float64]
    forecast: ReportForecast
    density: float

    @property
    def hashing(self) -> float:
        """The predicted standard error of an answer of a whole sketch without noise, but for single records."""
        plan = self.subject.plan(self.data, 1, _local(self.subject.randomisers[-1], 1.0))
        return self.forecast.hashing(plan, self.data.size)


#: A mode, what was asked, the release, and more of its row.
_Found = tuple[str, Asked, Release, Row]


def measure_modes(*, quick: bool) -> list[Row]:
    """One row for each sketch, number of records, mode and ε: errors over seeds and queries, and what was predicted."""
    rows: list[Row] = []
    for subject in MODE_SUBJECTS:
        for data in data_sets([subject.data], quick=quick):
            rows += _subject(subject, data, quick=quick)
            print(f"      modes: {data.name}, {subject.label}", flush=True)
    return rows


def _subject(subject: ModeSubject, data: DataSet, *, quick: bool) -> Iterator[Row]:
    epsilons, seeds = ((2.0,), 1) if quick else (EPSILONS, _SEEDS)
    queries = data.queries[:_QUERIES]
    numbers = sorted({min(number, data.size) for number in NUMBERS})
    first = subject.plan(data, 1, _local(subject.randomisers[0], 1.0))
    sums = {n: exact_sums(first.family, data.records[:n], queries) for n in numbers}
    density = float(sums[numbers[-1]].mean()) / numbers[-1]
    forecast = ReportForecast(first, density)
    asked = []
    for n in numbers:
        some = DataSet(data.name, data.about, data.record, data.records[:n], queries)
        asked.append(Asked(subject, some, sums[n], forecast, density))
    yield from (_about(one) for one in asked)
    found: dict[tuple[str, int, float], list[Row]] = {}
    for seed in range(1, seeds + 1):
        sketches = [_sketch(one, seed) for one in asked]
        for epsilon in epsilons:
            for mode, one, release, more in [*_whole(asked, sketches, epsilon), *_reports(asked, epsilon, seed)]:
                found.setdefault((mode, one.data.size, epsilon), []).append(_errors(one, release) | more)
    for (mode, n, epsilon), each in found.items():
        yield _averaged(subject, data, each) | {"mode": mode, "n": n, "epsilon": epsilon}


def _about(asked: Asked) -> Row:
    exact, n = asked.exact, asked.data.size
    return {
        "data": asked.data.name,
        "sketch": asked.subject.label,
        "mode": "the mean",
        "n": n,
        "epsilon": 0.0,
        RELATIVE: float(np.mean(np.abs(exact - exact.mean())[exact > 0] / exact[exact > 0])),
        ABSOLUTE: float(np.mean(np.abs(exact - exact.mean()))) / n,
        "mean density": float(exact.mean()) / n,
    }


def _errors(asked: Asked, release: Release) -> Row:
    answer, density = release.kernel_sum(asked.data.queries), release.density(asked.data.queries)
    relative, absolute, coverage, _ = errors_of(answer, density.value, asked.exact, asked.data.size)
    square = float(np.square(answer.value - asked.exact).mean())
    return {RELATIVE: relative, ABSOLUTE: absolute, "coverage": coverage, "mean square": square}


def _averaged(subject: ModeSubject, data: DataSet, each: Sequence[Row]) -> Row:
    relative = np.array([float(row[RELATIVE]) for row in each])
    return {
        "data": data.name,
        "sketch": subject.label,
        RELATIVE: float(relative.mean()),
        "its standard error": float(relative.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else 0.0,
        ABSOLUTE: float(np.mean([float(row[ABSOLUTE]) for row in each])),
        "coverage": float(np.mean([float(row["coverage"]) for row in each])),
        "records off": math.sqrt(np.mean([float(row["mean square"]) for row in each])),
        "sketches": len(each),
        **{key: value for key, value in each[0].items() if key in _SAME},
    }


_SAME: Final = ("predicted", "buckets", "bytes", "amplified")


def _local(randomiser: str, epsilon: float) -> dict[str, object]:
    return {"mode": "local", "epsilon": epsilon, "local": {"form": "report", "randomiser": randomiser}}


def _sketch(asked: Asked, seed: int) -> hs.Sketch:
    sketch = hs.Sketch(asked.subject.plan(asked.data, seed, {"epsilon": 1}))
    sketch.add(asked.data.records)
    assert sketch.records == len(asked.data.records), "every record counts in the exact sums"
    return sketch


def _whole(asked: Sequence[Asked], sketches: Sequence[hs.Sketch], epsilon: float) -> Iterator[_Found]:
    """Releases of whole sketches: by an aggregator that sees them, by cohorts, by clients each for itself."""
    subject, data, seed = asked[0].subject, asked[0].data, _seed(sketches[0])
    small: dict[str, object] = {"epsilon": epsilon, "delta": SMALL_DELTA, "noise": "gaussian"}
    secure = subject.plan(data, seed, {**small, "mode": "secure", "secure": {"cohort": COHORT}, "total_delta": "0.01"})
    silo = subject.plan(data, seed, {**small, "mode": "local", "local": {"form": "silo"}, "total_delta": SMALL_DELTA})
    for one, sketch in zip(asked, sketches, strict=True):
        for mode, delta in (("central, δ = 0", 0.0), ("central, δ = 10⁻⁶", SMALL_DELTA)):
            release = hs.release(sketch, epsilon=epsilon, delta=delta)
            yield mode, one, release, _predicted(one, noise_std_error(release.plan), 0)
    noised = [(f"secure, {CLIENTS:,} clients", secure, CLIENTS)]
    noised += [(f"local silo, {clients:,} clients", silo, clients) for clients in SILOS]
    for mode, plan, clients in noised:
        noise = _noise(plan, clients)
        for one, sketch in zip(asked, sketches, strict=True):
            release = _release(plan, sketch.counters, one.data.size, noise, clients)
            sent = plan.words.bytes if plan.privacy.cohort else plan.upload_bytes_max
            yield mode, one, release, _predicted(one, noise_std_error(plan, draws=clients), sent)


def measure_carried(*, quick: bool) -> list[Row]:
    """What less noise for the same promise is worth in each mode: a row for each sketch and mode, at ε = 1.

    Root mean square errors of kernel sums on a grid, of noise alone: no records, so that all of an answer is noise. As
    it was: with a count counter of cells, and equal weights of moments.
    """
    axis = np.linspace(0.05, 0.95, 30)
    asked = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    return [
        {
            "mode": mode,
            "sketch": label,
            "before": _noise_alone(before, clients, asked, quick=quick),
            "now": _noise_alone(now, clients, asked, quick=quick),
        }
        for mode, (privacy, clients) in _CARRIED_MODES.items()
        for label, now, before in _carried(privacy)
    ]


_GAUSSIAN: Final[Mapping[str, object]] = {
    "epsilon": 1,
    "total_epsilon": _LIMIT,
    "delta": SMALL_DELTA,
    "total_delta": SMALL_DELTA,
    "noise": "gaussian",
}
_CARRIED_MODES: Final[Mapping[str, tuple[Mapping[str, object], int]]] = {
    "central": ({}, 0),
    f"secure, {CLIENTS:,} clients": (
        {"mode": "secure", "secure": {"cohort": COHORT}, "total_delta": "0.01"},
        CLIENTS,
    ),
    f"local silo, {SILOS[0]} clients": ({"mode": "local", "local": {"form": "silo"}}, SILOS[0]),
}
_DRAWN: Final = 40  # releases of 900 answers each


def _carried(privacy: Mapping[str, object]) -> Iterator[tuple[str, hs.Plan, hs.Plan]]:
    """What a table calls a sketch, its plan, and the plan that it had before."""

    def plan(sketch: Mapping[str, object]) -> hs.Plan:
        record = {"dim": 2, "lower": [0, 0], "upper": [1, 1]}
        return hs.Plan(name="carried", record=record, sketch=sketch, privacy={**_GAUSSIAN, **privacy})

    cells = plan({"family": "partition", "bandwidth": "0.03125", "rows": 1, "buckets": 1089, "seed": 1})
    yield "cells, one row", cells, with_count_counter(cells, noise="gaussian")
    moments = {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.2", "order": 8}
    yield "hermite, order 8", plan({**moments, "weights": "auto"}), plan(moments)


def _noise_alone(plan: hs.Plan, clients: int, asked: npt.NDArray[np.float64], *, quick: bool) -> float:
    zeros, squares = np.zeros(plan.counters_shape, np.int64), []
    for _ in range(2 if quick else _DRAWN):
        release = _release(plan, zeros, 0, _noise(plan, clients), clients) if clients else hs.release(hs.Sketch(plan))
        squares.append(float(np.square(release.kernel_sum(asked).value).mean()))
    return math.sqrt(np.mean(squares))


def _seed(sketch: hs.Sketch) -> int:
    seed = sketch.plan.family.to_fields()["seed"]
    assert isinstance(seed, int), "a key of whole numbers"
    return seed


def _noise(plan: hs.Plan, clients: int) -> Int64:
    """Of all counters and the count counter, if there is one: that of every client together."""
    mechanism = plan.privacy.mechanism
    shares = mechanism.honest_survivors or 1
    noise = DiscreteGaussian(mechanism.scale * clients / shares)
    return noise.sample(math.prod(plan.counters_shape) + plan.count_counters, OsEntropy())


def _release(plan: hs.Plan, exact: Int64, records: int, noise: Int64, clients: int) -> Release:
    counters = exact + noise[: exact.size].reshape(exact.shape)
    counts = noise[exact.size :] + plan.privacy.mechanism.count_scale * records
    if plan.privacy.cohort is None:
        return of_silos(plan, counters, counts, window=0, submissions=clients)
    return of_sums(plan, counters, counts, window=0, cohorts=clients // COHORT, submissions=clients)


def _predicted(asked: Asked, noise: float, sent: int) -> Row:
    return {"predicted": math.hypot(asked.hashing, noise), "bytes": sent}


def _reports(asked: Sequence[Asked], epsilon: float, seed: int) -> Iterator[_Found]:
    """Releases of reports, one a record, of the number of buckets that advice takes."""
    for one in asked:
        subject, data = one.subject, one.data
        for randomiser in subject.randomisers:
            plan = subject.plan(data, seed, _local(randomiser, epsilon))
            advice = advise_reports(plan, records=data.size, density=one.density, forecast=one.forecast)
            size = advice.best.get(randomiser, advice.own)
            plan = report_plan(plan, buckets=size.buckets)
            reports, problems = encoding.reports(plan, data.records, None, OsEntropy())
            assert problems.dropped == 0, "every record counts in the exact sums"
            counters = np.bincount(reports, minlength=math.prod(plan.counters_shape)).reshape(plan.counters_shape)
            release = of_reports(plan, counters, np.array([data.size]), window=0, shuffled=False)
            more: Row = {"predicted": size.error, "bytes": size.report_bytes, "buckets": size.buckets or 0}
            after = amplified(plan.privacy.mechanism.scale, data.size, DELTA)
            yield f"local, {randomiser}", one, release, more | ({} if after is None else {"amplified": float(after)})
