"""Aggregator and shuffler as processes on loopback that can be killed and restarted, and what their operators do."""

import asyncio
import json
import signal
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from aggregator.errors import AggregatorError
from aggregator.fold.verdicts import Verdict
from aggregator.log.sqlite import log_size
from aggregator.shuffler.reports_file import KIND
from aggregator.store.store import read_verdicts
from hushsum.entropy import OsEntropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.credentials import Credentials
from hushsum_proto.messages import Released, ReleaseInfo, ServiceStatus
from hushsum_simulator.console import Console
from hushsum_simulator.errors import JourneyError, ServerError
from hushsum_simulator.progress import Progress
from hushsum_simulator.testbed.process import last_line

_START_S: Final = 180.0  # beside other programs; in a fresh clone loops are compiled first
_STOP_S: Final = 30.0
_LOOK_S: Final = 0.02
_ASK_S: Final = 10.0
_AGGREGATOR: Final = "aggregator"
# A simulated client may hold the records of thousands: the rate limits of one client must not slow it down.
_UNLIMITED: Final[Mapping[str, float]] = {
    "client_bytes_rate": 1e12,
    "client_bytes_burst": 10**15,
    "client_calls_rate": 1e6,
}


class Service:
    """``python -m aggregator`` with a data folder of its own.

    Args:
        folder: An existing folder for its settings, its data and its output.
        name: Of these; ``aggregator`` has its data in ``data``.
        settings: All but the addresses that it listens on, and its data folder.

    Attributes:
        address: ``host:port`` of the running process; another after each start.
        metrics: ``host:port`` of its metrics page; another after each start.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, str | float]) -> None:
        self.data = folder / ("data" if name == _AGGREGATOR else name)
        self.output = folder / f"{name}.log"
        self.starts = 0
        self.name = name
        self._settings = folder / f"{name}.toml"
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""
        self.metrics = ""
        every = {"data": str(self.data), "listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", **settings}
        lines = [f"{key} = {json.dumps(value)}" for key, value in every.items()]
        self._settings.write_text("\n".join(lines) + "\n", encoding="utf-8")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def metrics_page(self) -> bytes:
        return await asyncio.to_thread(self._metrics_page)

    async def start(self) -> None:
        """Starts the process and waits until it listens.

        Raises:
            ServerError: It ended, or does not listen within three minutes.
        """
        with self.output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "aggregator", "--config", str(self._settings)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.starts += 1
        deadline = time.monotonic() + _START_S
        while (listening := self._listening()) is None:
            self.check_running()
            if time.monotonic() > deadline:
                raise ServerError(f"the {self.name} did not listen within {_START_S:.0f} s: {last_line(self.output)}")
            await asyncio.sleep(_LOOK_S)
        self.address, self.metrics = str(listening["grpc"]), str(listening["metrics"])

    def check_running(self) -> None:
        """Raises if the process has ended by itself.

        Raises:
            ServerError: It has; the text holds the last line of its output.
        """
        assert self._process is not None, "started first"
        if self._process.returncode is not None:
            raise ServerError(f"the {self.name} ended with status {self._process.returncode}: {last_line(self.output)}")

    async def kill(self) -> None:
        assert self._process is not None, "started first"
        self.check_running()
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if that does not end the process in time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _metrics_page(self) -> bytes:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=_ASK_S) as page:
            content: bytes = page.read()
        return content

    def _listening(self) -> dict[str, object] | None:
        """Where this very process listens, once it does: a killed one leaves its file behind."""
        assert self._process is not None, "started first"
        try:
            listening: dict[str, object] = json.loads((self.data / "listening.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return listening if listening.get("pid") == self._process.pid else None


class Server(Service):
    """An aggregator of a made plan's file that seals and releases only when its operator asks."""

    def __init__(
        self, folder: Path, plan: Path, partitions: int, settings: Mapping[str, str | float] | None = None
    ) -> None:
        audited = {"manual": True, "retain_verdicts": True}
        own = {"plan": str(plan), "partitions": partitions, **audited, **_UNLIMITED, **(settings or {})}
        super().__init__(folder, _AGGREGATOR, own)

    def durable(self) -> int:
        """Entries in its log, copies too."""
        return log_size(self.data / "log.db")

    async def verdicts(self, plan: Plan) -> list[Verdict]:
        """One for each entry that it has folded."""
        return [verdict for _, verdict in await asyncio.to_thread(read_verdicts, self.data / "store.db", plan)]


class Shuffler(Service):
    """A shuffler that forwards to ``upstream``, with the key of :func:`make_shuffler_key` in the same folder."""

    def __init__(self, folder: Path, directory: Path, upstream: str) -> None:
        key = str(folder / "shuffler.pem")
        settings = {"role": "shuffler", "upstream": upstream, "shufflers": str(directory), "shuffler_key": key}
        super().__init__(folder, "shuffler", settings)

    def durable(self) -> int:
        """Batches of devices that it has taken, each id once."""
        return self._count("ids")

    def waiting(self) -> int:
        """Batches that it forwards, and that have no answer yet."""
        return self._count("outgoing")

    def pooled(self) -> int:
        """Windows that are not cut yet."""
        return self._count("pools")

    def _count(self, table: str) -> int:
        try:
            connection = KIND.open_reading(self.data / "shuffler.db")
        except AggregatorError:
            return 0  # the file is not complete yet
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  the name of a table of ours
        except sqlite3.Error as error:
            raise JourneyError(f"the shuffler's file cannot be read: {error}") from error
        finally:
            connection.close()


