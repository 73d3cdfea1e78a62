"""Processes that can be killed or paused: gateways, workers, releasers, a broker and a database.

And the operator, who seals and releases while everything breaks: it asks one process after the other until it is
done.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.credentials import Credentials
from hushsum_proto.messages import ReleaseInfo, ServiceStatus
from hushsum_simulator.demo.services import Console
from hushsum_simulator.errors import JourneyError, ServiceError
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import PostgresServer
from hushsum_simulator.testbed.process import ServerProcess, free_port, is_listening

ROLES: Final = ("gateway", "worker", "releaser")
EACH: Final = 2  # processes of a role
_TRACE: Final = "Traceback (most recent call last)"


class ClusterProcess(ServerProcess):
    """One process of the service.

    Args:
        role: What it does.
        folder: An existing one, for its settings and what it writes.
        settings: Those that all processes share.
    """

    def __init__(self, role: str, folder: Path, settings: Mapping[str, object]) -> None:
        port, metrics = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.metrics = f"127.0.0.1:{metrics}"
        own = {"role": role, "listen": self.address, "metrics_listen": self.metrics}
        file = folder / "aggregator.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**settings, **own}.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "aggregator", "--config", str(file)]
        # Its working directory is another folder, from where it finds what this process finds.
        path = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
        super().__init__(f"the {role}", command, folder / "output.log", lambda: is_listening(port), environment=path)

    def traces(self) -> int:
        """Stack traces in what it wrote."""
        return self.output.read_text(encoding="utf-8", errors="replace").count(_TRACE) if self.output.exists() else 0


class Cluster:
    """All of it, on loopback.

    Args:
        plan: What is collected.
        jars: The broker's files.
        folder: An empty one.
        settings: Of the service, beside ours or instead of them.
    """

    def __init__(self, plan: Plan, jars: Path, folder: Path, settings: Mapping[str, object]) -> None:
        self._plan, self._jars, self._folder, self._settings = plan, jars, folder, dict(settings)
        self._closing = ExitStack()
        self.victims: dict[str, ServerProcess] = {}
        self.members: dict[str, ClusterProcess] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def of_role(self, role: str) -> list[ClusterProcess]:
        """The processes of one role."""
        return [member for name, member in self.members.items() if name.startswith(role)]

    def ended(self) -> list[str]:
        """Processes that are not there, with the last line that each wrote."""
        return [f"{name}: {member.last_line()}" for name, member in self.members.items() if not member.is_running]

    def traces(self) -> list[str]:
        """The names of processes that wrote a stack trace."""
        return [name for name, member in self.members.items() if member.traces()]

    def _start(self) -> None:
        broker = self._closing.enter_context(KafkaBroker(self._jars))
        database = self._closing.enter_context(PostgresServer())
        plan_file = self._folder / "plan.json"
        plan_file.write_bytes(self._plan.bundle)
        settings = {
            "plan": str(plan_file),
            "log": "kafka",
            "store": "postgresql",
            "kafka_bootstrap": broker.bootstrap,
            "postgres_dsn": database.fresh_database(),
            "manual": True,
            "log_format": "json",
            **self._settings,
        }
        for role in ROLES:
            for number in range(1, EACH + 1):
                name = f"{role} {number}"
                folder = self._folder / name.replace(" ", "-")
                folder.mkdir()
                member = ClusterProcess(role, folder, settings)
                self._closing.callback(member.kill)
                self.members[name] = member
                member.start()
        self.victims = {**self.members, "Kafka": broker, "PostgreSQL": database}


T = TypeVar("T")

_PATIENCE_S: Final = 120.0
_CALL_S: Final = 15.0  # a process may be paused; the others are not
_PAUSE_S: Final = 0.2


class Operator:
    """Asks processes of the service for what any of them can do, or one of them at a time.

    Args:
        gateways: ``host:port`` of those that take deltas.
        releasers: Of those of which one releases.
        credentials: What is shown to them, and who is believed.
        patience_s: How long each thing is tried.
    """

    def __init__(
        self,
        gateways: Sequence[str],
        releasers: Sequence[str] = (),
        *,
        credentials: Credentials | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._gateways, self._releasers = list(gateways), list(releasers)
        self._credentials, self._patience_s = credentials, patience_s
        self._refused: dict[str, str] = {}

    async def first_window(self) -> int:
        """The oldest window that takes deltas."""

        async def ask(console: Console) -> int:
            return (await console.welcome()).oldest_window

        return await self._until_it_works("welcome", self._gateways, ask)

    async def plan(self) -> Plan:
        """The plan that is collected here."""
        return await self._until_it_works("fetch the plan", self._gateways, Console.plan)

    async def status(self) -> ServiceStatus:
        """What a service shows its operator."""
        return await self._until_it_works("ask for the status", self._gateways, Console.status)

    async def seal(self, window: int) -> None:
        """Closes a window, and returns once all of it is folded."""

        async def ask(console: Console) -> int:
            return await console.seal(window)

        await self._until_it_works(f"seal window {window}", self._releasers, ask)

    async def release(self, window: int) -> tuple[ReleaseInfo, Release]:
        """Draws a sealed window's outcome, or finds that it is drawn; as an analyst loads it."""

        async def ask(console: Console) -> None:
            if window not in {info.window for info in await console.releases()}:
                await console.release(window)

        await self._until_it_works(f"release window {window}", self._releasers, ask)
        return await self.fetch(window)

    async def fetch(self, window: int) -> tuple[ReleaseInfo, Release]:
        """A published release."""

        async def ask(console: Console) -> tuple[ReleaseInfo, Release]:
            listed = await _listed(console, window)
            return listed, await console.fetch(listed)

        return await self._until_it_works(f"fetch window {window}", self._gateways, ask)

    async def outcome(self, window: int) -> Release | None:
        """What a window came to, once it has: a published release, or None, where it is withheld."""

        async def ask(console: Console) -> Release | None:
            listed = await _listed(console, window)
            return None if listed.withheld else await console.fetch(listed)

        return await self._until_it_works(f"fetch the outcome of window {window}", self._gateways, ask)

    async def outcomes(self) -> int:
        """How many outcomes are published."""

        async def ask(console: Console) -> int:
            return len(await console.releases())

        return await self._until_it_works("list the outcomes", self._gateways, ask)

    async def _until_it_works(self, what: str, addresses: Sequence[str], ask: Callable[[Console], Awaitable[T]]) -> T:
        deadline, turn = time.monotonic() + self._patience_s, 0
        while True:
            address, turn = addresses[turn % len(addresses)], turn + 1
            try:
                async with Console(address, self._credentials) as console:
                    return await asyncio.wait_for(ask(console), _CALL_S)
            except (HushsumError, TimeoutError) as error:
                self._refused[address] = str(error) or f"no answer in {_CALL_S:.0f} s"
                if time.monotonic() > deadline:
                    said = "; ".join(f"{address}: {text}" for address, text in sorted(self._refused.items()))
                    raise JourneyError(f"{what}: not done in {self._patience_s:.0f} s ({said})") from error
            await asyncio.sleep(_PAUSE_S)


async def _listed(console: Console, window: int) -> ReleaseInfo:
    """The one outcome of a window."""
    listed = [info for info in await console.releases() if info.window == window]
    if len(listed) != 1:
        raise ServiceError(f"window {window} has {len(listed)} outcomes in the list")
    return listed[0]
