"""Plans, their arrays and signatures, canonical bytes, guarantees, spends, keys and directories."""

import re
from typing import Any, Final

import numpy as np

from hushsum import Plan, canonical
from hushsum.errors import (
    CanonicalError,
    DirectoryError,
    GuaranteeError,
    KeyFileError,
    PlanError,
)
from hushsum.parameters import Parameters
from hushsum.parameters import decode as decode_array
from hushsum.parameters import encode as encode_array
from hushsum.privacy.events import Spend
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.spending import spend_of
from hushsum.signed_plan import SignedPlan
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, VerifyKey
from tests.fuzz import layouts, octets, worlds
from tests.fuzz.pieces import mutator
from tests.fuzz.tables import json_mutator
from tests.fuzz.target import MIB, Kit, Target, expect, plainly, same_bytes

_JSON: Final = re.compile(
    r"invalid encoding: '?(Exp|Extra|Inv|Unterm|Illegal|utf)|compiled plan \(invalid encoding: (Exp|Ex|Inv|Un|Il|ut)"
)
_KEYS: Final = tuple(SigningKey(bytes([number]) * 32) for number in range(1, 7))


def _plan_holds(data: bytes, plan: Plan) -> None:
    expect(plan.bundle == data, "a plan whose bundle is not what it was read from")
    expect(plan.guarantee.epsilon > 0, "a plan without a guarantee")
    expect(plan.upload_bytes_max > 0 and plan.counters_shape and repr(plan), "a plan without sizes")
    kind, window = ("tumbling", 0) if plan.privacy.mode != "central" else ("in-process", None)
    expect(spend_of(plan, kind=kind, window=window).plan_id == plan.hex_id, "a spend of another plan")


def _bundles() -> Kit:
    return Kit(
        worlds.bundles(), plainly(Plan.from_bytes, PlanError, check=_plan_holds), layouts.change_plan, 96 * MIB, _JSON
    )


def _canonical() -> Kit:
    first = re.compile(r"not canonical: (Exp|Ext|Inv|Unterm|Illegal|'utf)")
    change = json_mutator()
    attempt = plainly(canonical.decode, CanonicalError, check=same_bytes(canonical.encode))
    return Kit([*(b.partition(b"\n")[0] for b in worlds.bundles()), *_spends()], attempt, change, first=first)


def _reals() -> Kit:
    texts = ("0", "1", "-1", "0.5", "1/3", "-7/9", "0.000001", "9" * 40, "1/" + "9" * 40)

    def read(data: bytes) -> Any:
        return canonical.real(data.decode("utf-8", "surrogateescape"))

    def encode(value: Any) -> bytes:
        return canonical.real_text(value).encode()

    attempt = plainly(read, CanonicalError, check=same_bytes(encode))
    return Kit([text.encode() for text in texts], attempt, octets.mutated)


def _arrays() -> Kit:
    held = [Plan.from_bytes(bundle).parameters.to_bytes() for bundle in worlds.bundles()]
    pairs = Parameters.of([np.ones((2, 3)), np.arange(5), [[1.5]]]).to_bytes()
    samples = [*(arrays for arrays in held if arrays), pairs, b""]
    attempt = plainly(Parameters.from_bytes, PlanError, check=same_bytes(lambda value: value.to_bytes()))
    return Kit(samples, attempt, mutator(layouts.parameters), first=re.compile(r"of format 1$"))


def _array() -> Kit:
    samples = [encode_array(array) for array in (np.ones((2, 3)), np.arange(5), [[1.5]])]
    attempt = plainly(decode_array, PlanError, check=same_bytes(encode_array))
    return Kit(samples, attempt, layouts._array, first=re.compile(r"of format 1$"))


def _signed() -> Kit:
    bundles = worlds.bundles()[:6]
    pairs = zip(bundles, _KEYS[: len(bundles)], strict=True)
    signed = [SignedPlan.sign(bundle, key, f"planner-{at}") for at, (bundle, key) in enumerate(pairs)]
    by_id = {each.plan_id: each.bundle for each in signed}

    def read(data: bytes) -> SignedPlan:
        bundle = next((held for id, held in by_id.items() if id.hex().encode() in data), bundles[0])
        return SignedPlan.from_bytes(bundle, data)

    attempt = plainly(read, PlanError, check=same_bytes(lambda value: value.to_bytes()))
    return Kit([each.to_bytes() for each in signed], attempt, json_mutator(), first=re.compile("canonical bytes"))


