"""Releases, deltas and outcomes of plans of mode secure: noise comes with the sum, and is drawn nowhere else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum import query
from hushsum.delta import Delta, DeltaId, encode, unpack_at_home
from hushsum.delta_decoder import reader_of
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import BudgetError, DeltaError, GuaranteeError, MergeError, PlanError, Reason, ReleaseError
from hushsum.outcomes import decide
from hushsum.privacy.events import Spend
from hushsum.privacy.relations import NO_LOSS
from hushsum.release_format import Header
from hushsum.release_format import encode as encode_file
from hushsum.releases import draw, of_sums, spend_of
from tests.plans import secure_plan, small_plan

PLAN = secure_plan()
QUERIES = np.array([[5.0, 5.0], [1.0, 9.0]])
HERMITE: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}


def sums(plan: hs.Plan = PLAN, submissions: int = 19, cohorts: int = 2, seed: int = 1) -> hs.Release:
    drawn = np.random.default_rng(seed)
    size = 0 if not submissions else 50
    counters = drawn.integers(-size, size + 1, plan.counters_shape)
    counts = drawn.integers(-size, size + 1, plan.count_counters)
    return of_sums(plan, counters, counts, window=4, cohorts=cohorts, submissions=submissions)


def test_a_release_of_sums_holds_them_as_they_are(tmp_path: Path) -> None:
    release = sums()
    release.save(tmp_path / "a.hush")
    loaded = hs.load(tmp_path / "a.hush")
    assert np.array_equal(loaded.counters, release.counters)
    assert np.array_equal(loaded.counts, release.counts)
    assert (loaded.kind, loaded.window, loaded.accounted) == ("tumbling", 4, True)
    assert (loaded.submissions, loaded.cohorts) == (19, 2)
    assert loaded.to_bytes() == release.to_bytes()
    assert np.array_equal(loaded.kernel_sum(QUERIES).std_error, release.kernel_sum(QUERIES).std_error)


def test_the_statement_says_how_many_took_part() -> None:
    assert "It is the sum of 19 clients in 2 cohorts." in sums().statement()
    assert "It is the sum of 9 clients in 1 cohort." in sums(submissions=9, cohorts=1).statement()


@pytest.mark.parametrize(("submissions", "cohorts"), [(17, 2), (21, 2), (5, 0), (0, 1), (-1, 0), (9, -1)])
def test_numbers_that_no_cohorts_give_are_refused(submissions: int, cohorts: int) -> None:
    with pytest.raises(ReleaseError, match="expected"):
        sums(submissions=submissions, cohorts=cohorts)


def test_an_empty_window_is_all_zero_without_noise() -> None:
    plan = secure_plan(sketch=HERMITE)
    release = sums(plan, submissions=0, cohorts=0)
    assert not release.counters.any()
    assert query.count_std_error(plan, draws=0) == 0
    assert not release.kernel_sum(QUERIES).std_error.any()
    with pytest.raises(ReleaseError, match="not all zero"):
        of_sums(plan, release.counters + 1, release.counts, window=4, cohorts=0, submissions=0)


def test_noise_grows_with_the_submissions_over_h() -> None:
    plan = secure_plan(sketch=HERMITE)  # of which noise is all of the standard error
    noise = plan.privacy.mechanism.noise()
    assert query.noise_variance(plan) == noise.variance
    assert query.noise_variance(plan, draws=query.draws_of(plan, 19)) == noise.variance * 19 / 8
    assert query.noise_std_error(plan, draws=4) == pytest.approx(2 * query.noise_std_error(plan))
    assert query.count_std_error(plan, draws=4) == pytest.approx(2 * query.count_std_error(plan))
    fewer, more = (sums(plan, submissions=n).kernel_sum(QUERIES).std_error for n in (18, 20))
    assert more == pytest.approx(fewer * np.sqrt(20 / 18))
    by_hand = query.density(plan, *(_arrays(sums(plan))), QUERIES, draws=19 / 8)
    assert np.array_equal(sums(plan).density(QUERIES).std_error, by_hand.std_error)


def _arrays(release: hs.Release) -> tuple["query.Counters", "query.Counters"]:
    return release.counters, release.counts


def test_a_central_plans_errors_do_not_depend_on_submissions() -> None:
    assert query.draws_of(small_plan(), 5) is None


def test_exact_counters_of_a_secure_plan_are_never_released_here() -> None:
    sketch = hs.Sketch(PLAN)
    sketch.add(np.full((5, 2), 3.0))
    entropy = ReplayableEntropy(b"none of it is drawn")
    for refused in (
        lambda: hs.release(sketch),
        lambda: hs.release(sketch, epsilon=2),
        lambda: draw(sketch, kind="tumbling", window=1, entropy=entropy, accounted=True),
        lambda: decide(sketch, kind="tumbling", window=1, clients=5, entropy=entropy),
        lambda: spend_of(PLAN, kind="in-process", window=None),
        lambda: spend_of(PLAN, kind="tumbling", window=1, withheld=True),
    ):
        with pytest.raises(GuaranteeError, match="its clients draw the noise"):
            refused()


def test_sums_of_a_central_plan_would_be_shown_without_noise() -> None:
    with pytest.raises(GuaranteeError, match="contain no noise"):
        sums(small_plan())


def test_sums_of_another_shape_are_refused() -> None:
    release = sums()
    with pytest.raises(MergeError):
        of_sums(PLAN, release.counters[:, :5], release.counts, window=4, cohorts=2, submissions=19)


def test_a_file_must_say_how_many_took_part_where_that_is_so_and_only_there() -> None:
    release = sums()
    values = np.concatenate([release.counters.reshape(-1), release.counts])
    shape = release.counters.shape
    for header in (
        Header("tumbling", 4, shape, accounted=True),
        Header("tumbling", 4, shape, accounted=True, submissions=19),
        Header("tumbling", 4, shape, accounted=True, submissions=30, cohorts=2),
        Header("in-process", None, shape, accounted=True, submissions=19, cohorts=2),
    ):
        with pytest.raises(ReleaseError, match="submissions of"):
            hs.Release.from_bytes(encode_file(PLAN, header, values))
    central = encode_file(small_plan(), Header("tumbling", 4, shape, accounted=True, cohorts=2), values)
    with pytest.raises(ReleaseError, match="expected neither"):
        hs.Release.from_bytes(central)
    assert b"submissions" not in encode_file(small_plan(), Header("tumbling", 4, shape, accounted=True), values)


def packed(plan: hs.Plan) -> bytes:
    made, _ = encode(plan, np.array([[1.0, 2.0], [3.0, 4.0]]), window=4, id=DeltaId(1, 0))
    assert made is not None
    return made.pack(plan)


def test_no_service_takes_a_delta_of_a_secure_plan_and_its_own_device_does() -> None:
    data = packed(PLAN)
    with pytest.raises(DeltaError) as caught:
        Delta.unpack(data, PLAN)
    assert caught.value.reason is Reason.WRONG_MODE
    assert reader_of(PLAN) is None
    assert unpack_at_home(data, PLAN).pack(PLAN) == data
    assert unpack_at_home(packed(small_plan()), small_plan()).records == 2
    with pytest.raises(DeltaError) as damaged:
        unpack_at_home(data[:-1], PLAN)
    assert damaged.value.reason is Reason.MALFORMED


def test_the_ledger_of_a_device_pays_for_windows_of_a_secure_plan() -> None:
    plan = secure_plan(privacy={"unit": "client", "records_per_client": 2, "total_epsilon": 2})
    from hushsum.privacy.accountant import Account

    account = Account(plan.limits)
    for window in (0, 1):
        account = account.charge(spend_of(plan, kind="tumbling", window=window))
    with pytest.raises(BudgetError):
        account.charge(spend_of(plan, kind="tumbling", window=2))


def test_a_window_that_nobody_entered_spends_nothing_and_its_spend_is_read_back() -> None:
    unspent = spend_of(PLAN, kind="tumbling", window=3, entered=False)
    assert unspent.events == ()
    assert unspent.loss == NO_LOSS
    assert Spend.from_bytes(unspent.to_bytes()) == unspent
    central = spend_of(small_plan(), kind="tumbling", window=3)
    assert spend_of(small_plan(), kind="tumbling", window=3, entered=False) == central


def test_limits_that_do_not_pay_for_the_first_window_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        secure_plan(privacy={"delta": "0.000001", "total_epsilon": 1})
    # The part of delta that is kept for failures makes the ledger count a little more than epsilon.
    assert caught.value.key == "privacy.total_epsilon"
    needed = caught.value.expected.split(",")[0].removeprefix("at least ")
    assert 1 < float(needed) < 1.01
    secure_plan(privacy={"delta": "0.000001", "total_epsilon": needed})


def test_old_files_are_read_as_before() -> None:
    release = replace(sums(), plan=small_plan(), guarantee=small_plan().guarantee, submissions=None, cohorts=None)
    loaded = hs.Release.from_bytes(release.to_bytes())
    assert (loaded.submissions, loaded.cohorts) == (None, None)
    assert "It is the sum of" not in loaded.statement()
    assert json.loads(small_plan().to_bytes())["privacy"]["mode"] == "central"


def test_sums_of_weighted_moments_fit_their_words_and_answer_with_less_noise() -> None:
    """Of all moments the first is the largest, so that a vector has no wider words; the sum is that of its clients."""
    equal, weighted = (secure_plan(sketch={**HERMITE, "weights": weights}) for weights in ("equal", "auto"))
    assert weighted.family.sensitivity.linf == equal.family.sensitivity.linf
    assert weighted.words.bits <= equal.words.bits + 1
    assert query.noise_std_error(weighted) < 0.95 * query.noise_std_error(equal)
    records = np.random.default_rng(5).uniform(0, 10, (400, 2))
    exact = weighted.family.kernel(records, QUERIES).sum(axis=0)
    counters = np.zeros(weighted.counters_shape, np.int64)
    weighted.family.add(counters[0], weighted.family.accept(records)[0])
    release = of_sums(weighted, counters, np.array([400]), window=4, cohorts=2, submissions=19)
    answer = release.kernel_sum(QUERIES)
    assert answer.bias is not None
    assert np.all(np.abs(answer.value - exact) <= answer.bias)
