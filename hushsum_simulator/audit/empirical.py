"""Lower limits of ε from many runs, goodness of fit, and whether noise ever repeats.

The event that distinguishes two neighbouring data sets best is learned on one half of the runs and tested on the other:
an event that was chosen and counted on the same runs would prove too much. An attacker sees a row of numbers of each
run (:func:`hushsum_simulator.audit.cases.seen_of`); the events are half-lines: one of them is at least, or at most, a
threshold.

Goodness of fit checks that the running code draws from the law that the exact audits assume, for all that is not rare.
Draws that happen once in 2^64 times are left to the samplers' own tests, which feed them crafted words. The exact audit
of local mode tries every word, which needs small plans; so plans of real sizes are fitted here, and mistakes that only
occur with many values show.

Every release must have its own noise, in one process, in two, and after a fork. A source that is seeded by a constant,
by public values or by state that a fork copies repeats its noise: the difference of two releases then shows exact
counters. No ε of a single release expresses that. So the noise of one sketch is drawn again and again, under the same
plan and window, and no two draws may be equal. Each has at least 64 counters: honest draws are equal with a probability
below 10⁻³⁰.
"""

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np

import hushsum as hs
from hushsum.entropy import OsEntropy
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.local.reports import bit_of, choice_of
from hushsum.outcomes import decide
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.noisy_max import scale_for, win_probabilities
from hushsum.releases import Release
from hushsum_simulator.audit import exact
from hushsum_simulator.audit.cases import column, plan_of
from hushsum_simulator.audit.exact import stated, tail
from hushsum_simulator.audit.pipelines import Seen, sent
from hushsum_simulator.audit.report import (
    ERROR,
    AuditRow,
    Check,
    Floats,
    Hits,
    Integers,
    at_least,
    at_most,
    epsilon_at_least,
)
from hushsum_simulator.audit.secure import honest_shares, sum_law

_THRESHOLDS: Final = 64  # of a number, at most
_LEARNING_ERROR: Final = 1e-3  # of the limits by which events are compared


@dataclass(frozen=True)
class Event:
    """A number of a run is at least or at most a threshold.

    Attributes:
        sign: 1: at least; −1: at most. A number that was not seen (NaN) is neither.
        likelier: The data set on which it is more likely: 0 or 1.
    """

    column: int
    sign: int
    threshold: float
    likelier: int

    def hits(self, seen: Floats) -> Hits:
        """How often it happened in these runs (n, columns)."""
        return Hits(int((self.sign * seen[:, self.column] >= self.sign * self.threshold).sum()), len(seen))


@dataclass(frozen=True)
class Bound:
    """A lower limit of ε, the event that proves it, and its hits where it is likelier and where it is rarer."""

    epsilon: float
    event: str
    likelier: Hits
    rarer: Hits


def audited(
    first: Floats, second: Floats, columns: Sequence[str], *, delta: float = 0.0, error: float = ERROR
) -> Bound:
    """The largest lower limit of ε that these runs prove.

    ``first`` and ``second`` are (n, columns): the numbers of n independent runs on each of two neighbours. The limit is
    above the true ε with probability ``error`` at most, over all events together (Bonferroni).
    """
    learned = [_best(first[0::2], second[0::2], column, delta=delta) for column in range(len(columns))]
    tested = [_tested(event, first[1::2], second[1::2], columns, delta, error / len(learned)) for event in learned]
    return max(tested, key=lambda bound: bound.epsilon)


def with_runs(row: AuditRow, seen: Sequence[Floats], columns: Sequence[str]) -> AuditRow:
    """A row with the lower limit of ε that runs (n, columns) on each of two data sets prove."""
    first, second = seen
    bound = audited(first, second, columns, delta=row.delta)
    return replace(row, audited=bound.epsilon, event=bound.event, runs=len(first))


def _tested(event: Event, first: Floats, second: Floats, columns: Sequence[str], delta: float, error: float) -> Bound:
    worlds = (first, second)
    likelier, rarer = event.hits(worlds[event.likelier]), event.hits(worlds[1 - event.likelier])
    words = f"{columns[event.column]} {'>=' if event.sign > 0 else '<='} {event.threshold:.6g}"
    return Bound(epsilon_at_least(likelier, rarer, delta=delta, error=error), words, likelier, rarer)


