"""A plan with a signature of whoever answers for it, which a device may demand (``Policy(signed_by=...)``).

What is signed is the SHA-256 of the bundle, under a label of its own: the canonical bytes, and the arrays after them.
The plan's id alone would bind the same, for the canonical bytes name each array by its digest, and no other bundle of
that id is ever read; the bundle is signed so that a signature can be checked before any of it is read.

It travels beside the plan: in a file, ``plan.json.sig``, and on the wire.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, Self

from hushsum import canonical
from hushsum.errors import CanonicalError, PlanError
from hushsum.labels import SIGNED_PLAN
from hushsum.plan import plan_id_of
from hushsum.signing import ED25519, KEY_ID_FORM, SIGNATURE_BYTES, SigningKey, VerifyKey, is_key_id

SIGNATURE_FORMAT: Final = 1
#: Of the file beside a plan's: ``plan.json.sig``.
SIGNATURE_SUFFIX: Final = ".sig"
_BYTES_MAX: Final = 1024
_FIELDS: Final = ("format", "key_id", "plan_id", "signature", "suite")


@dataclass(frozen=True)
class SignedPlan:
    """A plan's bundle, and one signature of it. That it is well formed says nothing: :meth:`verify` does.

    Args:
        bundle: Of the plan (:attr:`hushsum.plan.Plan.bundle`).
        key_id: What the signer's key is called in directories; a hint that nothing relies on.
        suite: Of the signature; :data:`hushsum.signing.ED25519` is the only one.
        signature: 64 bytes.

    Raises:
        PlanError: The suite is unknown, or a field has another form.
    """

    bundle: bytes
    key_id: str
    suite: int
    signature: bytes

    def __post_init__(self) -> None:
        if type(self.suite) is not int or self.suite != ED25519:
            raise PlanError(
                "signature.suite", self.suite, f"{ED25519} (Ed25519), the only suite that this version supports"
            )
        if not is_key_id(self.key_id):
            raise PlanError("signature.key_id", self.key_id, f"a key's name: {KEY_ID_FORM}")
        if len(self.signature) != SIGNATURE_BYTES:
            raise PlanError("signature.signature", f"{len(self.signature)} bytes", f"{SIGNATURE_BYTES} bytes")

    @classmethod
    def sign(cls, bundle: bytes, key: SigningKey, key_id: str) -> Self:
        """The plan of this bundle, signed."""
        return cls(bundle, key_id, ED25519, key.sign(SIGNED_PLAN, hashlib.sha256(bundle).digest()))

    def verify(self, keys: Iterable[VerifyKey]) -> VerifyKey:
        """The one of these keys whose signature it is.

        Raises:
            PlanError: It is of none of them, or of another plan.
        """
        digest = hashlib.sha256(self.bundle).digest()
        for key in keys:
            if key.verifies(self.signature, SIGNED_PLAN, digest):
                return key
        came = f"one by key {self.key_id}"
        raise PlanError("signature", came, "a signature of this plan by a trusted key")

    @property
    def plan_id(self) -> bytes:
        """Of the plan."""
        return plan_id_of(self.bundle)

    def to_bytes(self) -> bytes:
        """The signature without the plan, as it stands in a file: canonical JSON."""
        return canonical.encode(
            {
                "format": SIGNATURE_FORMAT,
                "key_id": self.key_id,
                "plan_id": self.plan_id.hex(),
                "signature": self.signature.hex(),
                "suite": self.suite,
            }
        )

    @classmethod
    def from_bytes(cls, bundle: bytes, data: bytes) -> Self:
        """A plan with what :meth:`to_bytes` wrote.

        Raises:
            PlanError: Another plan's, not in this form, newer than this version, or of an unknown suite.
        """
        fields = _read(data)
        if fields.get("format") != SIGNATURE_FORMAT:
            raise PlanError(
                "signature.format",
                fields.get("format"),
                f"{SIGNATURE_FORMAT}, the only format that this version supports",
            )
        if sorted(fields) != list(_FIELDS):
            raise PlanError("signature", sorted(fields), f"the keys {', '.join(_FIELDS)}")
        of, expected = fields["plan_id"], plan_id_of(bundle).hex()
        if of != expected:
            raise PlanError("signature.plan_id", of, f"{expected}, the id of this plan")
        key_id, suite, signature = fields["key_id"], fields["suite"], fields["signature"]
        if not isinstance(key_id, str) or type(suite) is not int:
            raise PlanError("signature", (key_id, suite), "a key's name as text, and a suite's number")
        return cls(bundle, key_id, suite, _unhex(signature))

    @classmethod
    def received(cls, bundle: bytes, key_id: str, suite: int, signature: bytes) -> Self | None:
        """A plan as a peer sent it; None where it has no signature that this version can read. Never raises."""
        try:
            return cls(bundle, key_id, suite, signature)
        except PlanError:
            return None

    @classmethod
    def beside(cls, plan_file: str | PathLike[str], bundle: bytes) -> Self | None:
        """A plan with the signature in the file beside its own; None where there is no such file.

        Raises:
            PlanError: See :meth:`from_bytes`; the error's key begins with the file.
            OSError: The file cannot be read.
        """
        path = signature_file(plan_file)
        try:
            with path.open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        try:
            return cls.from_bytes(bundle, data)
        except PlanError as error:
            raise PlanError(f"{path}: {error.key}", error.came, error.expected) from error


def signature_file(plan_file: str | PathLike[str]) -> Path:
    """The file of a plan's signature: beside it, as ``plan.json.sig``."""
    file = Path(plan_file)
    return file.with_name(file.name + SIGNATURE_SUFFIX)


def _read(data: bytes) -> dict[str, object]:
    try:
        fields = canonical.decode(data) if len(data) <= _BYTES_MAX else None
    except CanonicalError as error:
        raise PlanError("signature", data[:40], f"a plan's signature ({error})") from error
    if not isinstance(fields, dict):
        raise PlanError("signature", data[:40], f"a plan's signature of at most {_BYTES_MAX} bytes")
    return fields


def _unhex(text: object) -> bytes:
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if found.hex() != text:  # spaces and capitals, too
        raise PlanError("signature.signature", text, f"{2 * SIGNATURE_BYTES} hexadecimal digits, in lower case")
    return found
