"""Two releases of one cumulative sequence are compared with the covariance of their noise, which is known exactly."""

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

import hushsum as hs
from hushsum import query
from hushsum.cumulative import initial, step
from hushsum.entropy import ReplayableEntropy
from hushsum.query import noise_covariance, span_draws
from hushsum.releases import draw

SKETCHES: Final[dict[str, dict[str, object]]] = {
    "hashed": {"kernel": "euclidean", "bandwidth": "0.5", "rows": 16, "buckets": 8, "seed": 1},
    "hermite": {"kernel": "gaussian", "bandwidth": "0.5", "order": 4, "cutoff": "3"},
    "partition": {"bandwidth": "0.25", "rows": 1, "buckets": 16, "seed": 1},
}
DELTAS: Final = ("0", "0.000001")
PLACES: Final = np.array([[0.3, 0.3], [0.8, 0.6]])
LAST: Final = 6
FALSE_ALARM_SIGMAS: Final = 4.9  # of a normal quantity: 1e-6, both sides


def plan_of(family: str, delta: str = "0", *, epsilon: str = "1", is_cumulative: bool = True) -> hs.Plan:
    return hs.Plan(
        name="sequence",
        record={"dim": 2, "lower": [0, 0], "upper": [1, 1]},
        sketch={"family": family, **SKETCHES[family]},
        privacy={"epsilon": epsilon, "total_epsilon": "10", "delta": delta, "total_delta": delta},
        window={"release": "cumulative", "horizon": 30} if is_cumulative else {"length": "1h"},
    )


def sequence(plan: hs.Plan, seed: int = 1, steps: int = LAST, records: int = 200) -> list[hs.Release]:
    """Of windows of records that move from one place to the other."""
    state, releases = initial(plan), []
    for number in range(1, steps + 1):
        sketch = hs.Sketch(plan).add(np.repeat(PLACES, [records * number, records * (steps - number)], axis=0))
        entropy = ReplayableEntropy(f"{seed} {number}".encode())
        release, state = step(plan, state, sketch, window=number, sealed=bytes(32), entropy=entropy)
        releases.append(release)
    return releases


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("family", SKETCHES)
def test_the_difference_of_two_steps_has_the_error_of_the_span_between(family: str, delta: str) -> None:
    releases = sequence(plan_of(family, delta))
    span = hs.Series(releases).between(2, LAST)
    early, late = releases[1], releases[-1]
    compared = late.compare(early)
    assert query.shared_draws(late, early) == query.shared_draws(early, late) == noise_covariance(late.plan, 2, LAST)
    assert span.draws == pytest.approx(span_draws(late.plan, 2, LAST), rel=1e-12)
    expected = query.count_std_error(span.plan, draws=span.draws, counters=span.counters)
    assert compared.count().std_error[0] == pytest.approx(expected, rel=1e-9)
    assert compared.count().value[0] == pytest.approx(span.count)
    difference, sums = compared.kernel_sum(PLACES), span.kernel_sum(PLACES)
    assert difference.value == pytest.approx(sums.value)
    assert difference.std_error == pytest.approx(sums.std_error, rel=1e-9)
    assert early.compare(late).kernel_sum(PLACES).std_error == pytest.approx(sums.std_error, rel=1e-9)


@pytest.mark.statistical
@pytest.mark.parametrize(("delta", "fourth_moment"), [("0", 6), ("0.000001", 3)])
@pytest.mark.parametrize("family", ["hermite", "partition"])
def test_densities_of_two_steps_err_by_what_is_stated(family: str, delta: str, fourth_moment: int, seed: int) -> None:
    """By the variance of what is answered, whose fourth moment is at most that of one draw: false alarm 1e-6."""
    plan, trials = plan_of(family, delta), 250
    values, stated, apart = list[Any](), list[Any](), list[Any]()
    for trial in range(trials):
        early, late = sequence(plan, seed + trial, steps=4)[2:]
        answer = late.compare(early).density(PLACES)
        values.append(answer.value)
        stated.append(np.square(answer.std_error))
        apart.append(sum(np.square(each.density(PLACES).std_error) for each in (early, late)))
    ratio = np.var(values, axis=0, ddof=1) / np.mean(stated, axis=0)
    assert np.all(np.abs(ratio - 1) < FALSE_ALARM_SIGMAS * math.sqrt((fourth_moment - 1) / trials)), ratio
    assert np.all(np.mean(stated, axis=0) < 0.7 * np.mean(apart, axis=0))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("family", SKETCHES)
def test_a_release_differs_from_itself_by_nothing(family: str, delta: str) -> None:
    release = sequence(plan_of(family, delta))[-1]
    compared = release.compare(release)
    assert compared.count().std_error[0] == pytest.approx(0, abs=1e-6)
    assert compared.density(PLACES).std_error == pytest.approx(0, abs=1e-6)
    if family != "hashed":
        assert compared.p_value(PLACES) == 1
        assert len(compared.regions(PLACES)) == 0


def test_a_difference_that_noise_of_both_would_explain_is_found() -> None:
    early, late = sequence(plan_of("partition", epsilon="0.1"), records=80)[-2:]
    assert len(late.compare(early).regions(PLACES)) == 1
    assert len(replace(late, first_window=0).compare(early).regions(PLACES)) == 0


def test_other_releases_are_independent() -> None:
    plan = plan_of("hashed")
    early, late = sequence(plan)[1:3]
    others = [
        replace(early, first_window=0),  # begun earlier: another sequence
        replace(early, step=3),  # two steps of one number
        replace(early, step=4),  # a later step of an earlier window
        replace(early, window=3),
        sequence(plan, seed=2)[2],  # of the same step, with other noise
        sequence(plan_of("hashed", epsilon="2"))[1],
    ]
    for other in others:
        assert query.shared_draws(late, other) == query.shared_draws(other, late) == 0.0
        errors = [query.count_std_error(each.plan, draws=each.draws) for each in (late, other)]
        assert late.compare(other).count().std_error[0] == pytest.approx(math.hypot(*errors), rel=1e-12)
    tumbling = plan_of("hashed", is_cumulative=False)
    alone = draw(hs.Sketch(tumbling), kind="tumbling", window=2, entropy=ReplayableEntropy(b"1"), accounted=True)
    assert query.shared_draws(late, alone) == 0.0