def _best(first: Floats, second: Floats, column: int, *, delta: float) -> Event:
    """The event of one number that gives the largest ratio on these runs."""
    seen = np.concatenate([first[:, column], second[:, column]])
    values = np.unique(seen[~np.isnan(seen)])
    if len(values) > _THRESHOLDS:
        values = values[np.linspace(0, len(values) - 1, _THRESHOLDS).round().astype(np.int64)]
    best = Event(column, 1, float(values[0]) if len(values) else 0.0, 0)
    most = -np.inf
    for sign in (1, -1):
        counts = [(sign * runs[:, [column]] >= sign * values).sum(axis=0) for runs in (first, second)]
        for likelier in (0, 1):
            p = at_least(counts[likelier], len(first if likelier == 0 else second), _LEARNING_ERROR)
            q = at_most(counts[1 - likelier], len(second if likelier == 0 else first), _LEARNING_ERROR)
            promise = np.maximum(p - delta, 0.0) / q
            if promise.size and promise.max() > most:
                most = float(promise.max())
                best = Event(column, sign, float(values[promise.argmax()]), likelier)
    return best


_EXPECTED: Final = 20.0  # of a cell, at least


def sampler_check(mechanism: Mechanism, draws: int) -> Check:
    """χ² of fresh draws against the stated law; an honest sampler fails with probability 10⁻⁶."""
    sampler = mechanism.noise()
    what = f"{mechanism.name} of parameter {sampler.scale} is drawn as stated"
    return noise_fit(what, [sampler.sample(draws, OsEntropy())], chances_of(mechanism))


def chances_of(mechanism: Mechanism) -> tuple[float, ...]:
    """The stated chances of a mechanism's noise, its middle 0."""
    noise = mechanism.noise()
    return _stated_chances(mechanism.name, noise.scale, max(8, int(40 * noise.std)))


@lru_cache(maxsize=8)
def _stated_chances(name: str, scale: Fraction, reach: int) -> tuple[float, ...]:
    law = stated(name, scale, reach)
    return tuple(float(law[k][0]) for k in range(-reach, reach + 1))


def shares_check(plan: Plan, draws: int) -> Check:
    """χ² of the noise in the sum of a cohort of mode secure, with as few honest clients as its clients sign."""
    name, share, number = plan.privacy.mechanism.name, plan.privacy.mechanism.share(), honest_shares(plan)
    chances = sum_law(name, share, number, max(8, int(20 * share.std * math.sqrt(number))))
    drawn = share.sample(number * draws, OsEntropy()).reshape(number, draws).sum(axis=0)
    return noise_fit(f"{number} shares of {name} noise have the stated sum", [drawn], chances.tolist())


def selection_check(epsilon: Fraction, runs: int) -> Check:
    """χ² of the winners of report noisy max."""
    utilities = tuple(range(exact.CANDIDATES))
    won = [int(row[0]) for row in exact.winners(utilities, 1, epsilon, runs)]
    chances = win_probabilities(utilities, scale_for(1, epsilon)).tolist()
    return fit_check("report-noisy-max chooses as stated", [(np.bincount(won, minlength=len(utilities)), chances)])


def outcome_check(plan: Plan, clients: int, seen: Sequence[Seen]) -> Check:
    """χ² of how often windows with this many clients are released, where a noised number decides it."""
    noise = plan.privacy.mechanism.clients_noise()
    assert noise is not None, "the plan has a test"
    released = sum(release is not None for release, _ in seen)
    chance = float(tail(noise.scale, plan.window.min_clients - clients)[0])
    counted = np.array([len(seen) - released, released])
    return fit_check("windows are withheld as often as stated", [(counted, [1 - chance, chance])])


def noise_fit(what: str, drawn: Iterable[Integers], chances: Sequence[float]) -> Check:
    """χ² of each array of noise against chances whose middle is 0; what lies beyond counts at the ends."""
    reach = len(chances) // 2
    seen = (np.bincount(np.clip(each, -reach, reach) + reach, minlength=len(chances)) for each in drawn)
    return fit_check(what, [(each, chances) for each in seen])


