"""The table of tokens: one line of JSON each, with the hash of a secret that is nowhere in it; and how one is found.

    {"id": "…16 hex…", "name": "edge-7", "scopes": ["submit"], "sha256": "…", "made": "…Z", "expires": null}

A token reads ``hushsum_<id>_<secret>``; the secret is 32 random bytes in base64url, so that one SHA-256 of its text is
as good as a slow hash of a password would be. The id says which line it is compared with, and is no secret.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from aggregator.errors import AggregatorError
from aggregator.ports import Scope
from hushsum.labels import TOKEN
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
TABLE_BYTES_MAX: Final = 1 << 26

_TOKEN: Final = re.compile(r"hushsum_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_KEYS: Final = ("id", "name", "scopes", "sha256", "made", "expires")
# What a token of nobody is compared with: no secret that is known has this hash.
_NOBODYS_DIGEST: Final = bytes(32)
_NO_SECRET: Final = "A" * 43


class TokenTableError(AggregatorError):
    """A table of tokens that is none: the text names line and key, and nothing that stands there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One token, without what proves it.

    Attributes:
        id: 16 hex digits.
        name: Whose it is: the client id of one that submits.
        scopes: What it is good for; at least one.
        digest: SHA-256 of its secret.
        made_ms: When it was made, ms since 1970, whole seconds.
        expires_ms: From when on it is good for nothing; None: never.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    digest: bytes = field(repr=False)
    made_ms: int
    expires_ms: int | None = None

    def is_good(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms


class Table:
    """Tokens by id; read-only.

    Raises:
        TokenTableError: Two have one id.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            if entry.id in self._entries:
                raise TokenTableError(f"token {entry.id} stands there twice")
            self._entries[entry.id] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # equal to others, and changed

    def __repr__(self) -> str:
        return f"Table({len(self)} tokens)"

    def get(self, id: str) -> Entry | None:
        """The token of an id."""
        return self._entries.get(id)

    def changed(self, *, without: Collection[str] = (), with_: Iterable[Entry] = ()) -> "Table":
        """The same with some taken out and others put in."""
        return Table([*(entry for entry in self if entry.id not in without), *with_])

    def find(self, text: str, now_ms: int) -> Entry | None:
        """Whose token this is; None for anything that is not good, whatever is wrong with it.

        The same work for a wrong secret, an id that nobody has, and text that is no token: one hash, one comparison in
        constant time.
        """
        match = _TOKEN.fullmatch(text)
        id, secret = match.groups() if match else ("", _NO_SECRET)
        entry = self._entries.get(id)
        is_same = hmac.compare_digest(digest_of(secret), _NOBODYS_DIGEST if entry is None else entry.digest)
        return entry if entry is not None and is_same and entry.is_good(now_ms) else None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The table of a file; empty lines count for nothing.

        Raises:
            TokenTableError: A line is not one of a token. Nothing of it is in the text: a secret might be.
        """
        if len(data) > TABLE_BYTES_MAX:
            raise TokenTableError(f"{len(data)} bytes, expected at most {TABLE_BYTES_MAX}")
        lines = data.split(b"\n")
        return cls(_entry_of(line, number) for number, line in enumerate(lines, 1) if line.strip())

    def to_bytes(self) -> bytes:
        """The bytes of its file."""
        return b"".join(_line_of(entry) for entry in self)


def digest_of(secret: str) -> bytes:
    """The hash of a secret's text; its randomness makes a salt needless."""
    return hashlib.sha256(TOKEN + secret.encode("ascii")).digest()


def utc_text(at_ms: int) -> str:
    """A time as the table has it, in whole seconds, the fraction cut off."""
    # Not by strftime, which writes years before 1000 without their zeros on some platforms.
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(tzinfo=None).isoformat() + "Z"


def _line_of(entry: Entry) -> bytes:
    line = {
        "id": entry.id,
        "name": entry.name,
        "scopes": [scope.value for scope in Scope if scope in entry.scopes],
        "sha256": entry.digest.hex(),
        "made": utc_text(entry.made_ms),
        "expires": None if entry.expires_ms is None else utc_text(entry.expires_ms),
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _entry_of(line: bytes, number: int) -> Entry:
    # Not as its cause: a JSON error carries the line.
    told: TokenTableError | None = None
    try:
        return _read(json.loads(line))
    except _FieldError as error:
        told = TokenTableError(f"line {number}: {error}")
    except (ValueError, RecursionError):
        told = TokenTableError(f"line {number}: expected one JSON object")
    raise told


class _FieldError(Exception):
    """What is wrong with a line, in words that hold nothing of it."""


def _read(line: object) -> Entry:
    if not isinstance(line, dict) or set(line) != set(_KEYS):
        raise _FieldError(f"expected a JSON object of {', '.join(_KEYS)}")
    expires = line["expires"]
    return Entry(
        _text(line, "id", _ID, "16 hex digits"),
        _name(line["name"]),
        _scopes(line["scopes"]),
        bytes.fromhex(_text(line, "sha256", _DIGEST, "64 hex digits")),
        _time(line, "made"),
        None if expires is None else _time(line, "expires"),
    )


def _text(line: Mapping[str, object], key: str, form: re.Pattern[str], expected: str) -> str:
    value = line[key]
    if not isinstance(value, str) or not form.fullmatch(value):
        raise _FieldError(f"{key}: expected {expected}")
    return value


def _time(line: Mapping[str, object], key: str) -> int:
    text = _text(line, key, _TIME, "a time such as 2030-01-31T12:00:00Z")
    try:
        return round(datetime.fromisoformat(text).timestamp()) * 1000
    except ValueError:
        # Not as its cause: what stands there is not shown.
        raise _FieldError(f"{key}: expected a time such as 2030-01-31T12:00:00Z") from None


def _name(value: object) -> str:
    if not isinstance(value, str) or flaw_of(value):
        raise _FieldError(f"name: expected {CLIENT_ID_FORM}")
    return value


def _scopes(value: object) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    if not isinstance(value, list) or not value or not all(each in known for each in value):
        raise _FieldError(f"scopes: expected a list of {', '.join(known)}, one at least")
    return frozenset(Scope(each) for each in value)
