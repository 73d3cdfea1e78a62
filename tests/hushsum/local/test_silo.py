"""A silo's submission: noise on everything, the same bytes whatever the client holds but for the noise, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.delta import DeltaId, encode
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.errors import DeltaError, GuaranteeError, PlanError, Reason
from hushsum.local import silo
from hushsum.plan import Plan
from hushsum.privacy.modular_words import Words

Int64 = npt.NDArray[np.int64]

ID = DeltaId(2**63 + 5, 300)
SKETCHES: dict[str, dict[str, object]] = {
    "hashed": {"family": "hashed", "kernel": "euclidean", "bandwidth": "0.2", "rows": 8, "buckets": 16, "seed": 1},
    "fourier": {"family": "fourier", "kernel": "gaussian", "bandwidth": "0.2", "rows": 8, "seed": 1},
    "cells": {"family": "partition", "bandwidth": "0.2", "rows": 1, "buckets": 36, "seed": 1},
}
CLASSES = ("a", "b", "c")


def plan_of(family: str = "hashed", *, privacy: dict[str, object] | None = None) -> Plan:
    record: dict[str, object] = {"dim": 2, "lower": [0, 0], "upper": [1, 1], "classes": list(CLASSES)}
    promise: dict[str, object] = {"mode": "local", "epsilon": 1, "total_epsilon": 10, "local": {"form": "silo"}}
    return Plan(
        name="s",
        record=record,
        sketch=SKETCHES[family],
        privacy={key: value for key, value in {**promise, **(privacy or {})}.items() if value},
    )


GAUSSIAN: dict[str, object] = {
    "delta": "0.000001",
    "total_delta": "0.001",
    "mechanism": {"name": "discrete-gaussian", "scale": "1000", "count_scale": 1},
}
PLANS = {
    "laplace": plan_of(),
    "gaussian": plan_of(privacy=GAUSSIAN),
    "client": plan_of(privacy={"unit": "client", "records_per_client": 3}),
    "fourier": plan_of("fourier"),
    "cells, no count counters": plan_of("cells"),
}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]


@pytest.fixture
def entropy(seed: int) -> ReplayableEntropy:
    return ReplayableEntropy(seed.to_bytes(8, "big"))


def nothing(plan: Plan) -> tuple[Int64, Int64]:
    return np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)


def submit(plan: Plan, counters: Int64, counts: Int64, entropy: Any, window: int = -3) -> bytes:
    return silo.submission(plan, counters, counts, window=window, id=ID, entropy=entropy)


# ------------------------------------------------------------------------------------------------------- the noise


def test_what_is_submitted_is_counters_and_counts_with_the_plans_own_noise(plan: Plan, seed: int) -> None:
    """Replayed: the noise of one draw of the mechanism, counters first; so on every class and on every count."""
    key = seed.to_bytes(8, "big")
    noise = plan.privacy.mechanism.noise().sample(plan.words.length, ReplayableEntropy(key))
    rng = np.random.default_rng(seed)
    counters = rng.integers(-2, 3, plan.counters_shape)
    counts = plan.privacy.mechanism.count_scale * rng.integers(0, 3, plan.count_counters)
    found = silo.unpack(submit(plan, counters, counts, ReplayableEntropy(key)), plan)
    assert np.array_equal((found.counters - counters).reshape(-1), noise[: counters.size])
    assert np.array_equal(found.counts - counts, noise[counters.size :])
    assert (found.plan_id, found.window, found.id) == (plan.id, -3, ID)
    assert found.counters.dtype == found.counts.dtype == np.int64


@pytest.mark.statistical
def test_every_counter_and_every_count_has_noise_of_the_stated_variance(plan: Plan, entropy: ReplayableEntropy) -> None:
    """Of 400 submissions, up to 400 estimates: each below 8.5 standard errors too many, and above e^−21: 1e-6."""
    runs = 400
    found = [silo.unpack(submit(plan, *nothing(plan), entropy), plan) for _ in range(runs)]
    noise = np.stack([np.append(each.counters.reshape(-1), each.counts) for each in found]).astype(np.float64)
    ratio = (noise**2).mean(axis=0) / plan.privacy.mechanism.noise().variance
    kurtosis_error = np.sqrt(5 / runs)  # of Laplace noise; a Gaussian's is smaller
    assert (ratio < 1 + 8.5 * kurtosis_error).all()
    assert (ratio > 0.2).all()


def test_a_client_without_records_submits_as_many_bytes_as_any_other(plan: Plan, entropy: ReplayableEntropy) -> None:
    counters, counts = nothing(plan)
    sizes = {len(submit(plan, counters + each, counts + each, entropy)) for each in (0, 1, 100, -(2**40))}
    assert len(sizes) == 1
    assert sizes.pop() <= plan.upload_bytes_max


def test_what_no_word_holds_is_cut_off_at_its_ends(entropy: ReplayableEntropy) -> None:
    """Wrapped around, a client of very many records would count with the other sign."""
    plan = PLANS["laplace"]
    counters, counts = nothing(plan)
    found = silo.unpack(submit(plan, counters + 2**40, counts - 2**40, entropy), plan)
    assert (found.counters == 2 ** (plan.words.bits - 1) - 1).all()
    assert (found.counts == -(2 ** (plan.words.count_bits - 1))).all()


def test_submissions_are_added(plan: Plan, entropy: ReplayableEntropy) -> None:
    counters, counts = nothing(plan)
    found = [silo.unpack(submit(plan, counters, counts, entropy), plan) for _ in range(2)]
    for each in found:
        each.add_to(counters, counts)
    assert np.array_equal(counters, found[0].counters + found[1].counters)
    assert np.array_equal(counts, found[0].counts + found[1].counts)


def test_the_clients_own_counters_stay_as_they_were(plan: Plan) -> None:
    counters, counts = nothing(plan)
    submit(plan, counters, counts, OsEntropy())
    assert not counters.any()
    assert not counts.any()


def test_two_submissions_of_the_same_counters_have_noise_of_their_own(plan: Plan) -> None:
    assert submit(plan, *nothing(plan), OsEntropy()) != submit(plan, *nothing(plan), OsEntropy())


# ------------------------------------------------------------------------------------------------------- its words


def test_words_hold_what_one_client_may_count_and_its_own_noise() -> None:
    plan = PLANS["client"]
    noise = plan.privacy.mechanism.noise()
    room = 2 ** (plan.words.bits - 1) - 3 * plan.family.sensitivity.linf
    beyond = -float(noise.log_probability(np.array([room]))[0]) / np.log(2)
    assert beyond > 41
    assert plan.words.bits < np.log2(noise.std) + 10


def test_words_are_those_of_one_client_whatever_the_unit() -> None:
    """Unit record: 2^20 records are assumed, which is more than the noise of a small plan."""
    assert PLANS["laplace"].words.bits >= 22 > PLANS["client"].words.bits


def test_more_noise_than_submissions_could_add_up_is_refused() -> None:
    with pytest.raises(PlanError, match="48 bits"):
        _ = plan_of(privacy={"epsilon": "0.0000000000001", "total_epsilon": 1}).words


# --------------------------------------------------------------------------------------------------------- refusals


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def newer(data: bytes) -> bytes:
    return bytes([2]) + data[1:]


def of_another_plan(data: bytes) -> bytes:
    return data[:1] + bytes(32) + data[33:]


def huge(data: bytes) -> bytes:
    return data + bytes(10_000)


def long_number(data: bytes) -> bytes:
    return data[:41] + b"\x80\x00" + data[43:]  # a sequence of 0 in two bytes


def header_alone(data: bytes) -> bytes:
    return data[:40]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut, Reason.MALFORMED),
        (longer, Reason.MALFORMED),
        (header_alone, Reason.MALFORMED),
        (long_number, Reason.MALFORMED),
        (newer, Reason.NEWER_FORMAT),
        (of_another_plan, Reason.WRONG_PLAN),
        (huge, Reason.TOO_LARGE),
    ],
)
def test_other_bytes_are_refused_with_a_reason(
    spoil: Callable[[bytes], bytes], reason: Reason, entropy: ReplayableEntropy
) -> None:
    plan = PLANS["laplace"]
    data = spoil(submit(plan, *nothing(plan), entropy))
    with pytest.raises(DeltaError) as refused:
        silo.unpack(data, plan)
    assert refused.value.reason is reason


def test_bits_after_the_last_word_are_refused(entropy: ReplayableEntropy) -> None:
    plan = PLANS["laplace"]
    spare = 8 * -(-len(CLASSES) * plan.words.count_bits // 8) - len(CLASSES) * plan.words.count_bits
    assert spare > 0, "the plan's counts leave bits over"
    data = submit(plan, *nothing(plan), entropy)
    with pytest.raises(DeltaError, match="bits after the last") as refused:
        silo.unpack(data[:-1] + bytes([data[-1] | 1]), plan)
    assert refused.value.reason is Reason.MALFORMED


def test_every_bit_flipped_is_refused_or_read_as_another_submission(entropy: ReplayableEntropy) -> None:
    plan = PLANS["laplace"]
    data = submit(plan, *nothing(plan), entropy)
    known = silo.unpack(data, plan)
    for place in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        try:
            found = silo.unpack(bytes(flipped), plan)
        except DeltaError:
            continue
        same = np.array_equal(found.counters, known.counters) and np.array_equal(found.counts, known.counts)
        assert not (same and (found.window, found.id) == (known.window, known.id))


SECURE: dict[str, object] = {
    "mode": "secure",
    "total_delta": "0.001",
    "secure": {"cohort": 5, "corrupt": "0.2", "dropout": "0.2"},
}


@pytest.mark.parametrize(
    "privacy", ({"mode": "central"}, SECURE, {"mode": "local"}), ids=("central", "secure", "report")
)
def test_other_plans_have_no_noised_sums(privacy: dict[str, object]) -> None:
    promise = {"epsilon": 1, "total_epsilon": 10, **privacy}
    record: dict[str, object] = {"dim": 2, "lower": [0, 0], "upper": [1, 1]}
    plan = Plan(name="s", record=record, sketch=SKETCHES["hashed"], privacy=promise, window={"lateness": "5m"})
    with pytest.raises(GuaranteeError, match="no noised sums"):
        submit(plan, *nothing(plan), OsEntropy())
    with pytest.raises(GuaranteeError, match="no noised sums"):
        silo.unpack(b"", plan)


def test_a_central_delta_is_no_submission() -> None:
    central = plan_of(privacy={"mode": "central", "local": None})
    delta, _ = encode(central, np.ones((1, 2)), window=0, id=ID, labels="a")
    assert delta is not None
    with pytest.raises(DeltaError):
        silo.unpack(delta.pack(central), PLANS["laplace"])


def test_counters_of_another_shape_or_type_are_refused() -> None:
    plan = PLANS["laplace"]
    counters, counts = nothing(plan)
    wrong: list[tuple[Any, Any]] = [
        (counters[:2], counts),
        (counters.reshape(-1), counts),
        (counters, counts[:2]),
        (counters.astype(np.int32), counts),
        (counters, counts.astype(np.float64)),
    ]
    for each in wrong:
        with pytest.raises(ValueError, match="expected int64"):
            submit(plan, *each, OsEntropy())


def test_a_source_that_runs_dry_submits_nothing() -> None:
    class Dry:
        def read(self, size: int) -> bytes:
            return b""

    plan = PLANS["laplace"]
    with pytest.raises(OSError, match="entropy"):
        submit(plan, *nothing(plan), Dry())


def test_counters_never_show_in_a_repr(entropy: ReplayableEntropy) -> None:
    plan = PLANS["laplace"]
    shown = repr(silo.unpack(submit(plan, *nothing(plan), entropy), plan))
    assert "array" not in shown
    assert isinstance(plan.words, Words)