def fit_check(what: str, tests: Sequence[tuple[Integers, Sequence[float]]]) -> Check:
    """χ² of each test's counts against its chances; honest draws fail with 10⁻⁶, over all tests together.

    Returns:
        The first test that fails, or the first one.
    """
    found = [(_p_value(seen, chances), int(seen.sum())) for seen, chances in tests]
    failed = [each for each in found if not each[0] > ERROR / len(tests)]  # not a number: there were no draws
    p_value, draws = (failed or found)[0]
    return Check(what, not failed, f"p = {p_value:.2g} of {draws:,} draws")


def _p_value(seen: Integers, chances: Sequence[float]) -> float:
    from scipy.stats import chisquare

    expected = np.array(chances) * seen.sum()
    # Neighbouring outcomes share a cell until enough are expected in it.
    cell = np.floor((np.cumsum(expected) - expected / 2) / max(_EXPECTED, seen.sum() / 60)).astype(np.int64)
    if len(chances) <= 8:
        cell = np.arange(len(chances))
    wanted, found = np.bincount(cell, expected), np.bincount(cell, seen)
    kept = wanted > 0
    return float(chisquare(found[kept], wanted[kept] * seen.sum() / wanted[kept].sum()).pvalue)


#: A process that draws.
PROGRAM: Final = (sys.executable, "-c", "from hushsum_simulator.audit import empirical; empirical.main()")

_NOISE_ROWS: Final = 16
_NOISE_BUCKETS: Final = 4
_IN_ONE: Final = 8  # releases of each kind in one process
# The mechanisms are written, so that no process has to calibrate.
_PROMISES: Final[tuple[Mapping[str, object], ...]] = (
    {"mechanism": {"name": "discrete-laplace", "scale": "17", "count_scale": 1}},
    {"mechanism": {"name": "discrete-gaussian", "scale": "1000", "count_scale": 1}, "delta": "0.000001"},
)
_WAIT_S: Final = 60


def drawn() -> list[str]:
    """Digests of the noise of a few releases and outcomes of one sketch, drawn in this process."""
    found = []
    for promise in _PROMISES:
        plan = plan_of(sketch={"rows": _NOISE_ROWS, "buckets": _NOISE_BUCKETS}, **promise)
        sketch = hs.Sketch(plan)
        sketch.add(column(1.0, 2.0, 3.0))
        for _ in range(_IN_ONE):
            outcome = decide(sketch, kind=TUMBLING, window=0, clients=1, entropy=OsEntropy())
            assert isinstance(outcome, Release), "the plan releases every window"
            found += [_digest(hs.release(sketch), sketch), _digest(outcome, sketch)]
    return found


def drawn_apart() -> list[str]:
    """Digests drawn in this process, and in a child that was forked between two draws."""
    found = drawn()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            file.write("\n".join(drawn()))
        os._exit(0)
    os.close(writing)
    found += drawn()
    with os.fdopen(reading) as file:
        found += file.read().split()
    os.waitpid(child, 0)
    return found


def source_checks(program: Sequence[str] = PROGRAM) -> list[Check]:
    """Whether noise ever repeats, in this process and in another, which runs this program."""
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=_WAIT_S)
    here, elsewhere = drawn(), done.stdout.split()
    return [
        _distinct("releases of one process have different noise", here),
        _distinct("also in a process that was forked between two releases", elsewhere),
        _distinct("also in different processes, for the same plan and window", [*here, *elsewhere]),
    ]


def _distinct(what: str, found: Sequence[str]) -> Check:
    different = len(set(found))
    return Check(what, different == len(found) > 1, f"{different} different of {len(found)}")


def _digest(release: Release, sketch: hs.Sketch) -> str:
    noise = (release.counters - sketch.counters).tobytes() + (release.counts - sketch.counts).tobytes()
    return hashlib.sha256(noise).hexdigest()


