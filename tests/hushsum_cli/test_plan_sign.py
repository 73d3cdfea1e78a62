"""`hushsum plan sign`: what it writes is what a device's policy takes."""

import json
from pathlib import Path

import pytest

import hushsum as hs
from edge_client import Policy, PolicyError
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from tests.hushsum_cli.calling import Ended, Hushsum
from tests.plans import small_plan

PLAN = small_plan()


@pytest.fixture
def plan_json(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(PLAN.bundle)
    return path


@pytest.fixture
def planner(tmp_path: Path, hushsum: Hushsum) -> Path:
    """A planner's key, made by the command line, whose directory lies beside it."""
    path = tmp_path / "planner-1.pem"
    made = hushsum("keys", "make", "--role", "planner", "--name", "planner-1", "--out", str(path))
    (tmp_path / "planners.toml").write_text(made.out)
    return path


def signing(hushsum: Hushsum, plan: Path, key: Path, *more: str) -> Ended:
    return hushsum("plan", "sign", str(plan), "--key", str(key), *more)


def test_a_signed_plan_is_what_a_policy_asks_for(hushsum: Hushsum, plan_json: Path, planner: Path) -> None:
    policy = Policy(signed_by=planner.parent / "planners.toml")
    with pytest.raises(PolicyError, match="no readable signature"):
        policy.check(PLAN, SignedPlan.beside(plan_json, PLAN.bundle))
    ended = signing(hushsum, plan_json, planner)
    assert ended.status == 0, ended.err
    signed = SignedPlan.beside(plan_json, PLAN.bundle)
    assert signed is not None
    assert signed.key_id == "planner-1"
    policy.check(PLAN, signed)


def test_it_says_what_was_signed_and_how_devices_ask_for_it(hushsum: Hushsum, plan_json: Path, planner: Path) -> None:
    out = signing(hushsum, plan_json, planner).out
    assert PLAN.hex_id in out
    assert out.startswith(PLAN.name)
    assert "Policy(signed_by=" in out
    assert "plan.json.sig" in out
    assert (planner.parent / "planners.toml").read_text().strip() in out  # the directory's lines
    again = json.loads(signing(hushsum, plan_json, planner, "--json").out)
    public = SigningKey.load(planner).verify_key.hex
    file = f"{plan_json}.sig"
    assert again == {"plan_id": PLAN.hex_id, "key_id": "planner-1", "public_key": public, "file": file}


def test_another_signature_is_not_replaced_unasked(hushsum: Hushsum, plan_json: Path, planner: Path) -> None:
    signing(hushsum, plan_json, planner)
    first = Path(f"{plan_json}.sig").read_bytes()
    assert signing(hushsum, plan_json, planner).status == 0  # the same again is no harm
    ended = signing(hushsum, plan_json, planner, "--key-id", "other")
    assert ended.status == 1
    assert "already contains another signature: use --force to overwrite it" in ended.err
    assert Path(f"{plan_json}.sig").read_bytes() == first
    assert signing(hushsum, plan_json, planner, "--key-id", "other", "--force").status == 0


@pytest.mark.parametrize(
    ("plan_text", "key_id", "said"),
    [
        ("name = 'a plan'\n", "planner-1", "not a compiled plan; compile it first: hushsum plan make"),
        ('{"format":1}', "planner-1", "is missing"),
        (None, "a key", "not a valid key name"),
    ],
)
def test_what_cannot_be_signed_leaves_no_file(
    hushsum: Hushsum, plan_json: Path, planner: Path, plan_text: str | None, key_id: str, said: str
) -> None:
    if plan_text is not None:
        plan_json.write_text(plan_text)
    ended = signing(hushsum, plan_json, planner, "--key-id", key_id)
    assert ended.status == 1
    assert said in ended.err
    assert not Path(f"{plan_json}.sig").exists()


def test_a_key_that_others_can_read_signs_nothing(hushsum: Hushsum, plan_json: Path, planner: Path) -> None:
    planner.chmod(0o644)
    assert "the private key is accessible to other users" in signing(hushsum, plan_json, planner).err
    assert not Path(f"{plan_json}.sig").exists()


def test_show_tells_of_the_signature_beside_a_plan(hushsum: Hushsum, plan_json: Path, planner: Path) -> None:
    assert "signature" not in hushsum("plan", "show", str(plan_json)).out
    signing(hushsum, plan_json, planner)
    shown = " ".join(hushsum("plan", "show", str(plan_json)).out.split())
    assert "plan.json.sig, by key 'planner-1'" in shown
    plan_json.write_bytes(small_plan(sketch={"seed": 4}).bundle)
    other = hushsum("plan", "show", str(plan_json))
    assert other.status == 0
    assert "invalid: " in other.out
    assert hs.Plan.from_bytes(plan_json.read_bytes()).hex_id in other.out
