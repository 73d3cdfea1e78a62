"""Two gateways, two workers, two releasers, a broker and a database: each a process that can be killed or paused."""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from hushsum.plan import Plan
from simulator.backends.kafka import KafkaBroker
from simulator.backends.postgres import PostgresServer
from simulator.backends.process import ServerHandle, ServerProcess, free_port, is_listening

ROLES: Final = ("gateway", "worker", "releaser")
EACH: Final = 2  # processes of a role
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_TRACE: Final = "Traceback (most recent call last)"


class Victim(Protocol):
    """What can be struck."""

    @property
    def is_running(self) -> bool:
        """Whether it is there, paused or not."""

    def start(self) -> None:
        """Returns once it takes requests."""

    def kill(self) -> None:
        """SIGKILL."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""


class Member(ServerHandle):
    """One process of the service.

    Args:
        role: What it does.
        folder: An existing one, for its settings and what it writes.
        settings: Those that all processes share.
    """

    def __init__(self, role: str, folder: Path, settings: Mapping[str, object]) -> None:
        self._port, metrics = free_port(), free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.metrics = f"127.0.0.1:{metrics}"
        own = {"role": role, "listen": self.address, "metrics_listen": self.metrics}
        file = folder / "aggregator.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**settings, **own}.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.output = folder / "output.log"
        command = [sys.executable, "-m", "aggregator", "--config", str(file)]
        # Its working directory is another folder, from where it finds what this process finds.
        path = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
        super().__init__(ServerProcess(f"the {role}", command, self.output, environment=path))

    def start(self) -> None:
        """Starts it, and returns once it listens.

        Raises:
            ServerError: It does not, in a minute.
        """
        self._process.start()
        self._process.wait_until(lambda: is_listening(self._port), _START_S)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that does not end it in time."""
        self._process.stop(_STOP_S)

    def last_line(self) -> str:
        """The last line that it wrote."""
        return self._process.last_line()

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
        self.victims: dict[str, Victim] = {}
        self.members: dict[str, Member] = {}

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

    def of_role(self, role: str) -> list[Member]:
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
                member = Member(role, folder, settings)
                self._closing.callback(member.kill)
                self.members[name] = member
                member.start()
        self.victims = {**self.members, "Kafka": broker, "PostgreSQL": database}