def main() -> None:
    """The other process."""
    sys.stdout.write("\n".join(drawn_apart()) + "\n")


_DRAWS: Final = 20_000  # reports of one record
_VALUES: Final = (0.0, 3.7)
_PARTS: Final = 3  # of all outputs, for those that are no hit
_ROWS: Final = 2  # so that every cell of a fit is one of eight
_BIT: Final = {"family": "fourier", "kernel": "gaussian", "buckets": None, "rows": _ROWS}


def real_size_plans() -> Iterator[Plan]:
    """Plans of up to 4,096 values, with and without classes, and with tables of usual and of the finest numbers."""
    labels = {"classes": [f"class-{number}" for number in range(16)]}
    for randomiser, epsilon, buckets, record in (
        ("k-rr", 2, 16, {}),
        ("k-rr", 8, 4096, {}),
        ("k-rr", 6, 64, labels),
        ("projective", 2, 64, {}),
        ("projective", 4, 4096, {}),
        ("projective", 3, 8, labels),
    ):
        keys: dict[str, Any] = {"local": {"randomiser": randomiser}, "epsilon": epsilon, "record": record}
        yield plan_of(mode="local", sketch={"rows": _ROWS, "buckets": buckets}, **keys)
    for bits in (4, 12, 16):
        yield plan_of(mode="local", sketch={**_BIT, "fraction_bits": bits}, epsilon=2)


def drawn_check(plan: Plan) -> Check:
    """χ² of hits and misses of each row, or of the bits of each entry."""
    of = "bits" if plan.family.name == "fourier" else f"outputs for {choice_of(plan).inputs:,} values"
    what = f"{plan.privacy.mechanism.name} {of} are drawn as stated at epsilon {float(plan.privacy.epsilon):g}"
    if plan.family.name == "fourier":
        what += f", of numbers up to {bit_of(plan).peak:,}"
    tests = []
    for value in _VALUES:
        labels = [plan.classes[-1]] * _DRAWS if plan.classes else None
        reports = sent(plan, np.repeat(column(value), _DRAWS, axis=0), labels, OsEntropy())
        if len(reports) != _DRAWS:
            return Check(what, holds=False, found=f"{len(reports):,} reports of {_DRAWS:,} records")
        cells, chances = _bits(plan, value) if plan.family.name == "fourier" else _choices(plan, value)
        tests.append((np.bincount(cells[reports], minlength=len(chances)), chances))
    return fit_check(what, tests)


def _choices(plan: Plan, value: float) -> tuple[Integers, list[float]]:
    """The cell of each report, and the chance of each cell: hits of each row, and parts of its other outputs."""
    family, choice = plan.family, choice_of(plan)
    assert isinstance(family, Hashed), "reports of buckets"
    accepted = family.accept(np.repeat(column(value), _ROWS, axis=0))[0]
    values = family.buckets_of(accepted, np.arange(_ROWS)) + (max(1, len(plan.classes)) - 1) * family.buckets
    cells, chances = [], []
    for row, true in enumerate(values.tolist()):
        law = _law(plan, true)
        part = 1 + np.arange(choice.outputs) * _PARTS // choice.outputs
        cell = np.where(law == law.max(), 0, part)
        cells.append(cell + row * (1 + _PARTS))
        chances += np.bincount(cell, law, minlength=1 + _PARTS).tolist()
    return np.concatenate(cells), [chance / _ROWS for chance in chances]


@lru_cache(maxsize=64)
def _law(plan: Plan, true: int) -> Any:
    choice = choice_of(plan)
    return np.array([float(choice.probability(true, output)) for output in range(choice.outputs)])


def _bits(plan: Plan, value: float) -> tuple[Integers, list[float]]:
    family, bit = plan.family, bit_of(plan)
    assert isinstance(family, Fourier), "reports of entries"
    features = np.arange(2 * _ROWS)
    accepted = family.accept(np.repeat(column(value), len(features), axis=0))[0]
    entries = family.entries_of(accepted, features).tolist()
    chances = [float(bit.probability(entry, each)) / len(features) for entry in entries for each in (0, 1)]
    return np.arange(len(chances)), chances
