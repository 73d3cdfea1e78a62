"""Ed25519 signatures (RFC 8032) over labelled, length-framed parts; and the files that private keys are kept in.

What is signed is the label, and the SHA-256 of: the label, the number of parts, the length of each (4 bytes each,
big-endian), the parts. No two lists of parts are framed alike, and a signature of one purpose is none of another. (The
inner hash is there for speed: Ed25519 alone reads a message twice to sign it, with the slower SHA-512.)

A :class:`Directory` lists public keys, the name of each key's owner, and what each key may sign. Its owner writes TOML;
the wire carries canonical bytes.

    [keys.gw-1]
    role = "gateway"
    public_key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"

A role may have several keys: to change one, add the new key everywhere, then sign with it, and take the old one out
once nothing that it signed will be read again (the log's retention); what it signed is refused from then on.
"""

import enum
import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from hushsum.canonical import decode, encode, shown
from hushsum.entropy import Entropy
from hushsum.errors import CanonicalError, DirectoryError, KeyFileError
from hushsum.labels import DIRECTORY
from hushsum.schema import tables_of

ED25519: Final = 1  # the number of this suite wherever a signature travels
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_FILE_BYTES_MAX: Final = 1 << 16
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P  # of the curve −x² + y² = 1 + d x² y² (RFC 8032, 5.1)


class VerifyKey:
    """A public key.

    Args:
        raw: Its 32 bytes (RFC 8032, 5.1.2).

    Raises:
        DirectoryError: They are none, or one of the few under which anybody can sign.
    """

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise DirectoryError(f"expected an Ed25519 public key of {KEY_BYTES} bytes, got {len(raw)}")
        if not _is_sound(raw):
            raise DirectoryError("expected an Ed25519 public key, got an invalid point")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The key of 64 hexadecimal digits, or of PEM.

        Raises:
            DirectoryError: It is neither.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        text = text.strip()
        if _HEX.fullmatch(text):
            return cls(bytes.fromhex(text))
        try:
            key = load_pem_public_key(text.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            came = "PEM of something else" if "-----" in text else f"{len(text)} characters"
            raise DirectoryError(f"expected an Ed25519 public key as 64 hexadecimal digits or as PEM, got {came}")
        return cls(key.public_bytes_raw())

    @property
    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self.raw.hex()

    def verifies(self, signature: bytes, label: bytes, *parts: bytes) -> bool:
        """Whether the key's owner signed exactly these parts under this label."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, _framed(label, parts))
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"VerifyKey({self.hex})"


def accessible_to_others(found: os.stat_result) -> bool:
    """Whether users other than its owner may access the file of a private key.

    One of root's that its group may read, and others may not access, is private, as PostgreSQL has it: orchestrators
    and systemd hand secrets to an ordinary user so. For root itself it is not.
    """
    if found.st_mode & (stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO):
        return True
    return bool(found.st_mode & stat.S_IRGRP) and not (found.st_uid == 0 and os.geteuid() != 0)


class SigningKey:
    """A private key. Whoever learns it can sign as its owner.

    Args:
        seed: Its 32 bytes (RFC 8032, 5.1.5).

    Raises:
        KeyFileError: Another length.
    """

    __slots__ = ("_key", "verify_key")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise KeyFileError(f"expected an Ed25519 private key of {KEY_BYTES} bytes, got {len(seed)}")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verify_key = VerifyKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """A new key."""
        return cls(entropy.read(KEY_BYTES))

    @classmethod
    def from_pem(cls, data: bytes) -> Self:
        """The key of unencrypted PKCS #8 in PEM.

        Raises:
            KeyFileError: It is none.
        """
        from cryptography.exceptions import InternalError, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(data, password=None)
        except TypeError as error:
            raise KeyFileError("expected an Ed25519 private key in PEM without a password, got an encrypted") from error
        except (ValueError, UnsupportedAlgorithm, InternalError):  # the last: what OpenSSL refuses in words of its own
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError("expected an Ed25519 private key in PEM (PKCS #8), got something else")
        return cls(key.private_bytes_raw())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The key of a PEM file that nobody but its owner may read.

        Raises:
            KeyFileError: The file cannot be read, others may, or it holds no such key.
        """
        try:
            with Path(path).open("rb") as file:
                found = os.fstat(file.fileno())
                is_refused = accessible_to_others(found)
                data = b"" if is_refused else file.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        if is_refused:
            raise KeyFileError(
                f"{path}: mode {stat.S_IMODE(found.st_mode):03o}, the private key is accessible to other users: "
                f"chmod 600 {path}"
            )
        try:
            return cls.from_pem(data)
        except KeyFileError as error:
            raise KeyFileError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a new PEM file that nobody else may read.

        Raises:
            KeyFileError: There is such a file already, or it cannot be written.
        """
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb") as opened:  # noqa: PTH123  a descriptor is opened, no path
                opened.write(self.to_pem())
                opened.flush()
                os.fsync(file)
        except FileExistsError as error:
            raise KeyFileError(f"{path} already exists: keys are not overwritten") from error
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error

    def to_pem(self) -> bytes:
        """Unencrypted PKCS #8 in PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, label: bytes, *parts: bytes) -> bytes:
        """The signature of these parts under this label: 64 bytes."""
        return self._key.sign(_framed(label, parts))

    def __repr__(self) -> str:
        return f"SigningKey(of {self.verify_key.hex})"


def _framed(label: bytes, parts: tuple[bytes, ...]) -> bytes:
    assert label.endswith(b"\0"), "a label of labels.py"
    head = struct.pack(f">{len(parts) + 1}I", len(parts), *map(len, parts))
    return label + hashlib.sha256(b"".join((label, head, *parts))).digest()


def _is_sound(raw: bytes) -> bool:
    """Whether the bytes are the canonical ones of a point whose order is not 1, 2, 4 or 8 (RFC 8032, 5.1.3)."""
    y = int.from_bytes(raw, "little") & ((1 << 255) - 1)
    sign = raw[31] >> 7
    x2 = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(x2, (_P + 3) // 8, _P)
    if x * x % _P != x2:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if y >= _P or x * x % _P != x2 or (x == 0 and sign):
        return False
    for _ in range(3):  # times 8; which of the two roots x is, does not matter here
        product = _D * x * x * y * y % _P
        x, y = 2 * x * y * pow(1 + product, -1, _P) % _P, (y * y + x * x) * pow(1 - product, -1, _P) % _P
    return (x, y) != (0, 1)


KEYS_MAX: Final = 1 << 14
_NAME_MAX: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_NAME_MAX - 1}}}")
#: What :func:`is_key_id` asks for.
KEY_ID_FORM: Final = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or a digit"


