"""Aggregators as processes of their own, each with its role, around one broker and one database."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START_S = 180.0
STOP_S = 120.0


class Aggregator:
    """``python -m aggregator``, with a folder of its own that says where it listens.

    Args:
        folder: Where its files are.
        name: Of them.
        settings: Beside its folder and its addresses.
        dsn: Of its database.
        open_files: Its hard and soft limit of open files; None: as this process's.
        options: Of its interpreter.

    Attributes:
        name: Of its folder and its files.
        output: What it wrote.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Mapping[str, object],
        dsn: str = "",
        *,
        open_files: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        limited = () if open_files is None else ("sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh")
        self._command = (*limited, sys.executable, *options, "-m", "aggregator", "--config")
        self.output = folder / f"{name}.log"
        self._data = folder / name
        self._file = folder / f"{name}.toml"
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
            "HUSHSUM_POSTGRES_DSN": dsn,
        }
        own = {"data": str(self._data), "listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", **settings}
        self._file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items()))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                str(self._file),
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    async def listening(self) -> dict[str, object]:
        """What it says of itself, once it is ready."""
        assert self._process is not None, "started first"
        async with asyncio.timeout(START_S):
            while True:
                if self._process.returncode is not None:
                    pytest.fail(f"{self.name} ended with {self._process.returncode}: {self.output.read_text()}")
                try:
                    said: dict[str, object] = json.loads((self._data / "listening.json").read_text())
                except (FileNotFoundError, json.JSONDecodeError):
                    said = {}
                if said.get("pid") == self._process.pid:
                    return said
                await asyncio.sleep(0.05)

    async def said(self, text: str) -> None:
        """Returns once it has written this."""
        async with asyncio.timeout(START_S):
            while True:
                if text in self.output.read_text():
                    return
                await asyncio.sleep(0.05)

    async def address(self) -> str:
        return str((await self.listening())["grpc"])

    async def ended(self) -> int:
        """The status that it exits with, by itself."""
        assert self._process is not None, "started first"
        return await asyncio.wait_for(self._process.wait(), STOP_S)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """The status that it exits with."""
        assert self._process is not None, "started first"
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await self.ended()


@asynccontextmanager
async def processes(
    folder: Path, roles: Mapping[str, str], settings: Mapping[str, object], dsn: str
) -> AsyncIterator[dict[str, Aggregator]]:
    """Starts one process for each name with its role, all at the same time; kills what is left at the end."""
    made = {name: Aggregator(folder, name, {**settings, "role": role}, dsn) for name, role in roles.items()}
    try:
        await asyncio.gather(*(each.start() for each in made.values()))
        await asyncio.gather(*(each.listening() for each in made.values()))
        yield made
    finally:
        await asyncio.gather(*(each.stop(signal.SIGKILL) for each in made.values()), return_exceptions=True)
