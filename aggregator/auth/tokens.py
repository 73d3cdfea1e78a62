"""Bearer tokens: the file of their hashes, read again when it changes, and new ones.

    {"id": "…16 hex…", "name": "edge-7", "scopes": ["submit"], "sha256": "…", "made": "…Z", "expires": null}

A token reads ``hushsum_<id>_<secret>``; the secret is 32 random bytes in base64url, so that one SHA-256 of its text is
as good as a slow hash of a password would be. The id says which line it is compared with, and is no secret.

Who changes it holds a lock beside it (``tokens.jsonl.lock``), as the file itself is another one after each change. The
new one has owner, group and mode of the old: a service that could not read it would go on with the tokens that it knew.
"""

import base64
import errno
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
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from prometheus_client import CollectorRegistry, Gauge

from aggregator.data_dir import FILE_MODE
from aggregator.errors import AggregatorError, ConfigError, OpenFilesError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.runtime import Runtime
from hushsum.durable import sync_folder
from hushsum.entropy import Entropy
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
class TokenEntry:
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


class TokenTable:
    """Tokens by id; read-only.

    Raises:
        TokenTableError: Two have one id.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries: dict[str, TokenEntry] = {}
        for entry in entries:
            if entry.id in self._entries:
                raise TokenTableError(f"token {entry.id} stands there twice")
            self._entries[entry.id] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TokenEntry]:
        return iter(self._entries.values())

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTable) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # equal to others, and changed

    def __repr__(self) -> str:
        return f"TokenTable({len(self)} tokens)"

    def get(self, id: str) -> TokenEntry | None:
        """The token of an id."""
        return self._entries.get(id)

    def changed(self, *, without: Collection[str] = (), with_: Iterable[TokenEntry] = ()) -> "TokenTable":
        """The same with some taken out and others put in."""
        return TokenTable([*(entry for entry in self if entry.id not in without), *with_])

    def find(self, text: str, now_ms: int) -> TokenEntry | None:
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
        raise _FieldError(f"scopes: expected a list of {', '.join(known)}, one at least")
    return frozenset(Scope(each) for each in value)


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH  # with an access list the group's bits are the most that anybody has
_KEPT: Final = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP
_ACCESS_LIST: Final = "system.posix_acl_access"
_NO_LIST: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})


def read_bytes(path: Path) -> bytes:
    """What stands in a table's file, a little more than a table may have at most.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(TABLE_BYTES_MAX + 1)


