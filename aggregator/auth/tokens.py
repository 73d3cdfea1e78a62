"""Bearer tokens: the file of their hashes, which is read again when it changes, and new tokens.

    {"id": "…16 hex…", "name": "edge-7", "scopes": ["submit"], "sha256": "…", "made": "…Z", "expires": null}

A token reads ``hushsum_<id>_<secret>``; the secret is 32 random bytes in base64url, so that one SHA-256 of its text is
as good as a slow hash of a password would be. The id says which line it is compared with, and is no secret.

A change writes a new file of mode 0600 and renames it over the old one; a lock file (``tokens.jsonl.lock``) lets one
command at a time do so.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self

from prometheus_client import CollectorRegistry, Gauge

from aggregator.data_dir import FILE_MODE, OTHERS, ReloadedFiles, bytes_and_stat
from aggregator.errors import AggregatorError, ConfigError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.runtime import Runtime
from hushsum.entropy import Entropy
from hushsum.fsync import sync_folder
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
# What the secret of an unknown id is compared with: no secret that is known has this hash.
_UNKNOWN_DIGEST: Final = bytes(32)
_NO_SECRET: Final = "A" * 43


class TokenTableError(AggregatorError):
    """Not a table of tokens: the text names line and key, and nothing of the line's contents."""


class TakenNameError(TokenTableError):
    """A new token's name already has a valid one: the text says the name."""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token, without its secret; times are ms since 1970.

    Attributes:
        id: 16 hex digits.
        name: Its owner: the client id of one that submits.
        digest: SHA-256 of its secret.
        expires_ms: It is not valid from then on; None: it does not expire.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    digest: bytes = field(repr=False)
    made_ms: int
    expires_ms: int | None = None

    def is_good(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms


class TokenTable:
    """Tokens by id; read-only. TokenTableError: two have one id."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries: dict[str, TokenEntry] = {}
        for entry in entries:
            if entry.id in self._entries:
                raise TokenTableError(f"token {entry.id} is listed twice")
            self._entries[entry.id] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TokenEntry]:
        return iter(self._entries.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTable) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it compares by value, and is never a key

    def __repr__(self) -> str:
        return f"TokenTable({len(self)} tokens)"

    def get(self, id: str) -> TokenEntry | None:
        return self._entries.get(id)

    def changed(self, *, without: Collection[str] = (), with_: Iterable[TokenEntry] = ()) -> "TokenTable":
        return TokenTable([*(entry for entry in self if entry.id not in without), *with_])

    def find(self, text: str, now_ms: int) -> TokenEntry | None:
        """The entry of a token; None if it is not valid, whatever is wrong with it.

        The work is the same for a wrong secret, an unknown id, and text that is no token: one hash, and one comparison
        in constant time.
        """
        match = _TOKEN.fullmatch(text)
        id, secret = match.groups() if match else ("", _NO_SECRET)
        entry = self._entries.get(id)
        is_same = hmac.compare_digest(digest_of(secret), _UNKNOWN_DIGEST if entry is None else entry.digest)
        return entry if entry is not None and is_same and entry.is_good(now_ms) else None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The table of a file; empty lines are skipped.

        Raises:
            TokenTableError: A line is not a token's. The text shows nothing of it: it might hold a secret.
        """
        if len(data) > TABLE_BYTES_MAX:
            raise TokenTableError(f"{len(data)} bytes, expected at most {TABLE_BYTES_MAX}")
        lines = data.split(b"\n")
        return cls(_entry_of(line, number) for number, line in enumerate(lines, 1) if line.strip())

    def to_bytes(self) -> bytes:
        return b"".join(_line_of(entry) for entry in self)


def digest_of(secret: str) -> bytes:
    """The hash of a secret's text; its randomness makes a salt needless."""
    return hashlib.sha256(TOKEN + secret.encode("ascii")).digest()


def utc_text(at_ms: int) -> str:
    """A time as it is written in the table, rounded down to whole seconds."""
    # Not by strftime, which writes years before 1000 without their zeros on some platforms.
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(tzinfo=None).isoformat() + "Z"


def _line_of(entry: TokenEntry) -> bytes:
    line = {
        "id": entry.id,
        "name": entry.name,
        "scopes": [scope.value for scope in Scope if scope in entry.scopes],
        "sha256": entry.digest.hex(),
        "made": utc_text(entry.made_ms),
        "expires": None if entry.expires_ms is None else utc_text(entry.expires_ms),
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _entry_of(line: bytes, number: int) -> TokenEntry:
    # Raised outside of the handlers, so that it has no context: a JSON error carries the line.
    try:
        return _read(json.loads(line))
    except _FieldError as error:
        text = str(error)
    except (ValueError, RecursionError):
        text = "expected one JSON object"
    raise TokenTableError(f"line {number}: {text}")


class _FieldError(Exception):
    """What is wrong with a line, in words that show nothing of it."""


def _read(line: object) -> TokenEntry:
    if not isinstance(line, dict) or set(line) != set(_KEYS):
        raise _FieldError(f"expected a JSON object of {', '.join(_KEYS)}")
    expires = line["expires"]
    return TokenEntry(
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
        raise _FieldError(f"scopes: expected a list of {', '.join(known)}, at least one")
    return frozenset(Scope(each) for each in value)


_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


def read_trusted_table(path: Path) -> TokenTable:
    """The table in a file that only its owner may write: whoever writes it decides who is admitted.

    Raises:
        OSError: It cannot be read.
        TokenTableError: Others may write it, or it holds no table.
    """
    data, found = bytes_and_stat(path, TABLE_BYTES_MAX)
    mode = stat.S_IMODE(found.st_mode)
    if mode & _WRITABLE:
        raise TokenTableError(f"mode {mode:03o}, the token file is writable by other users: chmod go-w {path}")
    return TokenTable.from_bytes(data)


def read_table(path: Path) -> TokenTable:
    """The table in a file; an empty one where there is no file.

    Raises:
        OSError: It cannot be read.
        TokenTableError: It holds no table.
    """
    try:
        return TokenTable.from_bytes(bytes_and_stat(path, TABLE_BYTES_MAX)[0])
    except FileNotFoundError:
        return TokenTable()
    except TokenTableError as error:
        raise TokenTableError(f"{path}: {error}") from error


def lacks(path: Path, ids: Iterable[str]) -> bool:
    """Whether it is certain that the table in a file has none of these."""
    try:
        table = read_table(path)
    except (OSError, TokenTableError):
        return False
    return not any(table.get(id) for id in ids)


def change_table(path: Path, change: Callable[[TokenTable], TokenTable]) -> None:
    """Replaces the table in a file, or in none, by a changed one; one change after another.

    Raises:
        OSError: It cannot be read or written; nothing is changed.
        TokenTableError: It holds no table, or a service of another user may read it and could not read the new one;
            nothing is changed, as after what ``change`` raises. Or it is changed, but perhaps not durably: the text
            says so.
    """
    real = path.resolve()  # a link stays one
    with _locked(real):
        table = read_table(real)
        _check_private(real)
        data = change(table).to_bytes()
        temporary = real.with_name(f".{real.name}.new")
        temporary.unlink(missing_ok=True)  # of a change that was cut short
        write_private(temporary, data)
        try:
            temporary.replace(real)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        try:
            sync_folder(real.parent)
        except OSError as error:
            raise TokenTableError(
                f"{path}: changed, but the change may be lost in a power failure: its directory cannot be synced "
                f"({error.strerror}); check the file after such a failure"
            ) from error


def write_private(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner may read, durably but for its name; nothing of it is left if that fails.

    Raises:
        OSError: The file exists, or it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink()
        raise


def _check_private(path: Path) -> None:
    """Refuses to replace a file that another user may read: it would go on with the tokens that it knows."""
    if not path.exists():
        return
    found = path.stat()
    if found.st_mode & OTHERS:
        raise TokenTableError(
            f"{path}: mode {stat.S_IMODE(found.st_mode):03o}, the token file is readable by other users; nothing was "
            f"changed. Make the user of the service its owner, and then: chmod 600 {path}"
        )
    if found.st_uid != os.geteuid():
        raise TokenTableError(
            f"{path}: the token file belongs to user {found.st_uid}, and a change would give it another owner; nothing "
            "was changed. Run this command as that user"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token: its line of the table, and the token itself, which is kept nowhere else."""

    entry: TokenEntry
    text: str = field(repr=False)


def issue(
    entropy: Entropy, name: str, scopes: Collection[Scope], *, now_ms: int, expires_ms: int | None = None
) -> IssuedToken:
    """Makes a token; ``name`` is its owner, and the client id of one that submits.

    It is not valid from ``expires_ms`` on, rounded down to whole seconds; None: it does not expire.

    Raises:
        TokenTableError: The name is not a client id, or there is no scope.
    """
    if flaw := flaw_of(name):
        raise TokenTableError(f"name: expected {CLIENT_ID_FORM}, got {flaw}")
    if not scopes:
        raise TokenTableError("scopes: expected at least one")
    id = entropy.read(ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(entropy.read(SECRET_BYTES)).rstrip(b"=").decode()
    whole_s = None if expires_ms is None else expires_ms // 1000 * 1000
    entry = TokenEntry(id, name, frozenset(scopes), digest_of(secret), now_ms // 1000 * 1000, whole_s)
    return IssuedToken(entry, f"hushsum_{id}_{secret}")


def adding(issued: Collection[IssuedToken], now_ms: int) -> Callable[[TokenTable], TokenTable]:
    """A change of a table that adds new tokens.

    It raises TakenNameError if a name already has a valid token: two devices with tokens of one name would count as
    one client.
    """

    def change(table: TokenTable) -> TokenTable:
        taken = {entry.name for entry in table if entry.is_good(now_ms)}
        for each in issued:
            if each.entry.name in taken:
                raise TakenNameError(
                    f"{each.entry.name} already has a token: rotate it, or revoke it first; two devices with tokens "
                    "of one name would count as one client"
                )
        return table.changed(with_=[each.entry for each in issued])

    return change


def removing(id: str) -> Callable[[TokenTable], TokenTable]:
    """A change of a table that removes a token; it raises TokenTableError if there is none with this id."""

    def change(table: TokenTable) -> TokenTable:
        if table.get(id) is None:
            raise TokenTableError("no token with this id")  # not what came: it may be a token
        return table.changed(without=[id])

    return change


class TokenMetrics:
    """Gauges of the table of tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.tokens = gauge("hushsum_tokens", "Tokens in the loaded token file, including expired ones")
        self.unreadable = gauge(
            "hushsum_tokens_unreadable", "1 while the token file cannot be reloaded and the previous version is used"
        )


LOOK_S: Final = 1.0

_journal = journal("tokens")


class TokenFile:
    """The table in a file, read again when the file changes; a bad file leaves the last good table."""

    def __init__(self, files: ReloadedFiles[TokenTable], runtime: Runtime, metrics: TokenMetrics) -> None:
        self._files, self._runtime, self._metrics = files, runtime, metrics
        self._show()

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, metrics: TokenMetrics) -> Self:
        """Reads the file for the first time.

        Raises:
            ConfigError: It cannot be read, others may write it, or it holds no table: a service does not start without.
        """
        try:
            read = partial(read_trusted_table, path)
            files = await runtime.blocking(ReloadedFiles, [path], read, _log_failure, runtime.monotonic)
        except OSError as error:
            raise ConfigError(f"tokens: {path} cannot be read: {error.strerror}") from error
        except TokenTableError as error:
            raise ConfigError(f"tokens: {path}: {error}") from error
        if not files.value:
            _journal.warning("token file is empty: every call is rejected")
        return cls(files, runtime, metrics)

    @property
    def table(self) -> TokenTable:
        """What the file held when it was last good."""
        return self._files.value

    async def run(self) -> None:
        while True:
            await self._runtime.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        is_new = await self._runtime.blocking(self._files.refresh)
        self._show()
        if is_new:
            _journal.info("token file reloaded", tokens=len(self.table))

    def _show(self) -> None:
        self._metrics.tokens.set(len(self.table))
        self._metrics.unreadable.set(1 if self._files.failure else 0)


def _log_failure(why: str) -> None:
    _journal.error("token file not reloaded: using the previous version", error=why)
