"""The directory: whose key is which, and what each may sign. Its owner writes TOML; over the wire go canonical bytes.

    [keys.gw-1]
    role = "gateway"
    public_key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"

A role may have several keys: to change one, add the new key everywhere, then sign with it, and take the old one out
once nothing that it signed will be read again (the log's retention); what it signed is refused from then on.
"""

import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final, Self

from hushsum.canonical import decode, encode, shown
from hushsum.errors import CanonicalError, DirectoryError
from hushsum.labels import DIRECTORY
from hushsum.signatures import KEY_BYTES, VerifyKey
from hushsum.toml_text import tables_of

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
                    f"keys.{id}.public_key: the same as of keys.{seen[key.public_key]}, expected a key of its own"
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
            raise DirectoryError(f"no TOML: {shown(error)}") from error
        unknown = sorted(tables.keys() - {"keys"})
        if unknown:
            raise DirectoryError(f"{shown(unknown[0])}: unknown, expected [keys.NAME] alone")
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
            raise DirectoryError(f"got {shown(data)}, expected the canonical bytes of a directory ({error})") from error
        if not isinstance(fields, dict):
            raise DirectoryError(f"got {shown(fields)}, expected keys by their names")
        directory = cls({id: _key(id, table) for id, table in fields.items()})
        if directory.to_bytes() != data:
            raise DirectoryError("a public key in another form, expected 64 lowercase hexadecimal digits")
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
            raise DirectoryError(f"the {role} key {public_key.hex} is not in the directory, expected it as [keys.NAME]")
        if key.role is not role:
            raise DirectoryError(f"keys.{key.id}: is a {key.role} key, and is used here as a {role} key")
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
        raise DirectoryError(f"keys.{shown(id)}: not a name of a key, expected {KEY_ID_FORM}")


def _key(id: str, table: object) -> DirectoryKey:
    _check_id(id)
    if not isinstance(table, dict):
        raise DirectoryError(f"keys.{id}: got {shown(table)}, expected a table with role and public_key")
    unknown = sorted(table.keys() - {"role", "public_key"})
    if unknown:
        raise DirectoryError(f"keys.{id}.{shown(unknown[0])}: unknown, expected role and public_key alone")
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
