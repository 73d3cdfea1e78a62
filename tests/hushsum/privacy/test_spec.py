"""What ``[privacy]`` may hold: approximate guarantees, and the test of the number of clients."""

import math
import re
import sys
from fractions import Fraction

import pytest

from hushsum import Plan, PlanError, query
from hushsum.privacy.calibration import round_up
from hushsum.privacy.zcdp import epsilon_of
from tests.plans import client_plan, small_plan

APPROXIMATE: dict[str, object] = {"delta": "0.000001", "total_delta": "0.001"}
TESTED = {"min_clients": 50}


def test_a_delta_above_zero_gives_gaussian_noise_that_says_its_rho() -> None:
    plan = small_plan(privacy=APPROXIMATE)
    mechanism = plan.privacy.mechanism
    assert (mechanism.name, mechanism.count_scale) == ("discrete-gaussian", 2)
    assert plan.guarantee.rho == round_up(Fraction(20 + 2**2) / (2 * mechanism.scale))
    assert Fraction("0.99999") < epsilon_of(plan.guarantee.rho, plan.privacy.delta) <= 1 + Fraction(1, 10**5)
    assert plan.limits.delta == Fraction("0.001")


def test_a_made_plan_of_every_kind_is_read_from_its_bytes_without_the_accountant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = {"unit": "client", "records_per_client": 3}
    plans = [
        small_plan(privacy=APPROXIMATE),
        small_plan(privacy=APPROXIMATE, window=TESTED),
        small_plan(window=TESTED),
        small_plan(privacy=client, window=TESTED),
        small_plan(privacy={**APPROXIMATE, **client}),
    ]
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for plan in plans:
        assert Plan.from_bytes(plan.to_bytes()) == plan
    assert len({plan.id for plan in plans}) == len(plans)


def test_noise_of_an_answer_does_not_grow_with_rows_at_a_delta_above_zero() -> None:
    few, many = (small_plan(sketch={"rows": rows}, privacy=APPROXIMATE) for rows in (500, 2000))
    assert query.noise_std_error(many) == pytest.approx(query.noise_std_error(few), rel=0.02)
    assert query.noise_std_error(many) == pytest.approx(4.53 / 0.95**0.5, rel=0.01), (
        "1/√(2ρ), of which the count takes 5 %"
    )
    pure = small_plan(sketch={"rows": 2000})
    assert query.noise_std_error(pure) == pytest.approx(math.sqrt(2 * 2000), rel=0.06)


def test_the_clients_test_stands_in_the_plan_with_its_share_and_its_noise() -> None:
    plan = small_plan(privacy={"min_clients_share": "0.1"}, window=TESTED)
    assert plan.window.min_clients == plan.window.to_fields()["min_clients"] == 50
    assert plan.privacy.to_fields()["min_clients_share"] == "0.1"
    assert plan.privacy.mechanism.clients_scale == 10
    assert plan.privacy.claim.counters_epsilon == Fraction("0.9")
    assert plan.privacy.mechanism.scale == round_up(small_plan().privacy.mechanism.scale / Fraction("0.9"))


def test_the_share_is_a_twentieth_unless_the_plan_says_otherwise() -> None:
    assert small_plan(window=TESTED).privacy.min_clients_share == Fraction(1, 20)


def test_nothing_of_it_stands_in_a_plan_without_the_test() -> None:
    plan = small_plan()
    assert plan.privacy.min_clients_share is None
    assert "min_clients_share" not in plan.privacy.to_fields()
    assert plan.privacy.claim.counters_epsilon == plan.privacy.epsilon, "all of ε is the counters'"


def test_participation_is_protected_whether_the_key_says_so_or_not() -> None:
    plan = small_plan()
    assert small_plan(privacy={"participation": "protected"}).bundle == plan.bundle
    assert b'"participation":"protected"' in plan.bundle
    assert plan.guarantee.relation == plan.limits.relation == plan.privacy.relation == "add/remove"


def test_public_participation_is_refused_and_the_error_says_what_to_use_instead() -> None:
    with pytest.raises(PlanError, match=r"'public' was removed.*set window\.min_clients.*set unit 'client'") as made:
        small_plan(privacy={"participation": "public"}, window=TESTED)
    assert made.value.key == "privacy.participation"
    stored = small_plan().to_bytes().replace(b'"participation":"protected"', b'"participation":"public"')
    with pytest.raises(PlanError, match="'public' was removed"):
        Plan.from_bytes(stored)
    with pytest.raises(PlanError, match="'public' was removed"):
        small_plan().replace_privacy(participation="public")