def _directories() -> Kit:
    names = ("gw-1", "releaser", "a.b", "device", "shuffler", "planner_1")
    keys = [DirectoryKey(name, role, key.verify_key) for name, role, key in zip(names, Role, _KEYS, strict=True)]
    samples = [Directory({key.id: key for key in keys[:count]}).to_bytes() for count in (1, 3, 6)]
    attempt = plainly(Directory.from_bytes, DirectoryError, check=same_bytes(lambda value: value.to_bytes()))
    return Kit(samples, attempt, json_mutator(), first=re.compile("canonical bytes"))


def _pem(key: SigningKey) -> str:
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key._key.public_key().public_bytes(*form).decode().strip()


def _public_keys() -> Kit:
    samples = [key.verify_key.hex.encode() for key in _KEYS[:2]] + [_pem(key).encode() for key in _KEYS[:2]]

    def read(data: bytes) -> VerifyKey:
        return VerifyKey.from_text(data.decode("utf-8", "surrogateescape"))

    def check(_: bytes, key: VerifyKey) -> None:
        expect(VerifyKey.from_text(key.hex) == key, "a key that is not read back")

    return Kit(samples, plainly(read, DirectoryError, check=check), octets.mutated)


def _private_keys() -> Kit:
    def check(_: bytes, key: SigningKey) -> None:
        expect(SigningKey.from_pem(key.to_pem()).verify_key == key.verify_key, "a key that is not read back")

    samples = [key.to_pem() for key in _KEYS[:2]]
    return Kit(samples, plainly(SigningKey.from_pem, KeyFileError, check=check), octets.mutated)


def _plans() -> list[Plan]:
    return [Plan.from_bytes(bundle) for bundle in worlds.bundles()]


def _guarantees() -> Kit:
    def read(data: bytes) -> Guarantee:
        return Guarantee.from_fields(canonical.decode(data))

    def check(_: bytes, guarantee: Guarantee) -> None:
        # Keys of a cohort that have their defaults may be left out: a release compares it with its plan's.
        again = read(canonical.encode(guarantee.to_fields()))
        expect(again == guarantee, "a guarantee that is not read back")
        expect(guarantee.statement(accounted=True), "a guarantee that says nothing")

    samples = sorted({canonical.encode(plan.guarantee.to_fields()) for plan in _plans()})
    return Kit(samples, plainly(read, PlanError, CanonicalError, check=check), json_mutator(), first=_JSON)


def _spends() -> list[bytes]:
    found = set()
    for plan in _plans():
        found |= {spend_of(plan, kind="tumbling", window=window).to_bytes() for window in (0, -5, 2**40)}
        if plan.privacy.mode == "central":
            found.add(spend_of(plan, kind="in-process", window=None).to_bytes())
    return sorted(found)


def _spendings() -> Kit:
    def check(data: bytes, spend: Spend) -> None:
        expect(spend.to_bytes() == data, "a spend of other bytes")
        expect(spend.loss is not None, "a spend without a loss")

    attempt = plainly(Spend.from_bytes, CanonicalError, PlanError, GuaranteeError, check=check)
    return Kit(_spends(), attempt, json_mutator(), first=_JSON)


TARGETS: Final = (
    Target("plan", ("hushsum.plan.Plan.from_bytes", "hushsum.plan.Plan.from_fields"), _bundles, 0.6),
    Target("canonical", ("hushsum.canonical.decode",), _canonical, 8),
    Target("canonical-real", ("hushsum.canonical.real",), _reals, 6),
    Target("parameters", ("hushsum.parameters.Parameters.from_bytes",), _arrays, 6),
    Target("parameters-array", ("hushsum.parameters.decode",), _array, 2),
    Target("signed-plan", ("hushsum.signed_plan.SignedPlan.from_bytes",), _signed, 3),
    Target("directory", ("hushsum.signing.Directory.from_bytes",), _directories, 2),
    Target("public-key", ("hushsum.signing.VerifyKey.from_text",), _public_keys, 1),
    Target("private-key", ("hushsum.signing.SigningKey.from_pem",), _private_keys, 1),
    Target(
        "guarantee",
        (
            "hushsum.privacy.guarantee.Guarantee.from_fields",
            "hushsum.privacy.local_mode.LocalMode.from_fields",
        ),
        _guarantees,
        3,
    ),
    Target(
        "spend",
        ("hushsum.privacy.events.Spend.from_fields", "hushsum.privacy.events.Spend.from_bytes"),
        _spendings,
        5,
    ),
)
