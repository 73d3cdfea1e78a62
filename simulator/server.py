"""The service as processes of their own, on loopback, that are killed and started again."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from simulator.errors import ServerError

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
