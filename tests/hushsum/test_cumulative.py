"""Cumulative releases: a pure state machine whose state is a secret, and a sequence that is charged once.

False alarms of the tests that draw: below 10^-6 each (six standard deviations of a mean of many squares).
"""

import math
import zlib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from hushsum import cumulative, query
from hushsum.canonical import real_text
from hushsum.cumulative import CumulativeState, chained
from hushsum.entropy import KeyedEntropy, OsEntropy
from hushsum.errors import BudgetError, GuaranteeError, PlanError, PlanMismatchError, ReleaseError
from hushsum.estimators.base import noise_error
from hushsum.outcomes import decide
from hushsum.privacy.accountant import Account
from hushsum.privacy.calibration import count_choices
from hushsum.privacy.claim import Claim
from hushsum.privacy.events import CUMULATIVE, IN_PROCESS, TUMBLING, Event, Spend
from hushsum.privacy.factorisation import UNIT, BufferedToeplitz, Node, SignedDigitTree
from hushsum.privacy.spending import spend_of
from hushsum.privacy.statement import pays_for
from hushsum.privacy.verifier import loss_of, moved_squared
from hushsum.sensitivity import Sensitivity
from hushsum.statistics import Statistics
from tests.hushsum.cumulative_plans import cumulative_plan
from tests.plans import small_plan

