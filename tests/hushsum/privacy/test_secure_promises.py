"""What a plan of mode secure promises: its mechanism, verified with exact numbers, and planted mistakes."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum import GuaranteeError, Plan, PlanError
from hushsum.privacy.calibration import calibrate, round_up
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import FAILURE
from hushsum.privacy.distributed_gaussian import rho_of_shares
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.verifier import rho_of, variance_needed, verify
from hushsum.privacy.zcdp import epsilon_of
from hushsum.sensitivity import Sensitivity
from tests.plans import secure_plan, small_plan, tables

MILLIONTH = Fraction(1, 10**6)
ROWS = Sensitivity(l0=20, l1=20, l2_squared=20, linf=1)
D = 20 * 64 + 1
PURE = Claim(Fraction(1), Fraction(0), "record", honest_survivors=80, counters=D)
CLOSE = Claim(Fraction(1), MILLIONTH, "record", honest_survivors=80, counters=D)


def test_pure_noise_is_that_of_a_central_plan_in_shares() -> None:
    central = calibrate(ROWS, Claim(Fraction(1), Fraction(0), "record"))
    assert calibrate(ROWS, PURE) == replace(central, honest_survivors=80)
    assert central.scale == 22  # 20 rows, and the count counter moves by 2


def test_the_gaussian_supports_what_a_failure_leaves_of_delta_and_hardly_more() -> None:
    mechanism = calibrate(ROWS, CLOSE)
    rho = rho_of(mechanism, ROWS, CLOSE)
    assert rho == rho_of_shares(mechanism.scale, 80, 20 + 2**2, D)
    assert CLOSE.noise_delta == MILLIONTH - FAILURE
    assert Fraction("0.9999") < epsilon_of(rho, MILLIONTH - FAILURE) <= 1
    assert variance_needed(ROWS, mechanism.count_scale, CLOSE) is not None


def test_a_share_of_less_than_four_is_never_calibrated() -> None:
    loose = replace(CLOSE, epsilon=Fraction(40))
    mechanism = calibrate(ROWS, loose, noise="gaussian")
    assert mechanism.scale == 4 * 80
    with pytest.raises(GuaranteeError, match="at least 4 each"):
        verify(replace(mechanism, scale=mechanism.scale - 1), ROWS, loose)


@pytest.mark.parametrize("claim", [PURE, CLOSE], ids=["pure", "zcdp"])
@pytest.mark.parametrize("survivors", [81, 79, None])
def test_noise_in_shares_of_another_number_is_refused(claim: Claim, survivors: int | None) -> None:
    mechanism = calibrate(ROWS, claim)
    verify(mechanism, ROWS, claim)
    with pytest.raises(GuaranteeError, match="needs honest_survivors = 80"):
        verify(replace(mechanism, honest_survivors=survivors), ROWS, claim)


@pytest.mark.parametrize("claim", [PURE, CLOSE], ids=["pure", "zcdp"])
def test_a_scale_that_is_a_notch_too_small_is_refused(claim: Claim) -> None:
    mechanism = calibrate(ROWS, claim)
    smaller = mechanism.scale * (1 - Fraction(1, 10**5))
    with pytest.raises(GuaranteeError, match="does not support"):
        verify(replace(mechanism, scale=smaller), ROWS, claim)


def test_noise_that_uses_the_failures_part_of_delta_is_refused() -> None:
    # With a delta of twice the failure it shows: whoever forgets to take it off draws too little noise.
    claim = replace(CLOSE, delta=2 * FAILURE)
    forgetful = calibrate(ROWS, replace(claim, delta=3 * FAILURE), noise="gaussian")
    assert epsilon_of(rho_of(forgetful, ROWS, claim), 2 * FAILURE) <= 1
    with pytest.raises(GuaranteeError, match="less the part for failures of the protocol"):
        verify(forgetful, ROWS, claim)
    verify(calibrate(ROWS, claim, noise="gaussian"), ROWS, claim)


def test_shares_in_a_central_plan_are_refused() -> None:
    central = Claim(Fraction(1), Fraction(0), "record")
    with pytest.raises(GuaranteeError, match="only for mode 'secure'"):
        verify(replace(calibrate(ROWS, central), honest_survivors=80), ROWS, central)


def test_a_share_has_an_hth_of_the_variance() -> None:
    for claim in (PURE, CLOSE):
        mechanism = calibrate(ROWS, claim)
        assert mechanism.share().variance * 80 == pytest.approx(mechanism.noise().variance, rel=1e-6)


def test_noise_that_is_drawn_whole_has_no_shares() -> None:
    with pytest.raises(GuaranteeError, match="drawn whole"):
        Mechanism("discrete-laplace", Fraction(3), 1).share()


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_a_made_plan_is_verified_where_it_is_loaded(delta: str) -> None:
    plan = secure_plan(privacy={"delta": delta})
    assert Plan.from_bytes(plan.bundle) == plan
    assert plan.privacy.mechanism.honest_survivors == plan.privacy.cohort.honest_survivors == 8  # type: ignore[union-attr]  # it is secure
    assert plan.words.length == 20 * 64 + 1
    planted = plan.bundle.replace(b'"honest_survivors":8', b'"honest_survivors":9')
    with pytest.raises(PlanError) as caught:
        Plan.from_bytes(planted)
    assert caught.value.key == "privacy.mechanism.honest_survivors"


def test_another_rate_of_dropouts_needs_another_mechanism() -> None:
    fields = secure_plan().to_fields()
    del fields["format"]
    fields["privacy"]["secure"]["dropout"] = "0.3"  # type: ignore[index]  # tables of a plan
    with pytest.raises(PlanError, match=r"privacy\.mechanism\.honest_survivors.*= 6"):
        Plan.from_fields(fields)


WHOLE = {"name": "discrete-laplace", "scale": 22, "count_scale": 2}
REFUSED: list[tuple[str, dict[str, Mapping[str, object]]]] = [
    ("privacy.participation", {"privacy": {"participation": "public"}}),
    ("privacy.min_clients_share", {"privacy": {"min_clients_share": "0.05"}}),
    ("window.min_clients", {"window": {"min_clients": 5}}),
    ("window.lateness", {"window": {"lateness": "29s"}}),
    ("window.length", {"window": {"length": "30s"}}),
    ("privacy.total_delta", {"privacy": {"total_delta": "0.000000000007"}}),
    ("privacy.total_delta", {"privacy": {"total_delta": ...}}),
    ("privacy.delta", {"privacy": {"delta": "0.000000000007"}}),
    ("privacy.total_delta", {"privacy": {"delta": "0.00000000005", "total_delta": "0.00000000005"}}),
    ("privacy.mechanism.honest_survivors", {"privacy": {"mechanism": WHOLE}}),
    ("privacy.secure", {"privacy": {"mode": "local"}}),
    ("privacy.local", {"privacy": {"local": {}}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "changes"), REFUSED, ids=[f"{number}-{key}" for number, (key, _) in enumerate(REFUSED)]
)
def test_what_does_not_go_with_a_secure_sum_is_refused(key: str, changes: dict[str, Mapping[str, object]]) -> None:
    with pytest.raises(PlanError) as caught:
        secure_plan(**changes)
    assert caught.value.key == key


def test_a_table_for_secure_sums_in_a_central_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="only for mode 'secure'"):
        small_plan(privacy={"secure": {"cohort": 10}})


def test_a_central_plan_has_none_of_the_new_keys() -> None:
    text = small_plan().to_bytes()
    assert b"secure" not in text
    assert b"honest_survivors" not in text
    assert b'"participation":"protected"' in text


def test_a_sum_that_no_vector_holds_is_refused_where_the_plan_is_made() -> None:
    with pytest.raises(PlanError, match="what a client can submit to a secure sum"):
        secure_plan(sketch={"rows": 4000, "buckets": 4096})


def test_no_key_and_every_default_make_the_same_plan() -> None:
    written = {"mode": "secure", "total_delta": "0.000001"}
    assert small_plan(privacy=written).id == small_plan(privacy={**written, "secure": {"cohort": 100, "suite": 1}}).id


def test_another_mode_leaves_out_the_keys_of_the_old_one() -> None:
    plan = secure_plan(privacy={"delta": "0.000001"})
    central = plan.replace_privacy(mode="central")
    assert (central.privacy.mode, central.privacy.cohort) == ("central", None)
    assert (central.privacy.relation, plan.privacy.relation) == ("add/remove", "zero-out")
    back = central.replace_privacy(mode="secure", secure=plan.privacy.cohort.to_fields())  # type: ignore[union-attr]  # it is secure
    assert back.id == plan.id


def test_the_words_belong_to_secure_plans_alone() -> None:
    with pytest.raises(GuaranteeError, match="it has no secure sum"):
        _ = Plan.from_fields(tables()).words


@pytest.mark.parametrize("delta", [Fraction(0), MILLIONTH])
def test_the_promise_of_a_release_holds_the_failure(delta: Fraction) -> None:
    plan = secure_plan(privacy={"delta": delta})
    assert plan.guarantee.delta == max(delta, FAILURE)
    assert (plan.guarantee.mode, plan.guarantee.relation) == ("secure", "zero-out")
    if delta:
        assert plan.guarantee.rho == round_up(
            rho_of(plan.privacy.mechanism, plan.family.sensitivity, plan.privacy.claim)
        )
