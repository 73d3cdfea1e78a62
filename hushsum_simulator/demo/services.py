"""The service as processes of their own, on loopback, that are killed and started again; and its console.

The console is what operators and analysts ask of a service: the open window, seal, release, status, plan, releases.
"""

import asyncio
import hashlib
import json
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio

from hushsum.errors import PlanError
from hushsum.plan import BUNDLE_BYTES_MAX, Plan
from hushsum.releases import Release
from hushsum_proto import convert, convert_admin, convert_outcomes
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import WireError
from hushsum_proto.messages import (
    PAGE,
    PAGE_MAX,
    PROTOCOL_VERSIONS,
    Hello,
    LedgerPage,
    PlanInfo,
    Released,
    ReleaseInfo,
    ServiceStatus,
    Welcome,
    WindowsPage,
)
from hushsum_proto.metadata import CLIENT_ID
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.errors import JourneyError, ServerError, ServiceError
from hushsum_simulator.progress import Progress

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_LOOK_S: Final = 0.02
_AGGREGATOR: Final = "aggregator"
# A simulated client may hold what thousands would, and is not to wait for the rate of one.
_UNLIMITED: Final[Mapping[str, float]] = {
    "client_bytes_rate": 1e12,
    "client_bytes_burst": 10**15,
    "client_calls_rate": 1e6,
}


