"""Signed plans: a signature is of one plan, by one key; whatever else a file or a peer says is refused."""

import json
from dataclasses import FrozenInstanceError, replace
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushsum import Plan, canonical
from hushsum.errors import PlanError
from hushsum.labels import PARAMETERS
from hushsum.parameters import Parameters, digest
from hushsum.plan import plan_id_of
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import ED25519, SigningKey
from tests.plans import small_plan, tables

KEY, OTHER = SigningKey(bytes(range(32))), SigningKey(bytes(32))
PLAN = small_plan()
SIGNED = SignedPlan.sign(PLAN.bundle, KEY, "planner-1")
FIELDS = json.loads(SIGNED.to_bytes())

#: The file of a signature, as it is for ever.
FROZEN_BUNDLE = b'{"format":1,"name":"a plan"}'
FROZEN = (
    b'{"format":1,"key_id":"planner-1","plan_id":"2ffad2e1f08649b5715bf20c366b3a1a1cc29dfb14c54a0143a337cf58488102",'
    b'"signature":"2634e99528e5dc42c434ab487506489cc061f2a20a795b15beb51bf058ae4a6cd816f13053334d57e3dde321060bd518ead6'
    b'1555b45ea3217dcc66a02d8da40c","suite":1}'
)


def test_a_signature_is_of_this_plan_by_this_key_alone() -> None:
    assert SIGNED.verify([OTHER.verify_key, KEY.verify_key]) == KEY.verify_key
    other_plan = small_plan(sketch={"seed": 4}).bundle
    for wrong, keys in (
        (SIGNED, [OTHER.verify_key]),
        (SIGNED, []),
        (replace(SIGNED, bundle=other_plan), [KEY.verify_key]),
        (replace(SIGNED, signature=bytes(64)), [KEY.verify_key]),
    ):
        with pytest.raises(PlanError, match="signature: got 'one by key planner-1'"):
            wrong.verify(keys)


def test_the_arrays_beside_a_plan_are_signed_with_it() -> None:
    turn, other = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]
    plan = Plan.from_fields(tables(sketch={"transforms": [{"kind": "linear", "matrix": digest(turn)}]}), [turn])
    signed = SignedPlan.sign(plan.bundle, KEY, "planner-1")
    swapped = plan.to_bytes() + b"\n" + Parameters.of([other]).to_bytes()
    assert plan_id_of(swapped) == plan.id  # which names the arrays by their digests: so no reader takes these
    with pytest.raises(PlanError, match="given: "):
        Plan.from_bytes(swapped)
    with pytest.raises(PlanError, match="signature"):
        replace(signed, bundle=swapped).verify([KEY.verify_key])
    assert signed.verify([KEY.verify_key]) == KEY.verify_key


def test_the_keys_name_is_a_hint_that_no_signature_binds() -> None:
    assert replace(SIGNED, key_id="somebody-else").verify([KEY.verify_key]) == KEY.verify_key


def test_what_is_signed_is_the_hash_of_the_bundle_under_a_label_of_its_own() -> None:
    """Written out, beside the module: RFC 8032 over label, SHA-256(label, framing, SHA-256(bundle))."""
    label = b"hushsum/v1/signed-plan\0"
    part = sha256(PLAN.bundle).digest()
    framed = label + sha256(label + (1).to_bytes(4, "big") + (32).to_bytes(4, "big") + part).digest()
    assert SIGNED.signature == Ed25519PrivateKey.from_private_bytes(bytes(range(32))).sign(framed)
    with pytest.raises(PlanError):
        replace(SIGNED, signature=KEY.sign(PARAMETERS, part)).verify([KEY.verify_key])


def test_the_file_has_these_bytes_for_ever() -> None:
    signed = SignedPlan.sign(FROZEN_BUNDLE, KEY, "planner-1")
    assert signed.to_bytes() == FROZEN
    assert SignedPlan.from_bytes(FROZEN_BUNDLE, FROZEN) == signed


def test_the_file_beside_a_plan_brings_its_signature(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert SignedPlan.beside(file, PLAN.bundle) is None
    assert signature_file(file) == tmp_path / "plan.json.sig"
    signature_file(file).write_bytes(SIGNED.to_bytes())
    assert SignedPlan.beside(file, PLAN.bundle) == SIGNED
    with pytest.raises(PlanError, match=r"plan.json.sig: signature.plan_id: got .*the id of this plan"):
        SignedPlan.beside(file, small_plan(sketch={"seed": 4}).bundle)
    signature_file(file).write_bytes(b" " * 5000)
    with pytest.raises(PlanError, match="at most 1024"):
        SignedPlan.beside(file, PLAN.bundle)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "signature.format: got 2, expected 1"),
        ({"format": None}, "signature.format"),
        ({"suite": 2}, r"signature.suite: got 2, expected 1 \(Ed25519\)"),
        ({"suite": "1"}, "a suite's number"),
        ({"plan_id": "00" * 32}, "the id of this plan"),
        ({"plan_id": 7}, "signature.plan_id: got 7"),
        ({"key_id": "a key"}, "signature.key_id: got 'a key'"),
        ({"key_id": 7}, "a key's name as text"),
        ({"signature": "00" * 63}, "signature.signature: got '63 bytes'"),
        ({"signature": FIELDS["signature"].upper()}, "lower case"),
        ({"signature": " " + FIELDS["signature"]}, "lower case"),
        ({"signature": "zz"}, "hexadecimal digits"),
        ({"signature": 7}, "hexadecimal digits"),
        ({"more": 1}, "expected the keys format"),
        ({"key_id": ...}, "expected the keys format"),
    ],
)
def test_a_file_of_another_form_is_refused(changes: dict[str, object], said: str) -> None:
    fields = {key: value for key, value in {**FIELDS, **changes}.items() if value is not ... and value is not None}
    with pytest.raises(PlanError, match=said):
        SignedPlan.from_bytes(PLAN.bundle, canonical.encode(fields))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b'{"format": 1}', b"\xff", SIGNED.to_bytes() + b"\n"])
def test_bytes_that_are_no_signature_are_refused(data: bytes) -> None:
    with pytest.raises(PlanError, match="signature"):
        SignedPlan.from_bytes(PLAN.bundle, data)


def test_what_a_peer_sent_is_a_signature_or_none() -> None:
    assert SignedPlan.received(SIGNED.bundle, SIGNED.key_id, SIGNED.suite, SIGNED.signature) == SIGNED
    for key_id, suite, signature in (
        ("", 0, b""),
        ("planner-1", 2, SIGNED.signature),
        ("planner-1", ED25519, b"short"),
        ("\x1b[0m", ED25519, SIGNED.signature),
    ):
        assert SignedPlan.received(SIGNED.bundle, key_id, suite, signature) is None


def test_it_is_a_value() -> None:
    assert SignedPlan.sign(PLAN.bundle, KEY, "planner-1") == SIGNED  # Ed25519 draws nothing
    assert len({SIGNED, replace(SIGNED)}) == 1
    assert SIGNED.plan_id == PLAN.id
    with pytest.raises(FrozenInstanceError):
        SIGNED.suite = 1  # type: ignore[misc]  # that is the point