@pytest.mark.parametrize(
    ("key", "privacy", "window", "expected"),
    (
        ("privacy.delta", {"delta": 1}, {}, "from 0 to below 1"),
        ("privacy.total_delta", {"delta": "0.000001"}, {}, "is missing, expected at least delta (0.000001)"),
        ("privacy.total_delta", {"delta": "0.1", "total_delta": "0.01"}, {}, "got '0.01', expected at least delta"),
        ("privacy.min_clients_share", {"min_clients_share": "0.1"}, {}, "with window.min_clients above 0"),
        ("privacy.min_clients_share", {"min_clients_share": 1}, TESTED, "above 0 and below 1"),
        ("privacy.min_clients_share", {"min_clients_share": 0}, TESTED, "above 0 and below 1"),
        ("privacy.records_per_client", {"records_per_client": 3}, {}, "unit 'client'"),
        ("privacy.epsilon", {"epsilon": 1e-30}, {}, "noise that fits a counter"),
    ),
)  # fmt: skip
def test_what_contradicts_itself_is_refused_by_its_key(
    key: str, privacy: dict[str, object], window: dict[str, object], expected: str
) -> None:
    with pytest.raises(PlanError) as refusal:
        small_plan(privacy=privacy, window=window)
    assert refusal.value.key == key
    assert expected in str(refusal.value)


LAPLACE: dict[str, object] = {"name": "discrete-laplace", "scale": "1000", "count_scale": 2}
GAUSSIAN: dict[str, object] = {"name": "discrete-gaussian", "scale": "1000", "count_scale": 2}


@pytest.mark.parametrize(
    ("key", "mechanism", "privacy", "window"),
    (
        ("clients_scale", LAPLACE, {}, TESTED),
        ("clients_scale", {**LAPLACE, "clients_scale": "19.9"}, {}, TESTED),
        ("clients_scale", {**LAPLACE, "clients_scale": "20"}, {}, {}),
        ("scale", GAUSSIAN, {}, {}),
        ("scale", {**GAUSSIAN, "scale": "490"}, APPROXIMATE, {}),
        ("scale", GAUSSIAN, {**APPROXIMATE, "unit": "client", "records_per_client": 2}, {}),
    ),
)  # fmt: skip
def test_a_written_mechanism_that_does_not_fit_the_plan_is_refused(
    key: str, mechanism: dict[str, object], privacy: dict[str, object], window: dict[str, object]
) -> None:
    with pytest.raises(PlanError, match="supports the claim") as refusal:
        small_plan(privacy={**privacy, "mechanism": mechanism}, window=window)
    assert refusal.value.key == f"privacy.mechanism.{key}"


def test_a_written_mechanism_that_fits_stays_as_it_is() -> None:
    plan = small_plan(privacy={**APPROXIMATE, "mechanism": {**GAUSSIAN, "clients_scale": "20"}}, window=TESTED)
    assert plan.privacy.mechanism.scale == 1000
    assert small_plan(privacy={**APPROXIMATE, "mechanism": {**GAUSSIAN, "scale": "493"}}).privacy.mechanism.scale == 493


@pytest.mark.parametrize("key", ("epsilon", "delta"))
def test_bytes_that_claim_more_than_gaussian_noise_gives_are_refused(key: str) -> None:
    honest = small_plan(privacy=APPROXIMATE).to_bytes()
    old, new = {"epsilon": (b'"epsilon":"1"', b'"epsilon":"0.5"'), "delta": (b'"0.000001"', b'"0.0000001"')}[key]
    lying = honest.replace(old, new)
    assert lying != honest
    with pytest.raises(PlanError, match="supports the claim"):
        Plan.from_bytes(lying)


def test_another_guarantee_for_the_same_plan_and_back() -> None:
    pure = small_plan(window=TESTED, privacy={"min_clients_share": "0.2"})
    approximate = pure.replace_privacy(delta=1e-6)
    assert approximate.privacy.mechanism.name == "discrete-gaussian"
    assert (approximate.privacy.min_clients_share, approximate.privacy.total_delta) == (
        Fraction("0.2"),
        Fraction("1e-6"),
    )
    assert approximate.replace_privacy(delta=0, total_delta=0) == pure
    assert pure.replace_privacy(epsilon=200).privacy.total_epsilon == 200
    assert client_plan(3).replace_privacy(unit="record", records_per_client=None).privacy.records_per_client is None


def test_a_total_that_is_named_is_not_raised() -> None:
    with pytest.raises(PlanError, match="total_delta"):
        small_plan().replace_privacy(delta=1e-6, total_delta=1e-7)
    with pytest.raises(PlanError, match=r"privacy\.delta.*'much'"):
        small_plan().replace_privacy(delta="much")