class Role(enum.StrEnum):
    """What a key may sign."""

    GATEWAY = "gateway"  # deltas of any client, as the gateway stamped them
    RELEASER = "releaser"  # seals, and nothing else
    PRODUCER = "producer"  # deltas, for whose client ids it vouches
    CLIENT = "client"  # its own part in a secure sum; the key's id is the client's
    SHUFFLER = "shuffler"  # batches of reports that it has shuffled
    PLANNER = "planner"  # plans: devices may ask for its signature


#: Of canonical bytes: those of KEYS_MAX keys with the longest ids and roles.
DIRECTORY_BYTES_MAX: Final = 1 + KEYS_MAX * len(
    f',"{"a" * _NAME_MAX}":{{"public_key":"{"0" * 2 * KEY_BYTES}","role":"{max(Role, key=len)}"}}'
)


@dataclass(frozen=True)
class DirectoryKey:
    """One key of the directory: its id, which travels with what it signs, its role, its public half."""

    id: str
    role: Role
    public_key: VerifyKey


@dataclass(frozen=True)
class Directory:
    """Keys by id.

    Attributes:
        keys: Read-only; no two have the same public key.

    Raises:
        DirectoryError: There is no key, or a public key stands under two ids: one role could be used as another.
    """

    keys: Mapping[str, DirectoryKey]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))
        if not 1 <= len(self.keys) <= KEYS_MAX:
            raise DirectoryError(f"keys: got {len(self.keys)}, expected 1 to {KEYS_MAX}, each as [keys.NAME]")
        seen: dict[VerifyKey, str] = {}
        for id, key in self.keys.items():
            _check_id(id)
            assert id == key.id
            if key.public_key in seen:
                raise DirectoryError(
                    f"keys.{id}.public_key: the same as keys.{seen[key.public_key]}, expected a unique key"
                )
            seen[key.public_key] = id

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The directory of the text of a TOML file.

        Raises:
            DirectoryError: With the key's name, what came and what was expected.
        """
        try:
            tables = tables_of(text)
        except ValueError as error:
            raise DirectoryError(f"invalid TOML: {shown(error)}") from error
        unknown = sorted(tables.keys() - {"keys"})
        if unknown:
            raise DirectoryError(f"{shown(unknown[0])}: unknown key, expected tables [keys.NAME]")
        keys = tables.get("keys", {})
        if not isinstance(keys, dict):
            raise DirectoryError(f"keys: got {shown(keys)}, expected tables [keys.NAME]")
        return cls({id: _key(id, table) for id, table in keys.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The directory of its canonical bytes. Whoever got them from a peer compares :func:`digest_of` them first.

        Raises:
            DirectoryError: They are not the bytes that :meth:`to_bytes` gives for any directory.
        """
        if len(data) > DIRECTORY_BYTES_MAX:
            raise DirectoryError(f"got {len(data)} bytes, expected at most {DIRECTORY_BYTES_MAX}")
        try:
            fields = decode(data)
        except CanonicalError as error:
            raise DirectoryError(f"got {shown(data)}, expected a key registry ({error})") from error
        if not isinstance(fields, dict):
            raise DirectoryError(f"got {shown(fields)}, expected a table of keys by name")
        directory = cls({id: _key(id, table) for id, table in fields.items()})
        if directory.to_bytes() != data:
            raise DirectoryError("public key: expected 64 lower-case hexadecimal digits")
        return directory

    def to_bytes(self) -> bytes:
        """The canonical bytes, with keys in the order of their ids: the same however the file is laid out."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        return encode({id: {"public_key": key.public_key.hex, "role": key.role.value} for id, key in self.keys.items()})

    def digest(self) -> bytes:
        """Labelled SHA-256 of the canonical bytes."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return digest_of(self._bytes)

    def find(self, public_key: VerifyKey) -> DirectoryKey | None:
        """The entry of a public key; None where it has none."""
        return next((key for key in self.keys.values() if key.public_key == public_key), None)

    def of_role(self, role: Role) -> tuple[VerifyKey, ...]:
        """The public keys of one role, in the directory's order; maybe none."""
        return tuple(key.public_key for key in self.keys.values() if key.role is role)

    def expect(self, public_key: VerifyKey, role: Role) -> DirectoryKey:
        """The entry of a public key that must have this role.

        Raises:
            DirectoryError: The directory does not hold it, or for another role.
        """
        key = self.find(public_key)
        if key is None:
            raise DirectoryError(
                f"the {role} key {public_key.hex} is not in the key registry, expected it as [keys.NAME]"
            )
        if key.role is not role:
            raise DirectoryError(f"keys.{key.id}: is a {key.role} key, expected a {role} key")
        return key


