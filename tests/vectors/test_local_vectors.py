"""The frozen bytes of mode ``local``: plans, what devices send, releases and signatures, as they always were."""

import json
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum.errors import DeltaError
from hushsum.local import silo
from hushsum.local.report_batch import unpack
from hushsum.signed_plan import SignedPlan
from tests.vectors.generate_local import ID, KEY, PATH, WINDOW, released, submitted
from tests.vectors.local_plans import PLANS, plan_of

FROZEN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.fixture(params=sorted(FROZEN))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def read(data: bytes, plan: hs.Plan) -> object:
    """As an aggregator does."""
    found = silo.unpack(data, plan) if plan.report_sizes is None else unpack(data, plan)
    assert (found.window, found.id) == (WINDOW, ID)
    return found


def test_every_plan_of_the_list_is_frozen() -> None:
    assert set(FROZEN) == set(PLANS)


def test_the_plan_is_made_and_read_as_it_always_was(name: str) -> None:
    frozen = FROZEN[name]
    for plan in (plan_of(name), hs.Plan.from_bytes(frozen["plan"].encode())):
        assert plan.to_bytes().decode() == frozen["plan"]
        assert plan.hex_id == frozen["plan_id"]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_the_same_records_and_draws_send_the_same_bytes(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    assert submitted(plan_of(name)).hex() == FROZEN[name]["submitted"]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_what_was_sent_is_read_back(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    read(bytes.fromhex(FROZEN[name]["submitted"]), plan_of(name))


def test_what_was_cut_or_grew_or_is_of_another_plan_is_refused(name: str) -> None:
    plan, data = plan_of(name), bytes.fromhex(FROZEN[name]["submitted"])
    spoilt = (data[:-1], data + b"\0", data[: len(data) // 2], b"\2" + data[1:], data[:1] + bytes(32) + data[33:])
    for each in spoilt:
        with pytest.raises(DeltaError):
            read(each, plan)


def test_the_release_is_read_as_it_always_was_and_made_the_same_again(name: str) -> None:
    frozen = FROZEN[name]
    release = hs.Release.from_bytes(bytes.fromhex(frozen["release"]))
    assert release.plan.hex_id == frozen["plan_id"]
    again = released(plan_of(name), bytes.fromhex(frozen["submitted"]))
    assert np.array_equal(release.counters, again.counters)
    assert np.array_equal(release.counts, again.counts)
    assert (release.guarantee, release.submissions, release.shuffled) == (again.guarantee, again.submissions, False)


def test_the_signature_is_the_plans_alone(name: str) -> None:
    frozen, plan = FROZEN[name], plan_of(name)
    signed = SignedPlan.from_bytes(plan.bundle, frozen["signature"].encode())
    assert signed.verify([KEY.verify_key]) == KEY.verify_key
    for other in set(FROZEN) - {name}:
        with pytest.raises(hs.PlanError):
            SignedPlan.from_bytes(plan_of(other).bundle, frozen["signature"].encode())
