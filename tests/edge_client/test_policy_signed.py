"""A device that wants a plan to be signed takes no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from edge_client import Policy, PolicyError, SettingsError
from hushsum.signed_plan import SignedPlan
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from tests.plans import small_plan

PLANNER, SECOND, GATEWAY = (SigningKey(bytes([number]) * 32) for number in range(3))
PLAN = small_plan()
SIGNED = SignedPlan.sign(PLAN.bundle, PLANNER, "planner-1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two planners, and a key of another role."""
    keys = (
        DirectoryKey("planner-1", Role.PLANNER, PLANNER.verify_key),
        DirectoryKey("planner-2", Role.PLANNER, SECOND.verify_key),
        DirectoryKey("gw-1", Role.GATEWAY, GATEWAY.verify_key),
    )
    path = tmp_path / "directory.toml"
    path.write_text("\n".join(map(toml_of, keys)))
    return path


def refused(policy: Policy, signed: SignedPlan | None) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        policy.check(PLAN, signed)
    assert caught.value.rule == "signed_by"
    return caught.value


def test_without_the_rule_no_signature_matters() -> None:
    Policy().check(PLAN)
    Policy().check(PLAN, SIGNED)
    Policy().check(PLAN, SignedPlan.sign(b"another", GATEWAY, "gw-1"))


def test_a_plan_without_a_signature_is_refused() -> None:
    error = refused(Policy(signed_by=PLANNER.verify_key), None)
    assert "no readable signature" in error.asked
    assert PLANNER.verify_key.hex[:16] in error.allowed


def test_one_of_the_keys_is_enough() -> None:
    keys = [SECOND.verify_key, PLANNER.verify_key]
    for signed_by in (PLANNER.verify_key, keys, tuple(keys), {*keys}, iter(keys)):
        Policy(signed_by=signed_by).check(PLAN, SIGNED)
    refused(Policy(signed_by=SECOND.verify_key), SIGNED)


def test_a_signature_of_somebody_else_is_refused_whatever_name_it_goes_by() -> None:
    error = refused(Policy(signed_by=PLANNER.verify_key), SignedPlan.sign(PLAN.bundle, GATEWAY, "planner-1"))
    assert "does not verify (it claims key 'planner-1')" in error.asked


def test_a_signature_of_another_plan_is_refused_though_it_is_theirs() -> None:
    other = SignedPlan.sign(small_plan(sketch={"seed": 4}).bundle, PLANNER, "planner-1")
    assert other.plan_id.hex() in refused(Policy(signed_by=PLANNER.verify_key), other).asked
    refused(Policy(signed_by=PLANNER.verify_key), replace(other, bundle=PLAN.bundle))


def test_of_a_directory_the_planners_count_alone(directory: Path) -> None:
    for given in (directory, str(directory)):
        policy = Policy(signed_by=given)
        assert policy.signed_by == (PLANNER.verify_key, SECOND.verify_key)
        policy.check(PLAN, SIGNED)
        policy.check(PLAN, SignedPlan.sign(PLAN.bundle, SECOND, "any-name"))
        refused(policy, SignedPlan.sign(PLAN.bundle, GATEWAY, "gw-1"))


def test_the_directory_is_read_once(directory: Path) -> None:
    policy = Policy(signed_by=directory)
    directory.unlink()
    policy.check(PLAN, SIGNED)


@pytest.mark.parametrize("given", [[], "", 7, [7], [PLANNER], PLANNER, PLANNER.verify_key.raw])
def test_what_is_no_key_and_no_directory_is_refused(given: object) -> None:
    with pytest.raises(SettingsError, match="signed_by"):
        Policy(signed_by=given)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    "text", ["", "[keys.a]\n", "\x00", toml_of(DirectoryKey("g", Role.GATEWAY, GATEWAY.verify_key))]
)
def test_a_directory_without_a_planner_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "directory.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"signed_by: .*directory\.toml"):
        Policy(signed_by=path)


def test_a_policy_is_a_value_and_shows_public_keys_alone(directory: Path) -> None:
    assert Policy(signed_by=directory) == Policy(signed_by=[PLANNER.verify_key, SECOND.verify_key])
    assert Policy(signed_by=PLANNER.verify_key) != Policy()
    assert len({Policy(signed_by=directory), Policy(signed_by=str(directory))}) == 1