def digest_of(data: bytes) -> bytes:
    """The digest of a directory of these canonical bytes. It reads nothing of them."""
    return hashlib.sha256(DIRECTORY + data).digest()


def is_key_id(text: object) -> bool:
    """Whether this can be the name of a key (:data:`KEY_ID_FORM`)."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def toml_of(key: DirectoryKey) -> str:
    """The lines of a directory's TOML that stand for one key.

    Raises:
        DirectoryError: Its id cannot be one.
    """
    _check_id(key.id)
    name = key.id if "." not in key.id else f'"{key.id}"'
    return f'[keys.{name}]\nrole = "{key.role}"\npublic_key = "{key.public_key.hex}"\n'


def _check_id(id: str) -> None:
    if not is_key_id(id):
        raise DirectoryError(f"keys.{shown(id)}: not a valid key name, expected {KEY_ID_FORM}")


def _key(id: str, table: object) -> DirectoryKey:
    _check_id(id)
    if not isinstance(table, dict):
        raise DirectoryError(f"keys.{id}: got {shown(table)}, expected a table with role and public_key")
    unknown = sorted(table.keys() - {"role", "public_key"})
    if unknown:
        raise DirectoryError(f"keys.{id}.{shown(unknown[0])}: unknown key, expected role and public_key")
    roles = " or ".join(repr(role.value) for role in Role)
    role, public_key = table.get("role"), table.get("public_key")
    if not isinstance(role, str) or role not in set(Role):
        raise DirectoryError(f"keys.{id}.role: {_came(role)}, expected {roles}")
    if not isinstance(public_key, str):
        raise DirectoryError(f"keys.{id}.public_key: {_came(public_key)}, expected hexadecimal digits or PEM")
    try:
        return DirectoryKey(id, Role(role), VerifyKey.from_text(public_key))
    except DirectoryError as error:
        raise DirectoryError(f"keys.{id}.public_key: {error}") from error


def _came(value: object) -> str:
    return "is missing" if value is None else f"got {shown(value)}"