# ------------------------------------------------------------------------------------------------------ privacy.noise

FEW: dict[str, object] = {"rows": 5}
AT_DELTA: dict[str, object] = {"delta": "0.000001", "total_delta": "0.000001"}


def test_the_noise_that_is_asked_for_is_in_the_mechanism_and_leaves_no_key() -> None:
    for noise, name in (("auto", "laplace"), ("laplace", "laplace"), ("gaussian", "gaussian")):
        plan = small_plan(sketch=FEW, privacy={**AT_DELTA, "noise": noise})
        assert plan.privacy.mechanism.name == f"discrete-{name}"
        assert b'"noise"' not in plan.to_bytes()
        assert Plan.from_bytes(plan.to_bytes()) == plan
    assert small_plan(sketch=FEW, privacy=AT_DELTA) == small_plan(sketch=FEW, privacy={**AT_DELTA, "noise": "laplace"})


def test_the_noise_of_fewer_rows_has_the_smaller_error() -> None:
    auto, gaussian = (small_plan(sketch=FEW, privacy={**AT_DELTA, "noise": noise}) for noise in ("auto", "gaussian"))
    assert query.noise_std_error(auto) == pytest.approx(0.764 * query.noise_std_error(gaussian), rel=0.001)
    assert auto.guarantee.rho is None
    assert (auto.guarantee.epsilon, auto.guarantee.delta) == (gaussian.guarantee.epsilon, gaussian.guarantee.delta)


@pytest.mark.parametrize(
    ("privacy", "expected"),
    (
        ({"noise": "uniform"}, "'auto'"),
        ({"noise": "gaussian"}, "'auto' or 'laplace' with delta 0: Gaussian noise has no pure guarantee"),
        (
            {
                **AT_DELTA,
                "noise": "gaussian",
                "mechanism": {"name": "discrete-laplace", "scale": 1000, "count_scale": 1},
            },
            "the noise of privacy.mechanism, 'discrete-laplace', or no value",
        ),
        (
            {"mode": "local", "epsilon": 4, "noise": "laplace"},
            "'auto': reports are randomised, and get no noise",
        ),
    ),
    ids=("unknown", "pure", "another mechanism", "reports"),
)
def test_noise_that_a_plan_cannot_have_is_refused(privacy: dict[str, object], expected: str) -> None:
    window = {"lateness": "1m"} if "mode" in privacy else {}
    with pytest.raises(PlanError, match=re.escape(expected)) as refusal:
        small_plan(sketch=FEW, privacy=privacy, window=window)
    assert refusal.value.key == "privacy.noise"


def test_a_plan_whose_windows_the_limits_pay_for_by_their_zcdp_may_have_limits_below_its_epsilon() -> None:
    client: dict[str, object] = {"unit": "client", "records_per_client": 1, "total_delta": "0.000001"}
    plan = small_plan(sketch={"rows": 1000}, privacy={**client, "total_epsilon": "0.2"})
    assert plan.privacy.mechanism.count_scale == 8, "with 53 one release is charged 0.244"
    with pytest.raises(PlanError, match=r"at least 0\.129728, the charge of the first release"):
        small_plan(sketch={"rows": 1000}, privacy={**client, "total_epsilon": "0.1"})


def test_a_total_below_epsilon_is_not_raised_by_a_smaller_epsilon() -> None:
    client: dict[str, object] = {"unit": "client", "records_per_client": 1, "total_delta": "0.000001"}
    plan = small_plan(sketch={"rows": 1000}, privacy={**client, "total_epsilon": "0.2"})
    for epsilon in ("0.5", "1"):
        assert plan.replace_privacy(epsilon=epsilon).privacy.total_epsilon == Fraction(1, 5)
    assert plan.replace_privacy(epsilon="2").privacy.total_epsilon == 2


def test_gaussian_noise_stays_gaussian_where_a_plan_changes() -> None:
    plan = small_plan(sketch=FEW, privacy={**AT_DELTA, "noise": "gaussian"})
    assert plan.replace_privacy(total_epsilon=3).privacy.mechanism.name == "discrete-gaussian"
    assert plan.replace_privacy(noise="auto").privacy.mechanism.name == "discrete-laplace"
    assert plan.replace_privacy(delta=0).privacy.mechanism.name == "discrete-laplace"
    assert small_plan(sketch=FEW, privacy=AT_DELTA).replace_privacy(epsilon="0.5").privacy.mechanism.name == (
        "discrete-laplace"
    )