class Service:
    """``python -m aggregator`` with a data folder of its own.

    Args:
        folder: An existing folder for its settings, its data and what it writes to its standard output and error.
        name: Of these; ``data`` is the folder of its data where it is an aggregator.
        settings: Beside where it listens, and its data.

    Attributes:
        data: The folder of its data.
        output: What it writes to its standard output and error.
        starts: How often it was started.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, str | float]) -> None:
        self.data = folder / ("data" if name == _AGGREGATOR else name)
        self.output = folder / f"{name}.log"
        self.starts = 0
        self._name = name
        self._settings = folder / f"{name}.toml"
        self._process: asyncio.subprocess.Process | None = None
        self._address: str | None = None
        self._metrics: str | None = None
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

    @property
    def address(self) -> str:
        """``host:port`` of the running process; another after each start."""
        assert self._address is not None, "started first"
        return self._address

    @property
    def metrics(self) -> str:
        """Where its page of metrics answers, ``host:port``; another after each start."""
        assert self._metrics is not None, "started first"
        return self._metrics

    async def start(self) -> None:
        """Starts the process and waits until it listens.

        Raises:
            ServerError: It ends instead, or does not listen in a minute.
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
        while (said := self._listening()) is None:
            self.check_running()
            if time.monotonic() > deadline:
                raise ServerError(f"the {self._name} does not listen after {_START_S:.0f} s: {self._last_line()}")
            await asyncio.sleep(_LOOK_S)
        self._address, self._metrics = str(said["grpc"]), str(said["metrics"])

    def check_running(self) -> None:
        """Makes sure that the process has not ended by itself.

        Raises:
            ServerError: It has; the error holds the last line that it wrote.
        """
        assert self._process is not None, "started first"
        if self._process.returncode is not None:
            raise ServerError(f"the {self._name} ended with status {self._process.returncode}: {self._last_line()}")

    async def kill(self) -> None:
        """SIGKILL: the process has no say in it."""
        assert self._process is not None, "started first"
        self.check_running()
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL where that does not end it in time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _listening(self) -> dict[str, object] | None:
        """Where this very process listens, once it does: a killed one leaves its file behind."""
        assert self._process is not None, "started first"
        try:
            said: dict[str, object] = json.loads((self.data / "listening.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return said if said.get("pid") == self._process.pid else None

    def _last_line(self) -> str:
        lines = self.output.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")


class Server(Service):
    """An aggregator; nothing is sealed or released but by an operator.

    Args:
        folder: An existing folder.
        plan: A made plan.
        partitions: P of its log.
        settings: Further ones.
    """

    def __init__(
        self, folder: Path, plan: Path, partitions: int, settings: Mapping[str, str | float] | None = None
    ) -> None:
        audited = {"manual": True, "retain_verdicts": True}
        own = {"plan": str(plan), "partitions": partitions, **audited, **_UNLIMITED, **(settings or {})}
        super().__init__(folder, _AGGREGATOR, own)


_NAME: Final = ((CLIENT_ID, "console"),)
_QUICK_S: Final = 15.0
_LONG_S: Final = 300.0  # a seal waits for every fold, a release draws its noise
_PLAN_BYTES_MAX: Final = BUNDLE_BYTES_MAX + 2**20
_OPTIONS: Final = (("grpc.max_receive_message_length", _PLAN_BYTES_MAX),)


class Console:
    """A connection to one service.

    Args:
        target: ``host:port``.
        credentials: What is shown, and who is believed; where nothing proves a name, this one is declared: ``console``.
            None: TLS to another machine, and nothing is shown.
        insecure: Speak plaintext to another machine, too.

    Raises:
        CredentialsError: ``insecure`` would send a token in plaintext to another machine.
    """

    def __init__(self, target: str, credentials: Credentials | None = None, *, insecure: bool = False) -> None:
        shown = credentials or Credentials()
        self._target = target
        self._credentials = shown.in_plaintext(target) if insecure else shown
        self._metadata: tuple[tuple[str, str], ...] = () if shown.names_itself else _NAME
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        """Connects at the first question.

        Raises:
            CredentialsError: A file of the credentials cannot be used.
        """
        self._metadata += self._credentials.metadata()
        self._channel = self._credentials.channel(self._target, _OPTIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.close(None)

    async def welcome(self) -> Welcome:
        """The windows that are open, by the service's clock."""
        with self._asking():
            request = convert.hello_to_wire(Hello(PROTOCOL_VERSIONS))
            reply = await stubs.CollectionStub(self._open).Hello(request, metadata=self._metadata, timeout=_QUICK_S)
            return convert.welcome_from_wire(reply)

    async def plan(self) -> Plan:
        """The plan that is collected here."""
        with self._asking():
            stub = stubs.CatalogueStub(self._open)
            reply = await stub.GetPlan(pb.GetPlanRequest(), metadata=self._metadata, timeout=_QUICK_S)
            return Plan.from_bytes(reply.plan)

    async def status(self) -> ServiceStatus:
        """Windows, partitions and budget; for its operator."""
        with self._asking():
            stub = stubs.AdministrationStub(self._open)
            reply = await stub.GetStatus(pb.StatusRequest(), metadata=self._metadata, timeout=_QUICK_S)
            return convert_admin.status_from_wire(reply)

    async def plans(self) -> list[PlanInfo]:
        """Every plan of the service's store, in the order in which they were registered; for its operator."""
        with self._asking():
            stub = stubs.AdministrationStub(self._open)
            reply = await stub.ListPlans(pb.ListPlansRequest(), metadata=self._metadata, timeout=_QUICK_S)
            return convert_admin.plans_from_wire(reply)

    async def windows(
        self, limit: int = PAGE, *, before: int | None = None, states: Collection[str] = ()
    ) -> WindowsPage:
        """The newest windows, of these states where some are named; for its operator.

        Args:
            limit: The most.
            before: Only windows before this one.
            states: As :class:`hushsum_proto.messages.WindowsPage` names them.
        """
        found: list[tuple[int, str]] = []
        while True:
            # One more than is wanted tells whether there are more of these states.
            size = PAGE_MAX if states else min(limit + 1 - len(found), PAGE_MAX)
            with self._asking():
                stub = stubs.AdministrationStub(self._open)
                request = convert_admin.windows_request_to_wire(before, size)
                reply = await stub.ListWindows(request, metadata=self._metadata, timeout=_QUICK_S)
                page = convert_admin.windows_from_wire(reply)
            found += [(window, state) for window, state in page.windows if not states or state in states]
            if len(found) > limit or not page.more or not page.windows:
                return WindowsPage(tuple(found[:limit]), more=len(found) > limit)
            before = page.windows[-1][0]

    async def ledger(self, limit: int = PAGE) -> LedgerPage:
        """The ledger of the plan's population, with the newest spends; for its operator."""
        first = page = await self._ledger(0, limit)
        spends, known = [*first.spends], first.spends_total
        while page.spends and len(spends) < min(limit, first.spends_total):
            page = await self._ledger(len(spends) + known - first.spends_total, limit - len(spends))
            # What was spent since the last page has moved the older ones on: those that were shown come first again.
            spends += page.spends[max(0, page.spends_total - known) :]
            known = page.spends_total
        return replace(first, spends=tuple(spends))

    async def seal(self, window: int | None = None) -> int:
        """Closes a window, the oldest open one where none is named, and returns once every fold has passed its seal."""
        with self._asking():
            stub = stubs.AdministrationStub(self._open)
            request = pb.SealWindowRequest(window=window or 0, oldest=window is None)
            return (await stub.SealWindow(request, metadata=self._metadata, timeout=_LONG_S)).window

    async def release(self, window: int | None = None) -> Released:
        """Draws the outcome of a sealed window, the oldest without one where none is named."""
        with self._asking():
            stub = stubs.AdministrationStub(self._open)
            request = pb.ReleaseWindowRequest(window=window or 0, oldest=window is None)
            reply = await stub.ReleaseWindow(request, metadata=self._metadata, timeout=_LONG_S)
            return convert_admin.released_from_wire(reply)

    async def seal_through(self, window: int) -> None:
        """Closes every open window up to this one: one that ended since the service began is open too, and empty."""
        while await self.seal() < window:
            pass

    async def release_through(self, window: int) -> Released:
        """Draws the outcomes of all sealed windows up to this one, in order; gives the last."""
        released = await self.release()
        while released.release.window < window:
            released = await self.release()
        return released

    async def releases(self) -> list[ReleaseInfo]:
        """Every published outcome, released or withheld, in the order of their windows."""
        with self._asking():
            stub = stubs.CatalogueStub(self._open)
            reply = await stub.ListReleases(pb.ListReleasesRequest(), metadata=self._metadata, timeout=_QUICK_S)
            return [convert_outcomes.release_info_from_wire(info) for info in reply.releases]

    async def fetch_window(self, window: int, *, withheld: str) -> Release:
        """The release of a window, found among all as an analyst finds it.

        Args:
            window: Which; it has its outcome.
            withheld: What is said where there is no release, because the window was withheld.

        Raises:
            JourneyError: It is not listed, or was withheld.
        """
        listed = [info for info in await self.releases() if info.window == window]
        if not listed:
            raise JourneyError(f"window {window} is released, and the catalogue does not list it")
        if listed[0].withheld:
            raise JourneyError(f"window {window} is withheld, {withheld}: nothing to compare")
        return await self.fetch(listed[0])

    async def fetch(self, info: ReleaseInfo) -> Release:
        """A published release, checked against its sum.

        Raises:
            ServiceError: It cannot be had, or its window is withheld.
            ReleaseError: Its bytes are not what they should be.
        """
        if info.withheld:
            raise ServiceError(
                f"window {info.window} is withheld: too few clients, by the plan's test; there is nothing to fetch"
            )
        data = bytearray()
        with self._asking():
            request = pb.GetReleaseRequest(plan_id=info.plan_id, kind=info.kind, window=info.window)
            stub = stubs.CatalogueStub(self._open)
            async for chunk in stub.GetRelease(request, metadata=self._metadata, timeout=_LONG_S):
                if chunk.offset != len(data) or len(data) + len(chunk.data) > info.size_bytes:
                    raise ServiceError(f"release of window {info.window}: a chunk that does not follow")
                data += chunk.data
        if hashlib.sha256(data).digest() != info.sha256:
            raise ServiceError(f"release of window {info.window}: its bytes are not those that were listed; ask again")
        return Release.from_bytes(bytes(data))

    async def _ledger(self, skip: int, limit: int) -> LedgerPage:
        with self._asking():
            stub = stubs.AdministrationStub(self._open)
            request = pb.GetLedgerRequest(skip=skip, limit=min(limit, PAGE_MAX))
            reply = await stub.GetLedger(request, metadata=self._metadata, timeout=_QUICK_S)
            return convert_admin.ledger_from_wire(reply)

    @property
    def _open(self) -> grpc.aio.Channel:
        assert self._channel is not None, "entered first"
        return self._channel

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns what gRPC raises into one line in the service's own words."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or "no reason given"
            if (explained := self._credentials.explained(self._target, details)) != details:
                raise ServiceError(explained) from error
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ServiceError(f"{self._target}: no service answers here ({details.splitlines()[0]})") from error
            raise ServiceError(f"{self._target}: {details}") from error
        except (WireError, PlanError) as error:
            raise ServiceError(f"{self._target}: an answer that this version cannot read: {error}") from error


async def close_window(window: int, address: str, progress: Progress, *, withheld: str) -> tuple[Released, Release]:
    """Seals and releases a window, and fetches its release as an analyst does.

    Raises:
        JourneyError: As :meth:`Console.fetch_window`.
    """
    async with Console(address) as operator:
        await operator.seal_through(window)
        released = await operator.release_through(window)
        progress.step(f"sealed and released window {window}: ε = {released.epsilon_spent} is spent")
    async with Console(address) as analyst:
        return released, await analyst.fetch_window(window, withheld=withheld)
