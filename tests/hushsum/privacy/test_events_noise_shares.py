"""The spend of a secure sum: its shares stand in its bytes, and nothing of others changes."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum import GuaranteeError, PlanError, canonical
from hushsum.privacy.cohort import FAILURE
from hushsum.privacy.distributed_gaussian import rho_of_shares
from hushsum.privacy.events import Event, Shares, Spend
from hushsum.privacy.relations import Loss
from hushsum.releases import spend_of
from hushsum.sensitivity import Sensitivity
from tests.plans import secure_plan, small_plan

UNIT = Sensitivity(l0=10, l1=12, l2_squared=16, linf=3)
SHARES = Shares(80, 1281, FAILURE)
PURE = spend_of(secure_plan(), kind="tumbling", window=3)
CLOSE = spend_of(secure_plan(privacy={"delta": "0.000001"}), kind="tumbling", window=3)


def test_the_spend_of_a_window_names_every_number_that_its_loss_needs() -> None:
    (event,) = CLOSE.events
    assert isinstance(event, Event)
    assert event.shares == Shares(8, 20 * 64 + 1, FAILURE)
    assert event.rho == rho_of_shares(event.scale, 8, event.sensitivity.l2_squared, 20 * 64 + 1)
    assert event.rho > event.sensitivity.l2_squared / (2 * event.scale)
    assert CLOSE.loss == Loss(rho=event.rho, failure=FAILURE)
    assert PURE.loss == Loss(epsilon=Fraction(1), pure_rho=Fraction(24, 2 * 22**2), failure=FAILURE)
    assert (PURE.mode, PURE.relation) == ("secure", "zero-out")


@pytest.mark.parametrize("spend", [PURE, CLOSE], ids=["pure", "zcdp"])
def test_a_stored_spend_is_read_back_and_spends_the_same(spend: Spend) -> None:
    for read in (Spend.from_bytes(spend.to_bytes()), Spend.from_fields(canonical.decode(spend.to_bytes()))):
        assert read == spend
        assert read.loss == spend.loss


def test_the_bytes_of_a_secure_spend_are_these() -> None:
    fields = json.loads(PURE.to_bytes())
    assert fields["mode"] == "secure"
    assert fields["events"][0]["shares"] == {
        "counters": 1281,
        "failure": "0.0000000000072759576141834259033203125",
        "honest_survivors": 8,
    }


def test_a_central_spend_has_no_shares() -> None:
    assert b"shares" not in spend_of(small_plan(), kind="tumbling", window=3).to_bytes()


@pytest.mark.parametrize("mode", ["central", "secure"])
def test_shares_and_mode_go_together(mode: str) -> None:
    central = spend_of(small_plan(), kind="tumbling", window=3)
    wrong = PURE if mode == "central" else central
    with pytest.raises(PlanError) as caught:
        replace(wrong, mode=mode)
    assert caught.value.key == "spend.events"


def test_a_stored_spend_without_its_failure_is_refused() -> None:
    fields = json.loads(PURE.to_bytes())
    for planted in ("0", "1", "-0.1"):
        fields["events"][0]["shares"]["failure"] = planted
        with pytest.raises(PlanError, match="failure"):
            Spend.from_fields(fields)
    del fields["events"][0]["shares"]["failure"]
    with pytest.raises(PlanError, match=r"failure: is missing"):
        Spend.from_fields(fields)


@pytest.mark.parametrize(("field", "value"), [("honest_survivors", 0), ("counters", 0), ("counters", 1.5)])
def test_shares_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(PlanError) as caught:
        replace(SHARES, **{field: value})  # type: ignore[arg-type]  # that is the point
    assert caught.value.key == f"event.shares.{field}"


def test_shares_too_narrow_for_their_sum_to_be_gaussian_are_refused() -> None:
    with pytest.raises(GuaranteeError, match="at least 4 each"):
        Event("discrete-gaussian", Fraction(319), UNIT, Fraction(0), SHARES)
    Event("discrete-gaussian", Fraction(320), UNIT, Fraction(0), SHARES)


def test_a_noisy_maximum_is_drawn_whole() -> None:
    with pytest.raises(PlanError, match="not drawn in shares"):
        Event("report-noisy-max", Fraction(100), UNIT, Fraction(1), SHARES)