def make_shuffler_key(folder: Path) -> Path:
    """Writes a new key to the folder; returns the directory file that lists it."""
    key = SigningKey.generate(OsEntropy())
    key.save(folder / "shuffler.pem")
    directory = folder / "shufflers.toml"
    directory.write_text(toml_of(DirectoryKey("shuffler-1", Role.SHUFFLER, key.verify_key)), encoding="utf-8")
    return directory


T = TypeVar("T")


async def open_window(address: str) -> int:
    """The window that is open by the service's clock."""
    async with Console(address) as console:
        return (await console.welcome()).window


async def seal_window(window: int, address: str, progress: Progress) -> None:
    """Seals a window as its operator does, and returns once every fold has passed the seal."""
    bar = progress.bar("fold: waiting for the seal", None)
    async with Console(address) as operator:
        await operator.seal_through(window)
    bar(1)


async def release_window(window: int, address: str, progress: Progress, *, withheld: str) -> tuple[Released, Release]:
    """Releases a sealed window as its operator does, and downloads the release as an analyst does.

    Raises:
        JourneyError: It was withheld; the text then holds ``withheld``.
        ServiceError: It is not listed.
    """
    async with Console(address) as operator:
        released = await operator.release_through(window)
        progress.step(f"sealed and released window {window}: ε = {released.epsilon_spent} is spent")
    async with Console(address) as analyst:
        _, release = await analyst.outcome(window)
    if release is None:
        raise JourneyError(f"window {window} is withheld, {withheld}: nothing to compare")
    return released, release


_RETRY_S: Final = 120.0
_CALL_S: Final = 15.0  # a process may be paused; the others are not
_PAUSE_S: Final = 0.2


class Operator:
    """Sends each request to one process after the other until one of them has done it.

    Args:
        gateways: ``host:port`` each.
        releasers: ``host:port`` each; one of them releases at a time.
        patience_s: How long each request is retried.
    """

    def __init__(
        self,
        gateways: Sequence[str],
        releasers: Sequence[str] = (),
        *,
        credentials: Credentials | None = None,
        patience_s: float = _RETRY_S,
    ) -> None:
        self._gateways, self._releasers = list(gateways), list(releasers)
        self._credentials, self._patience_s = credentials, patience_s
        self._failures: dict[str, str] = {}

    async def first_window(self) -> int:
        """The oldest window that is open."""
        return (await self._retry("welcome", self._gateways, Console.welcome)).oldest_window

    async def plan(self) -> Plan:
        return await self._retry("fetch the plan", self._gateways, Console.plan)

    async def status(self) -> ServiceStatus:
        return await self._retry("ask for the status", self._gateways, Console.status)

    async def seal(self, window: int) -> None:
        """Closes a window, over or not, and returns once all of it is folded."""
        await self._retry(f"seal window {window}", self._releasers, lambda console: console.seal(window, early=True))

    async def release(self, window: int) -> tuple[ReleaseInfo, Release]:
        """Draws the outcome of a sealed window, which releases it, unless it has one, and fetches it."""

        async def ask(console: Console) -> None:
            if window not in {info.window for info in await console.releases()}:
                await console.release(window)

        await self._retry(f"release window {window}", self._releasers, ask)
        info, release = await self.outcome(window)
        if release is None:
            raise JourneyError(f"window {window} is withheld, expected a release")
        return info, release

    async def outcome(self, window: int) -> tuple[ReleaseInfo, Release | None]:
        """The published outcome of a window; None if it is withheld."""
        return await self._retry(f"fetch window {window}", self._gateways, lambda console: console.outcome(window))

    async def outcomes(self) -> int:
        """How many outcomes are published."""
        return len(await self._retry("list the outcomes", self._gateways, Console.releases))

    async def _retry(self, what: str, addresses: Sequence[str], ask: Callable[[Console], Awaitable[T]]) -> T:
        deadline, attempt = time.monotonic() + self._patience_s, 0
        while True:
            address, attempt = addresses[attempt % len(addresses)], attempt + 1
            try:
                async with Console(address, self._credentials) as console:
                    return await asyncio.wait_for(ask(console), _CALL_S)
            except (HushsumError, TimeoutError) as error:
                self._failures[address] = str(error) or f"no answer in {_CALL_S:.0f} s"
                if time.monotonic() > deadline:
                    failures = "; ".join(f"{address}: {text}" for address, text in sorted(self._failures.items()))
                    raise JourneyError(f"{what}: failed for {self._patience_s:.0f} s ({failures})") from error
            await asyncio.sleep(_PAUSE_S)
