"""Events and spends are checked when they are made, and come back from their encoding as they were."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.canonical import INTEGER_LIMIT, decode, encode
from hushsum.errors import CanonicalError, GuaranteeError, PlanError
from hushsum.privacy.events import ClaimedEvent, Event, Spend
from hushsum.privacy.relations import Loss
from hushsum.sensitivity import Sensitivity

UNIT = Sensitivity(l0=10, l1=12, l2_squared=16, linf=3)
LAPLACE = Event("discrete-laplace", Fraction(36), UNIT, Fraction(1, 3))
GAUSSIAN = Event("discrete-gaussian", Fraction(80), UNIT, Fraction(0))
MAXIMUM = Event("report-noisy-max", Fraction(12), UNIT, Fraction(1, 2))
CLAIMED = ClaimedEvent("discrete-laplace", Fraction(1, 3), Fraction(0))
SPEND = Spend(
    population="patients",
    plan_id="ab" * 32,
    kind="tumbling",
    window=7,
    unit="client",
    relation="add/remove",
    mode="central",
    events=(LAPLACE, GAUSSIAN),
)
OLD = replace(SPEND, events=(CLAIMED,))
NAMELESS = replace(SPEND, kind="in-process", window=None, population="")
CHOICE = replace(NAMELESS, kind="choice", events=(MAXIMUM,))
WITHHELD = replace(SPEND, events=())

# ---------------------------------------------------------------------------------------------------------- events


def test_pure_noise_supports_what_the_sum_of_all_changes_needs_and_no_less() -> None:
    assert LAPLACE.loss == Loss(epsilon=Fraction(1, 3), pure_rho=Fraction(16, 2 * 36**2))
    replace(LAPLACE, epsilon=Fraction(1))  # more than its parameters need
    with pytest.raises(GuaranteeError, match=r"of scale 36 does not support epsilon 0\.333 .* it supports 1/3"):
        replace(LAPLACE, epsilon=Fraction(333, 1000))
    with pytest.raises(GuaranteeError):
        replace(LAPLACE, sensitivity=UNIT.with_count(1))
    with pytest.raises(GuaranteeError):
        replace(LAPLACE, sensitivity=UNIT.times(2, 10))


def test_gaussian_noise_is_rho_zcdp_by_its_parameters_alone() -> None:
    assert GAUSSIAN.rho == Fraction(16, 2 * 80)
    assert GAUSSIAN.loss == Loss(rho=Fraction(1, 10))
    assert replace(GAUSSIAN, sensitivity=UNIT.times(3, 10)).rho == 9 * GAUSSIAN.rho
    with pytest.raises(GuaranteeError, match="supports no pure epsilon"):
        replace(GAUSSIAN, epsilon=Fraction(100))


def test_a_noisy_maximum_needs_twice_the_largest_change_of_one_utility() -> None:
    assert MAXIMUM.loss == Loss(epsilon=Fraction(1, 2), pure_rho=Fraction(1, 8))
    with pytest.raises(GuaranteeError, match=r"it supports 0\.5"):
        replace(MAXIMUM, epsilon=Fraction(499, 1000))


@pytest.mark.parametrize(
    ("key", "change"),
    (
        ("event.mechanism", {"mechanism": "laplace"}),
        ("event.scale", {"scale": Fraction(0)}),
        ("event.scale", {"scale": 36.0}),
        ("event.epsilon", {"epsilon": Fraction(0)}),
        ("event.epsilon", {"epsilon": 1.0}),
        ("event.sensitivity.l1", {"sensitivity": replace(UNIT, l1=0)}),
        ("event.sensitivity.linf", {"sensitivity": replace(UNIT, linf=True)}),
        ("event.sensitivity.l1", {"sensitivity": replace(UNIT, l0=3)}),  # 3 counters by 3 each are 9, less than 12
        ("event.sensitivity.l1", {"sensitivity": replace(UNIT, l1=2)}),
        ("event.sensitivity.l2_squared", {"sensitivity": replace(UNIT, l2_squared=8)}),  # 9 of one counter alone
        ("event.sensitivity.l2_squared", {"sensitivity": replace(UNIT, l2_squared=14)}),  # 10 counters by 1.2 each
        ("event.sensitivity.l2_squared", {"sensitivity": replace(UNIT, l2_squared=37)}),
    ),
    ids=str,
)
def test_an_event_out_of_range_is_refused_by_its_field(key: str, change: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(LAPLACE, **change)  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == key


# ---------------------------------------------------------------------------------------------------------- spends


@pytest.mark.parametrize(
    "spend",
    (SPEND, OLD, NAMELESS, CHOICE, WITHHELD, replace(SPEND, window=-3)),
    ids=("window", "version 1", "in-process", "choice", "withheld", "before the epoch"),
)
def test_it_survives_its_encoding(spend: Spend) -> None:
    assert Spend.from_fields(decode(encode(spend.to_fields()))) == spend
    assert Spend.from_bytes(spend.to_bytes()) == spend


@settings(max_examples=50)
@given(window=st.integers(-INTEGER_LIMIT, INTEGER_LIMIT), population=st.sampled_from(("", "a", ',"window":7}')))
def test_any_window_of_any_population_survives_its_encoding(window: int, population: str) -> None:
    spend = replace(SPEND, window=window, population=population)
    assert Spend.from_bytes(spend.to_bytes()) == spend == Spend.from_fields(decode(spend.to_bytes()))


def test_spends_that_differ_by_their_window_share_their_events() -> None:
    one, two = (Spend.from_bytes(replace(SPEND, window=window).to_bytes()) for window in (1, 2))
    assert one.events is two.events


@pytest.mark.parametrize("end", (b"07}", b"+7}", b" 7}", b"7 }", b"1_0}", b"7", b"7}}", b"}", b"true}", b"7.0}", b""))
def test_bytes_that_are_not_canonical_are_refused(end: bytes) -> None:
    with pytest.raises(CanonicalError):
        Spend.from_bytes(SPEND.to_bytes().removesuffix(b"7}") + end)


def test_a_window_beyond_the_canonical_integers_is_refused() -> None:
    with pytest.raises(PlanError, match=r"spend\.window"):
        Spend.from_bytes(SPEND.to_bytes().removesuffix(b"7}") + b"9007199254740992}")


def test_the_bytes_of_a_spend_of_the_first_version_are_frozen() -> None:
    assert OLD.to_bytes() == (
        b'{"delta":"0","epsilon":"1/3","kind":"tumbling","mechanism":"discrete-laplace","mode":"central",'
        b'"plan_id":"' + b"ab" * 32 + b'","population":"patients","relation":"add/remove","unit":"client","window":7}'
    )


def test_the_bytes_of_a_spend_are_frozen() -> None:
    norms = b'"sensitivity":{"l0":"10","l1":"12","l2_squared":"16","linf":"3"}'
    assert SPEND.to_bytes() == (
        b'{"events":[{"epsilon":"1/3","mechanism":"discrete-laplace","scale":"36",' + norms + b"},"
        b'{"epsilon":"0","mechanism":"discrete-gaussian","scale":"80",' + norms + b'}],"kind":"tumbling",'
        b'"mode":"central","plan_id":"' + b"ab" * 32 + b'","population":"patients","relation":"add/remove",'
        b'"unit":"client","window":7}'
    )


def test_norms_larger_than_canonical_integers_survive() -> None:
    large = Sensitivity(l0=2**40, l1=2**100, l2_squared=2**190, linf=2**90)
    spend = replace(NAMELESS, events=(replace(GAUSSIAN, sensitivity=large),))
    assert Spend.from_bytes(spend.to_bytes()) == spend


def test_a_spend_loses_what_its_events_do_together() -> None:
    assert SPEND.loss == Loss(epsilon=Fraction(1, 3), rho=Fraction(1, 10), pure_rho=Fraction(16, 2 * 36**2))
    assert WITHHELD.loss == Loss()


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("plan_id", "ab"),
        ("plan_id", "AB" * 32),
        ("kind", "sliding"),
        ("window", None),
        ("window", True),
        ("window", 2**53),
        ("unit", "household"),
        ("relation", "edit"),
        ("mode", "local"),
        ("events", [LAPLACE]),
    ),
    ids=str,
)
def test_a_field_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(SPEND, **{field: value})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"spend.{field}"


@pytest.mark.parametrize("field, value", (("epsilon", Fraction(0)), ("epsilon", 1.0), ("delta", Fraction(1))), ids=str)
def test_a_claim_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(CLAIMED, **{field: value})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"spend.{field}"


@pytest.mark.parametrize("kind", ("in-process", "choice"))
def test_what_has_no_window_names_none_and_spends_something(kind: str) -> None:
    with pytest.raises(PlanError, match=r"spend\.window"):
        replace(NAMELESS, kind=kind, window=7)
    with pytest.raises(PlanError, match=r"spend\.events"):
        replace(NAMELESS, kind=kind, events=())


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(PlanError, match=r"spend\.epsilom"):
        Spend.from_fields({**SPEND.to_fields(), "epsilom": "2"})


def test_a_stored_event_that_does_not_support_its_claim_is_refused() -> None:
    weak = SPEND.to_bytes().replace(b'"scale":"36"', b'"scale":"35"')
    with pytest.raises(GuaranteeError):
        Spend.from_bytes(weak)