HERMITE = {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.5", "order": 4, "cutoff": "3"}
PURE = cumulative_plan()
ZCDP = cumulative_plan(delta="0.000001")
CELLS = {"family": "partition", "bandwidth": "0.25", "rows": 1, "buckets": 16}
LARGE = cumulative_plan(delta="0.000001", sketch={"rows": 64, "buckets": 300})  # two blocks of a state
LARGE_BITS = 24
SEALED = bytes(range(32))
Ints = npt.NDArray[np.int64]


def sketch_of(plan: hs.Plan, records: int = 20, seed: int = 0) -> hs.Sketch:
    return hs.Sketch(plan).add(np.random.default_rng(seed).random((records, 2))) if records else hs.Sketch(plan)


def exact_of(plan: hs.Plan) -> Ints:
    sketch = sketch_of(plan)
    return np.concatenate([sketch.counters.reshape(-1), sketch.counts])


def stepped(
    plan: hs.Plan, state: bytes, number: int, *, records: int = 20, key: int | None = None, seed: int = 0
) -> tuple[hs.Release, bytes]:
    entropy = OsEntropy() if key is None else KeyedEntropy(key.to_bytes(32, "big"))
    sketch = sketch_of(plan, records, seed)
    return cumulative.step(plan, state, sketch, window=number, sealed=SEALED, entropy=entropy)


def sequence(plan: hs.Plan, steps: int, records: int = 20) -> tuple[list[hs.Release], bytes]:
    state, releases = cumulative.initial(plan), []
    for number in range(1, steps + 1):
        release, state = stepped(plan, state, number, records=records)
        releases.append(release)
    return releases, state


def noise_of(release: hs.Release, exact: Ints) -> Ints:
    return np.asarray(release.counters - exact).reshape(-1)


@pytest.mark.parametrize("plan", [PURE, ZCDP], ids=["tree", "buffers"])
def test_the_same_arguments_give_the_same_bytes_and_another_key_others(plan: hs.Plan) -> None:
    _, state = sequence(plan, 14)
    first, second = (stepped(plan, state, 15, key=7) for _ in range(2))
    assert (first[0].to_bytes(), first[1]) == (second[0].to_bytes(), second[1])
    other = stepped(plan, state, 15, key=8)
    assert (other[0].counters != first[0].counters).any()
    assert other[1] != first[1]


@pytest.mark.parametrize("plan", [PURE, ZCDP], ids=["tree", "buffers"])
def test_releases_are_of_all_windows_so_far(plan: hs.Plan) -> None:
    state, exact = cumulative.initial(plan), np.zeros(plan.counters_shape, np.int64)
    for number, window in enumerate((5, 6, 9, 10), 1):  # 7 and 8 were skipped, and take no step
        sketch = sketch_of(plan, 10**6 // 50, seed=number)
        release, state = cumulative.step(plan, state, sketch, window=window, sealed=SEALED, entropy=OsEntropy())
        exact = exact + sketch.counters
        assert (release.step, release.span, release.window) == (number, (5, window), window)
        assert release.kind == CUMULATIVE
        limit = 60 * math.sqrt(plan.privacy.mechanism.noise_variance * query.noise_covariance(plan, number, number))
        assert np.abs(noise_of(release, exact)).max() < limit
        assert hs.Release.from_bytes(release.to_bytes()).to_bytes() == release.to_bytes()


@pytest.mark.statistical
@pytest.mark.parametrize("delta", ["0", "0.000001"], ids=["tree", "buffers"])
@pytest.mark.parametrize(
    ("horizon", "rows", "at"),
    [(150, 64, 150), pytest.param(10_000, 256, 10_000, marks=[pytest.mark.long, pytest.mark.slow])],
)
def test_whole_releases_err_by_what_is_stated(delta: str, horizon: int, rows: int, at: int) -> None:
    plan = cumulative_plan(delta=delta, horizon=horizon, sketch={"rows": rows, "buckets": 64})
    state, empty = cumulative.initial(plan), hs.Sketch(plan)
    kept: dict[int, npt.NDArray[np.float64]] = {}
    for number in range(1, at + 1):
        release, state = cumulative.step(plan, state, empty, window=number, sealed=SEALED, entropy=OsEntropy())
        if number in (1, at // 3, at):
            kept[number] = release.counters.reshape(-1).astype(np.float64)
    n, variance = rows * 64, plan.privacy.mechanism.noise_variance
    allowed = 6 * math.sqrt(5 / n)  # a discrete Laplace draw alone has a kurtosis of 6
    for number, noise in kept.items():
        expected = variance * query.noise_covariance(plan, number, number)
        assert float(np.square(noise).mean()) == pytest.approx(expected, rel=allowed)
        both = query.noise_covariance(plan, number, at) * variance
        last = variance * query.noise_covariance(plan, at, at)
        assert float((noise * kept[at]).mean()) == pytest.approx(both, abs=allowed * math.sqrt(expected * last))


def test_noise_of_a_span_is_that_of_the_difference() -> None:
    for plan in (PURE, ZCDP):
        releases, _ = sequence(plan, 12, records=0)
        early, late = (query.noise_covariance(plan, step, step) for step in (5, 12))
        span = early + late - 2 * query.noise_covariance(plan, 5, 12)
        assert 0 < span <= early + late
        noise = noise_of(releases[11], np.asarray(releases[4].counters)).astype(np.float64)
        expected = span * plan.privacy.mechanism.noise_variance
        assert float(np.square(noise).mean()) == pytest.approx(expected, rel=6 * math.sqrt(5 / noise.size))


def test_a_state_tells_exact_totals_to_whoever_has_it() -> None:
    """A state is secret (docs/explanation/proofs/cumulative.md): here are the totals that it gives."""
    (_, state), exact = sequence(PURE, 14), 14 * exact_of(PURE)
    read = CumulativeState.from_bytes(PURE, state)
    made, sampler = PURE.privacy.mechanism.factorisation, PURE.privacy.mechanism.noise()
    assert isinstance(made, SignedDigitTree)
    noise = np.zeros(exact.size, np.int64)
    for node, sign in made.nodes(14).items():
        noise += sign * sampler.sample(exact.size, KeyedEntropy(read.keys[node]))
    assert noise.any()
    assert (read.words - noise == exact).all()

    buffers = ZCDP.privacy.mechanism.factorisation
    assert isinstance(buffers, BufferedToeplitz)
    depth = len(buffers.theta)  # as many steps as buffers: β_i = Σ_j θ_i^(t−j)·w_j is solved for w
    _, state = sequence(ZCDP, depth)
    read, exact = CumulativeState.from_bytes(ZCDP, state), depth * exact_of(ZCDP)
    powers = [[(theta / UNIT) ** (depth - step) for step in range(1, depth + 1)] for theta in buffers.theta]
    drawn = np.linalg.solve(np.array(powers), read.buffers / 2.0**buffers.bits)
    assert (np.rint(read.words + read.parts / 2.0**buffers.bits - drawn.sum(axis=0)) == exact).all()


def test_a_release_is_accounted_only_where_its_caller_says_so() -> None:
    """Two sequences of one plan can be started in process, of which a ledger has one."""
    first, second = (stepped(ZCDP, cumulative.initial(ZCDP), 1)[0] for _ in range(2))
    assert not first.accounted
    assert not second.accounted
    assert "unaccounted" in first.statement()
    release, _ = cumulative.step(
        ZCDP,
        cumulative.initial(ZCDP),
        sketch_of(ZCDP),
        window=1,
        sealed=SEALED,
        entropy=OsEntropy(),
        accounted=True,
    )
    assert release.accounted
    assert hs.Release.from_bytes(release.to_bytes()).accounted


def test_keys_of_nodes_are_their_own_and_go_with_the_node() -> None:
    state, known, keys = cumulative.initial(PURE), dict[Node, bytes](), dict[Node, bytes]()
    for number in range(1, 40):
        _, state = stepped(PURE, state, number, key=number, records=0)
        keys = dict(CumulativeState.from_bytes(PURE, state).keys)
        assert number.to_bytes(32, "big") not in state  # the step's own key is not kept
        assert len(set(keys.values())) == len(keys)
        for node, key in keys.items():
            assert known.setdefault(node, key) == key
    assert len(known) > len(keys)  # others have left, and their keys with them
    gone = set(known.values()) - set(keys.values())
    assert not any(key.hex().encode() in state for key in gone)


def test_memory_is_at_most_five_vectors() -> None:
    for plan in (PURE, ZCDP):
        _, state = sequence(plan, 5)
        vector = 8 * (math.prod(plan.counters_shape) + plan.count_counters)
        assert len(state) <= 5 * vector + 4096


def test_a_stored_counter_takes_21_bytes() -> None:
    """What bounds the work of a step that is stored (docs/benchmarks.md): three buffers of 5 bytes, 3 for each word."""
    plan = cumulative_plan(delta="0.000001", horizon=10_000, sketch={"rows": 64, "buckets": 300})
    _, state = sequence(plan, 4)
    counters = math.prod(plan.counters_shape) + plan.count_counters
    assert counters > cumulative._BLOCK
    assert len(state) <= 21 * counters + 512


VECTORS = (
    (0, -1, 1),
    *(((1 << 8 * width - 1) - 1, -(1 << 8 * width - 1), 7) for width in range(1, 9)),
    *((1 << 8 * width - 1, 0, 0) for width in range(1, 8)),
)


@pytest.mark.parametrize("ends", VECTORS, ids=str)
def test_vectors_of_every_width_are_read_as_they_were(ends: tuple[int, ...]) -> None:
    _, state = sequence(LARGE, 1)
    read = CumulativeState.from_bytes(LARGE, state)
    for place in (0, cumulative._BLOCK, read.words.size - 3):  # in the first block and in the last one
        words, buffers = read.words.copy(), read.buffers.copy()
        words[place : place + 3] = ends
        buffers[-1, place : place + 3] = ends
        parts = read.parts.copy()
        parts[place : place + 3] = (0, 2**LARGE_BITS - 1, 1)
        changed = replace(read, words=words, parts=parts, buffers=buffers)
        again = CumulativeState.from_bytes(LARGE, changed.to_bytes())
        for name in ("words", "parts", "buffers"):
            ours, exact = getattr(again, name), getattr(changed, name)
            assert ours.dtype == exact.dtype
            assert np.array_equal(ours, exact)


def of_whole_words(state: CumulativeState) -> bytes:
    """The format before this one: all vectors in 8 bytes a number, and 4 of a rest of a sum."""
    body = cumulative._joined(state, ())[: -cumulative._CHECKSUM_BYTES]
    vectors = (state.words.astype("<i8"), state.parts.astype("<u4"), state.buffers.astype("<i8"))
    body = body[:4] + b"\0\1" + body[6:] + b"".join(vector.tobytes() for vector in vectors)
    return body + zlib.crc32(body).to_bytes(4, "big")


@pytest.mark.parametrize("plan", [PURE, ZCDP], ids=["tree", "buffers"])
def test_a_state_of_the_format_before_gives_the_same_step(plan: hs.Plan) -> None:
    for steps in (0, 3):
        _, state = sequence(plan, steps)
        older = of_whole_words(CumulativeState.from_bytes(plan, state))
        assert older != state
        (one, after), (other, expected) = (stepped(plan, each, 4, key=7) for each in (older, state))
        assert (one.to_bytes(), after) == (other.to_bytes(), expected)
        with pytest.raises(ReleaseError):
            stepped(plan, of_whole_words(CumulativeState.from_bytes(plan, state))[:-9], 4)


def resealed(state: bytes, at: int, *, to: bytes) -> bytes:
    """Other bytes from one place on, under a checksum that fits."""
    body = (state[:at] + to + state[at + len(to) :])[: -cumulative._CHECKSUM_BYTES]
    return body + zlib.crc32(body).to_bytes(4, "big")


def test_blocks_that_do_not_fit_are_refused_even_under_their_checksum() -> None:
    _, state = sequence(ZCDP, 2)
    last = 10 + int.from_bytes(state[6:10], "big") + 4  # of the widths of the only block
    for to, named in (
        (b"\0", "for a block of widths"),
        (b"\t", "for a block of widths"),
        (bytes([state[last] + 1]), "for a block of widths"),
        (bytes([state[last] - 1]), "after the last block"),
    ):
        with pytest.raises(ReleaseError, match=named):
            stepped(ZCDP, resealed(state, last, to=to), 3)
    with pytest.raises(ReleaseError, match="state format 3, this version of Hushsum supports 1 and 2"):
        stepped(ZCDP, resealed(state, 4, to=b"\0\3"), 3)
    assert cumulative.digest_of(state) == CumulativeState.from_bytes(ZCDP, state).digest


def test_digests_are_chained() -> None:
    first = CumulativeState.from_bytes(PURE, cumulative.initial(PURE))
    assert first.digest == PURE.id
    _, state = stepped(PURE, cumulative.initial(PURE), 1)
    assert CumulativeState.from_bytes(PURE, state).digest == chained(PURE.id, SEALED)
    assert chained(PURE.id, SEALED) != chained(SEALED, PURE.id)
    with pytest.raises(ValueError, match="32 bytes"):
        chained(b"", SEALED)


def test_a_sequence_ends_at_its_horizon() -> None:
    plan = cumulative_plan(horizon=2)
    _, state = sequence(plan, 2)
    with pytest.raises(BudgetError, match="had the 2 outcomes"):
        stepped(plan, state, 3)


def test_states_that_are_not_of_this_sequence_are_refused() -> None:
    _, state = sequence(ZCDP, 3)
    with pytest.raises(ReleaseError, match="window 3 after window 3"):
        stepped(ZCDP, state, 3)
    with pytest.raises(ReleaseError, match="of plan"):
        stepped(cumulative_plan(delta="0.000001", horizon=99), state, 4)
    with pytest.raises(PlanMismatchError):
        cumulative.step(ZCDP, state, sketch_of(PURE), window=4, sealed=SEALED, entropy=OsEntropy())
    for at in range(0, len(state), 97):
        altered = state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :]
        with pytest.raises(ReleaseError):
            stepped(ZCDP, altered, 4)
        with pytest.raises(ReleaseError):
            stepped(ZCDP, state[:at], 4)
    with pytest.raises(GuaranteeError, match="tumbling"):
        cumulative.initial(tumbling())


@pytest.mark.parametrize("window", [1.0, True, "2", None, 2**53, -(2**53)])
def test_a_window_that_is_no_index_is_refused_before_anything_is_drawn(window: Any) -> None:
    entropy = Unread()
    with pytest.raises(ReleaseError, match="expected an integer"):
        cumulative.step(PURE, cumulative.initial(PURE), sketch_of(PURE), window=window, sealed=SEALED, entropy=entropy)


class Unread(OsEntropy):
    """Fails if it is read."""

    def read(self, size: int, /) -> bytes:
        raise AssertionError(f"{size} bytes were read")


def test_states_that_contradict_themselves_are_refused() -> None:
    _, state = sequence(ZCDP, 3)
    read = CumulativeState.from_bytes(ZCDP, state)
    buffers = ZCDP.privacy.mechanism.factorisation
    assert isinstance(buffers, BufferedToeplitz)
    parts = read.parts.copy()
    parts[-1] = 2**buffers.bits
    for changed, named in (
        ({"first_window": 4}, "3 steps of the windows from 4 to 3"),
        ({"first_window": 2}, "3 steps of the windows from 2 to 3"),
        ({"parts": parts}, "below 2"),
    ):
        with pytest.raises(ReleaseError, match=named):
            CumulativeState.from_bytes(ZCDP, replace(read, **changed).to_bytes())


def fields_of(plan: hs.Plan) -> dict[str, Any]:
    return {key: value for key, value in plan.to_fields().items() if key != "format"}


def tumbling() -> hs.Plan:
    fields = fields_of(PURE)
    privacy = {key: value for key, value in fields["privacy"].items() if key != "mechanism"}
    return hs.Plan.from_fields(
        {"name": "x", "record": fields["record"], "sketch": fields["sketch"], "privacy": privacy}
    )


def test_no_other_way_releases_a_cumulative_plan() -> None:
    sketch = sketch_of(PURE)
    with pytest.raises(GuaranteeError, match="cumulative"):
        hs.release(sketch)
    with pytest.raises(GuaranteeError, match="cumulative"):
        decide(sketch, kind=TUMBLING, window=1, clients=3, entropy=OsEntropy())
    for kind, window in ((TUMBLING, 1), (IN_PROCESS, None)):
        with pytest.raises(GuaranteeError, match="paid for together"):
            spend_of(PURE, kind=kind, window=window)
    with pytest.raises(GuaranteeError, match="tumbling"):
        spend_of(tumbling(), kind=CUMULATIVE, window=None)


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_error_bars_are_those_of_the_step(delta: str) -> None:
    plan = _sketched(delta, HERMITE)
    releases, _ = sequence(plan, 12)
    queries = np.array([[0.5, 0.5], [0.1, 0.9]])
    for release in (releases[0], releases[11]):
        factor = query.noise_covariance(plan, release.step or 0, release.step or 0)
        by_hand = plan.family.answer(
            release.counters[0], queries, noise_variance=factor * plan.privacy.mechanism.noise_variance
        )
        assert np.allclose(release.kernel_sum(queries).std_error, by_hand.std_error)
        expected = math.sqrt(factor * plan.privacy.mechanism.noise_variance) / plan.privacy.mechanism.count_scale
        assert query.count_std_error(plan, draws=release.draws) == pytest.approx(expected)
        assert np.isfinite(release.density(queries).std_error).all()
    assert (releases[11].kernel_sum(queries).std_error > releases[0].kernel_sum(queries).std_error).all()
    worst = query.noise_std_error(plan)
    assert worst >= query.noise_std_error(plan, draws=releases[11].draws)


@pytest.mark.parametrize("delta", ["0", "0.000001"], ids=["tree", "buffers"])
def test_errors_of_cells_are_those_of_the_step(delta: str) -> None:
    """Cells of one row have the noise of a counter; without a count counter n̂ is the sum of the 16."""
    plan = _sketched(delta, CELLS)
    early, late, error, worst = at_two_steps(plan)
    assert error < worst
    for release in (early, late):
        one = math.sqrt(plan.privacy.mechanism.noise_variance * (release.draws or 0))
        assert release.kernel_sum([[0.1, 0.1]]).std_error == pytest.approx([one])
        assert query.count_std_error(plan, draws=release.draws, counters=release.counters) == pytest.approx(4 * one)
    assert late.kernel_sum([[0.1, 0.1]]).std_error == pytest.approx([error])

    nested = _sketched(delta, {"family": "partition", "bandwidth": "0.0625", "rows": 8, "levels": 4, "buckets": 64})
    assert nested.count_counters  # n̂ is of it and the cells together
    early, late, *_ = at_two_steps(nested)
    of_n = [query.count_std_error(nested, draws=each.draws, counters=each.counters) for each in (early, late)]
    assert of_n[1] / of_n[0] == pytest.approx(math.sqrt((late.draws or 0) / (early.draws or 1)))


@pytest.mark.parametrize("delta", ["0", "0.000001"], ids=["tree", "buffers"])
def test_errors_of_statistics_are_those_of_the_step(delta: str) -> None:
    _, late, error, _ = at_two_steps(_sketched(delta, CELLS))
    statistics = Statistics(late)
    assert statistics.count.std_error == pytest.approx([4 * error])
    assert statistics.cross_table(bins=(None, None)).counts.std_error == pytest.approx(np.full(16, error))


@pytest.mark.parametrize("delta", ["0", "0.000001"], ids=["tree", "buffers"])
def test_errors_of_estimators_are_those_of_the_step(delta: str) -> None:
    plan = cumulative_plan(delta=delta)
    _, late, error, worst = at_two_steps(plan)
    expected = math.sqrt(plan.family.answer_variance(error**2))
    assert noise_error(late) == pytest.approx(expected)
    assert expected < math.sqrt(plan.family.answer_variance(worst**2))


def at_two_steps(plan: hs.Plan) -> tuple[hs.Release, hs.Release, float, float]:
    """Releases of steps 1 and 13; the standard deviations of a counter's noise at step 13, and at the worst one."""
    releases, _ = sequence(plan, 13)
    variance, cumulation = plan.privacy.mechanism.noise_variance, plan.privacy.cumulation
    assert cumulation is not None
    error, worst = query.noise_covariance(plan, 13, 13) * variance, cumulation.worst_variance * variance
    assert variance < error < worst
    return releases[0], releases[12], math.sqrt(error), math.sqrt(worst)


def test_advice_on_counts_is_that_of_the_worst_step() -> None:
    privacy = PURE.privacy
    *_, own = count_choices(PURE.family.sensitivity, privacy.claim, privacy.budget, PURE.family.record_rows)
    assert own.mechanism == privacy.mechanism
    assert own.std_error == pytest.approx(query.count_std_error(PURE))
    assert own.std_error > math.sqrt(privacy.mechanism.noise_variance)


def _sketched(delta: str, sketch: dict[str, object]) -> hs.Plan:
    fields = fields_of(cumulative_plan(delta=delta))
    privacy = {key: value for key, value in fields["privacy"].items() if key != "mechanism"}
    privacy |= {"noise": "laplace" if delta == "0" else "gaussian"}
    kept = {key: fields[key] for key in ("name", "record", "window")}
    return hs.Plan.from_fields({**kept, "sketch": sketch, "privacy": privacy})


def test_a_sequence_is_one_spend_that_counts_once() -> None:
    for plan in (PURE, ZCDP):
        spend = spend_of(plan, kind=CUMULATIVE, window=None)
        assert Spend.from_bytes(spend.to_bytes()) == spend
        account = Account(plan.limits).charge(spend)
        once = account.spent
        assert once.epsilon <= 1
        assert account.recorded(spend, Spend.from_bytes(spend.to_bytes())).spent == once  # as receipts repeat it
        assert len(account.recorded(spend).spends) == 1
        with pytest.raises(BudgetError, match="already charged"):
            account.charge(spend)
        assert "paid for" in pays_for(account, spend)
        later = cumulative_plan(delta=fields_of(plan)["privacy"]["delta"], horizon=77)
        both = account.charge(spend_of(later, kind=CUMULATIVE, window=None))
        assert both.spent.epsilon > 1.4 * once.epsilon  # of two plans: they add, records too
        with pytest.raises(BudgetError, match="cumulative"):
            both.charge(spend)


def client_plan(delta: str, records: int, windows: int) -> hs.Plan:
    bound = {"windows_per_client": windows}
    return cumulative_plan(delta=delta, unit="client", records_per_client=records, window=bound)


@pytest.mark.parametrize("delta", ["0", "0.000001"], ids=["tree", "buffers"])
@pytest.mark.parametrize("windows", [1, 7])
@pytest.mark.parametrize("records", [1, 3, 50])
def test_what_is_charged_is_what_was_verified(records: int, windows: int, delta: str) -> None:
    plan = client_plan(delta, records, windows)
    mechanism, claim = plan.privacy.mechanism, plan.privacy.claim
    spend = spend_of(plan, kind=CUMULATIVE, window=None)
    assert spend.loss == loss_of(mechanism, plan.family.sensitivity, claim)
    (event,) = spend.events
    assert isinstance(event, Event)
    assert mechanism.count_scale == 0
    # One counter in each of 16 rows: all records of a client may be alike, or all different.
    assert event.sensitivity == Sensitivity(records * 16, records * 16, records**2 * 16, records)


@pytest.mark.parametrize(("horizon", "rows"), [(2, 16), (10_000, 1000), (10**6, 1000)])
def test_a_plan_has_the_fewest_bits_whose_roundings_cost_a_thousandth_of_the_noise(horizon: int, rows: int) -> None:
    plan = cumulative_plan(delta="0.000001", horizon=horizon, sketch={"rows": rows})
    made = plan.privacy.mechanism.factorisation
    assert isinstance(made, BufferedToeplitz)

    def noise(bits: int) -> float:
        moved = replace(made, bits=bits).moved_squared(rows, rows, horizon=horizon, windows=1)
        return math.sqrt(moved / made.squared_norm(horizon, 1) / rows)

    assert noise(made.bits) <= 1.0011
    assert made.bits == 24 or noise(made.bits - 1) > 1.0009


def test_what_a_client_of_many_records_moves_is_that_of_the_formula() -> None:
    """C with c_j = ¼·½^(j−1) has ‖C·e_1‖² = 13/12 and η = ½·(1 + ¼/½); 17 counters for each of m records."""
    half = BufferedToeplitz((UNIT // 2,), (UNIT // 4,), bits=24)
    for m in (1, 3, 50):
        claim = Claim(Fraction(1), Fraction(1, 10**6), "client", m, horizon=10**6, windows_per_client=1)
        moved = moved_squared(Sensitivity(16, 16, 16, 1), 1, claim, half)
        rounded = 2.0**-23 * 0.75 * math.sqrt(10**6 * 17 * m)
        assert float(moved) == pytest.approx((m * math.sqrt(17 * 13 / 12) + rounded) ** 2, rel=1e-9)


def test_spends_that_do_not_support_their_claim_are_refused() -> None:
    fields: dict[str, Any] = spend_of(PURE, kind=CUMULATIVE, window=None).to_fields()
    event = fields["events"][0]
    levels = len(event["cumulation"]["factorisation"]["blocks"])
    assert levels > 1
    weak = {**event, "scale": str(Fraction(event["scale"]) * (levels - 1) / levels)}
    with pytest.raises(GuaranteeError, match="does not support"):
        Spend.from_fields({**fields, "events": [weak]})
    bare = {key: value for key, value in event.items() if key != "cumulation"}
    with pytest.raises(PlanError, match="factorisation"):
        Spend.from_fields({**fields, "events": [bare]})
    with pytest.raises(PlanError, match="window"):
        Spend.from_fields({**fields, "window": 0})


def test_a_claim_with_too_little_noise_is_refused_by_every_reader() -> None:
    for plan in (PURE, ZCDP):
        mechanism = plan.privacy.mechanism.to_fields()
        scale = plan.privacy.mechanism.scale
        fields = fields_of(plan)
        weak = {**mechanism, "scale": real_text(scale * Fraction(999, 1000))}
        with pytest.raises(PlanError, match=r"scale: .* in one of 100 windows, "):
            hs.Plan.from_fields({**fields, "privacy": {**fields["privacy"], "mechanism": weak}})
        longer = {**fields["window"], "horizon": 10**6}
        if isinstance(plan.privacy.mechanism.factorisation, BufferedToeplitz):  # more steps move more
            with pytest.raises(PlanError, match="scale"):
                hs.Plan.from_fields({**fields, "window": longer})
        bare = {key: value for key, value in mechanism.items() if key != "factorisation"}
        with pytest.raises(PlanError, match="factorisation"):
            hs.Plan.from_fields({**fields, "privacy": {**fields["privacy"], "mechanism": bare}})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"window": {"min_clients": 5}}, "min_clients"),
        ({"mode": "secure", "total_delta": "0.001"}, "window.release"),
        ({"mode": "local"}, "window.release"),
        ({"unit": "client", "records_per_client": 2}, "windows_per_client"),
        ({"unit": "client", "records_per_client": 2, "window": {"windows_per_client": 101}}, "windows_per_client"),
        ({"window": {"windows_per_client": 2}}, "windows_per_client"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 10**6 + 1}, "horizon"),
    ],
)
def test_contradictions_are_refused_by_their_key(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        cumulative_plan(**keys)


def test_keys_of_a_sequence_are_refused_without_one() -> None:
    fields = fields_of(tumbling())
    assert "horizon" not in fields["window"]
    for key in ("horizon", "windows_per_client"):
        with pytest.raises(PlanError, match=key):
            hs.Plan.from_fields({**fields, "window": {**fields["window"], key: 3}})


@pytest.mark.parametrize(("windows", "factor"), [(2, 1.92), (10, 8.8), (100, 77)])
def test_noise_grows_with_the_windows_of_a_client(windows: int, factor: float) -> None:
    def scale(number: int, delta: str) -> float:
        plan = cumulative_plan(
            delta=delta,
            horizon=10**4,
            unit="client",
            records_per_client=1,
            window={"windows_per_client": number},
        )
        return plan.privacy.mechanism.noise_variance

    assert math.sqrt(scale(windows, "0.000001") / scale(1, "0.000001")) == pytest.approx(factor, rel=0.02)
    assert math.sqrt(scale(windows, "0") / scale(1, "0")) == pytest.approx(windows, rel=1e-3)


def test_a_plan_says_what_its_releases_are() -> None:
    plan = cumulative_plan(unit="client", records_per_client=3, window={"windows_per_client": 4})
    assert ("releases", "cumulative: one epsilon for 100 outcomes; a client is counted in at most 4 of them") in list(
        plan.summary()
    )
    releases, _ = sequence(cumulative_plan(), 1)
    assert "all cumulative releases of its sequence together" in releases[0].statement()
    assert "in at most 4 windows" in plan.guarantee.statement(accounted=True)
    for each, noise in ((PURE, "scale"), (ZCDP, "standard deviation")):
        text = each.guarantee.statement(accounted=True)
        assert "trusted with the exact counters of all windows for as long as the sequence runs" in text
        assert f"made of draws of {each.privacy.mechanism.name} of {noise}" in text
        assert "for each draw" not in text
        assert (": the whole sequence is 0.0" in text) == (each is ZCDP)
    assert "step=1" in repr(releases[0])


def test_texts_say_what_windows_of_a_client_cost() -> None:
    plan = cumulative_plan(
        delta="0.000001", horizon=10**4, unit="client", records_per_client=3, window={"windows_per_client": 10}
    )
    assert plan.privacy.cumulation is not None
    text = plan.privacy.cumulation.windows_text()
    assert text == (
        "a client is counted in at most 10 windows over the plan's life, and in none after that. Noise by that number: "
        "x 1 for 1, x 1.91 for 2, x 8.88 for 10, x 77.4 for 100"
    )
    assert PURE.privacy.cumulation is not None
    assert not PURE.privacy.cumulation.windows_text()


def test_a_factorisation_of_the_other_noise_is_refused_as_its_author_wrote_it() -> None:
    written = {name: plan.privacy.mechanism.to_fields()["factorisation"] for name, plan in (("t", PURE), ("b", ZCDP))}
    for plan, other in ((PURE, written["b"]), (ZCDP, written["t"])):
        fields = fields_of(plan)
        mechanism = {**fields["privacy"]["mechanism"], "factorisation": other}
        with pytest.raises(PlanError, match=r"factorisation: got \{'(theta|blocks)': \[\d"):
            hs.Plan.from_fields({**fields, "privacy": {**fields["privacy"], "mechanism": mechanism}})
        spend: dict[str, Any] = spend_of(plan, kind=CUMULATIVE, window=None).to_fields()
        event = spend["events"][0]
        event = {**event, "cumulation": {**event["cumulation"], "factorisation": other}}
        with pytest.raises(PlanError, match=r"event\.cumulation: got \{'(theta|blocks)': \[\d"):
            Spend.from_fields({**spend, "events": [event]})


def test_trees_of_too_many_keys_are_refused() -> None:
    fields = fields_of(cumulative_plan(horizon=10_000))
    mechanism = {**fields["privacy"]["mechanism"], "factorisation": {"blocks": [1]}}
    with pytest.raises(PlanError, match=r"got \[1\], expected at most 4096 nodes"):
        hs.Plan.from_fields({**fields, "privacy": {**fields["privacy"], "mechanism": mechanism}})


def test_laplace_noise_may_be_asked_for_with_a_delta() -> None:
    plan = cumulative_plan(delta="0.000001", noise="laplace")
    assert plan.privacy.mechanism.to_fields()["factorisation"] == PURE.privacy.mechanism.to_fields()["factorisation"]
    (event,) = spend_of(plan, kind=CUMULATIVE, window=None).events
    assert event.loss.epsilon == 1
    assert event.loss.pure_rho == Fraction(1, 2)  # nothing less: neighbours may be adaptive


def test_errors_of_a_sequence_name_what_is_missing_and_the_mode() -> None:
    with pytest.raises(
        PlanError, match=r"horizon: is missing, expected an integer from 1 to 1,000,000: how many releases"
    ):
        small_plan(window={"release": "cumulative"})
    silo: dict[str, object] = {"mode": "local", "local": {"form": "silo"}}
    with pytest.raises(PlanError, match=r"expected 'tumbling' with privacy\.mode 'local': only mode 'central'"):
        small_plan(window={"release": "cumulative", "horizon": 8}, privacy=silo)