def read_guarded(path: Path) -> bytes:
    """The same, of a file that its owner alone may write: whoever writes it decides who is let in.

    Raises:
        OSError: It cannot be read.
        TokenTableError: Others may write it.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _WRITABLE:
            raise TokenTableError(f"mode {mode:03o}, others may write this table: chmod go-w {path}")
        return file.read(TABLE_BYTES_MAX + 1)


def read_table(path: Path) -> TokenTable:
    """The table in a file; an empty one where there is no file.

    Raises:
        OSError: It cannot be read.
        TokenTableError: It holds no table.
    """
    try:
        return TokenTable.from_bytes(read_bytes(path))
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
    return not any(id in table for id in ids)


def change_table(path: Path, change: Callable[[TokenTable], TokenTable]) -> None:
    """Puts a changed table in the place of the one that is there, or of none; one change after another.

    A new file is its owner's alone. One that was there keeps owner, group, access list and mode, but that others than
    its owner may not write it.

    Raises:
        OSError: It cannot be read or written; it is then as it was.
        TokenTableError: It holds no table, or could not be read any more by whoever reads it now; it is then as it was,
            as it is after what ``change`` raises. Or it is changed, and nobody knows for how long: the text says so.
    """
    real = path.resolve()  # a link stays one
    with _locked(real):
        data = change(read_table(real)).to_bytes()
        temporary = real.with_name(f".{real.name}.new")
        temporary.unlink(missing_ok=True)  # of a change that was cut short
        write_private(temporary, data, like=real)
        try:
            temporary.replace(real)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        try:
            sync_folder(real.parent)
        except OSError as error:
            raise TokenTableError(
                f"{path}: is changed, but may be as it was after a loss of power: its folder cannot be made durable "
                f"({error.strerror}); look at it again then"
            ) from error


def write_private(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Writes a new file that nobody else may read, durably but for its name; nothing of it is left where that fails.

    Args:
        path: Where there is none yet.
        data: What it holds.
        like: Whose owner, group, access list and mode it gets, where there is such a file.

    Raises:
        OSError: There is one already, or it cannot be written.
        TokenTableError: This process may not make it like that one.
    """
    descriptor = os.open(path, _NEW, FILE_MODE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
            if like is not None and like.exists():
                _make_like(like, descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink()
        raise


def _make_like(like: Path, descriptor: int) -> None:
    old = like.stat()
    mode = stat.S_IMODE(old.st_mode)
    if mode & stat.S_IROTH:
        # It is not for others, and a service may be one of them: then it would read none of the changes.
        raise TokenTableError(
            f"{like}: mode {mode:03o}, others may read this table; nothing is changed. Make it its services' by user "
            f"or group, and then: chmod o= {like}"
        )
    try:
        if (old.st_uid, old.st_gid) != (os.fstat(descriptor).st_uid, os.fstat(descriptor).st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        if (access := _access_list(like)) is not None:
            os.setxattr(descriptor, _ACCESS_LIST, access)
        os.fchmod(descriptor, mode & _KEPT)
    except OSError as error:
        raise TokenTableError(
            f"{like}: belongs to user {old.st_uid} and group {old.st_gid}, and a new file of this process cannot be "
            f"made so ({error.strerror}); nothing is changed. Do this as that user or as root"
        ) from error


def _access_list(path: Path) -> bytes | None:
    """Who may use a file beside its owner and group; None: nobody, or there are no such lists here."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return os.getxattr(path, _ACCESS_LIST)
    except OSError as error:
        if error.errno in _NO_LIST:
            return None
        raise


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
    """A token that was just made.

    Attributes:
        entry: Its line of the table.
        text: What its owner shows; it can be had here and now alone.
    """

    entry: TokenEntry
    text: str = field(repr=False)


def issue(
    entropy: Entropy, name: str, scopes: Collection[Scope], *, now_ms: int, expires_ms: int | None = None
) -> IssuedToken:
    """A new token.

    Args:
        entropy: The operating system's.
        name: Whose: the client id of one that submits.
        scopes: What it is good for, one at least.
        now_ms: When it is made.
        expires_ms: From when on it is good for nothing, in whole seconds, what is over cut off; None: never.

    Raises:
        TokenTableError: The name is none, or there is no scope.
    """
    if flaw := flaw_of(name):
        raise TokenTableError(f"name: expected {CLIENT_ID_FORM}, got {flaw}")
    if not scopes:
        raise TokenTableError("scopes: expected one at least")
    id = entropy.read(ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(entropy.read(SECRET_BYTES)).rstrip(b"=").decode()
    whole_s = None if expires_ms is None else expires_ms // 1000 * 1000
    entry = TokenEntry(id, name, frozenset(scopes), digest_of(secret), now_ms // 1000 * 1000, whole_s)
    return IssuedToken(entry, f"hushsum_{id}_{secret}")


class TokenMetrics:
    """Two gauges.

    Args:
        registry: The service's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make: Any = {"registry": registry}  # Any: the constructor takes more than one type by keyword
        self._tokens = Gauge("hushsum_tokens", "Tokens of the table that counts now, expired ones included", **make)
        self._unreadable = Gauge(
            "hushsum_tokens_unreadable", "1 while the file of tokens cannot be read: the last good one counts", **make
        )

    def read(self, tokens: int) -> None:
        """The file was read."""
        self._tokens.set(tokens)
        self._unreadable.set(0)

    def unreadable(self) -> None:
        """It could not be."""
        self._unreadable.set(1)


LOOK_S: Final = 1.0

_journal = journal("tokens")


class _Mark(NamedTuple):
    """What of a file changes when it is written, or another one takes its place."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        found = os.stat(path)  # noqa: PTH116  the mark is of the system call's own numbers
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class _Reading(NamedTuple):
    mark: _Mark
    digest: bytes
    table: TokenTable | TokenTableError


class TokenFile:
    """A file of tokens that is watched. Made by :meth:`open`.

    Attributes:
        table: What stood in it when it was last good.
    """

    def __init__(self, path: Path, table: TokenTable, runtime: Runtime, metrics: TokenMetrics) -> None:
        self.table = table
        self._path = path
        self._runtime = runtime
        self._metrics = metrics
        self._last: _Reading | None = None
        self._is_settled = False  # whether two readings have found the last one
        self._trouble = ""
        metrics.read(len(table))

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, metrics: TokenMetrics) -> Self:
        """Reads it for the first time.

        Raises:
            ConfigError: It cannot be read, others may write it, or it holds no table: a service does not start without.
        """
        try:
            table = TokenTable.from_bytes(await runtime.blocking(read_guarded, path))
        except OSError as error:
            raise ConfigError(f"tokens: {path} cannot be read: {error.strerror}") from error
        except TokenTableError as error:
            raise ConfigError(f"tokens: {path}: {error}") from error
        if not table:
            _journal.warning("there are no tokens: nobody is answered")
        return cls(path, table, runtime, metrics)

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            await self._runtime.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Reads it again if it has changed."""
        last = self._last
        try:
            reading = await self._runtime.blocking(_read_if_changed, self._path, last, self._is_settled)
        except (OSError, OpenFilesError) as error:
            self._last = None
            self._failed(str(error) if isinstance(error, OpenFilesError) else error.strerror or type(error).__name__)
            return
        if reading is None:
            return
        # A file's times are no finer than the system's tick: what is written right after it was read may leave them as
        # they were, and is found by reading it a second time.
        self._last, self._is_settled = reading, last is not None and last.mark == reading.mark
        if isinstance(reading.table, TokenTableError):
            self._failed(str(reading.table))
        elif reading.table is not self.table or self._trouble:
            self._take(reading.table)

    def _take(self, table: TokenTable) -> None:
        is_news = table != self.table or self._trouble
        self.table, self._trouble = table, ""
        self._metrics.read(len(table))
        if is_news:
            _journal.info("tokens were read again", tokens=len(table))

    def _failed(self, why: str) -> None:
        self._metrics.unreadable()
        if why != self._trouble:
            self._trouble = why
            _journal.error("the file of tokens cannot be read, its last good state counts", error=why)


def _read_if_changed(path: Path, last: _Reading | None, is_settled: bool) -> _Reading | None:  # noqa: FBT001  a fact, not a switch
    mark = _Mark.of(path)  # before its bytes: what changes in between is read once more
    if is_settled and last is not None and last.mark == mark:
        return None
    try:
        data = read_guarded(path)
    except TokenTableError as error:
        return _Reading(mark, b"", error)
    digest = hashlib.sha256(data).digest()
    if last is not None and last.digest == digest:
        return _Reading(mark, digest, last.table)
    try:
        return _Reading(mark, digest, TokenTable.from_bytes(data))
    except TokenTableError as error:
        return _Reading(mark, digest, error)
