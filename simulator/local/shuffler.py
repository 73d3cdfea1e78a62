"""A shuffler as a process of its own, between the fleet and the server, with a key that is made for the run."""

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.shuffler.reports_file import KIND
from aggregator.shuffler.windows import cut_ms
from hushsum.directory import DirectoryKey, Role, toml_of
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.signatures import SigningKey
from simulator.errors import JourneyError, SettingsConflictError
from simulator.server import Service

_ID: Final = "shuffler-1"
_SPARE_MS: Final = 15_000  # of a fleet that is killed half way
_WAIT_MAX_MS: Final = 120_000
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 60.0


def made_key(folder: Path) -> Path:
    """Makes its key; returns the directory file that says whose it is."""
    key = SigningKey.generate(OsEntropy())
    key.save(folder / "shuffler.pem")
    directory = folder / "shufflers.toml"
    directory.write_text(toml_of(DirectoryKey(_ID, Role.SHUFFLER, key.verify_key)), encoding="utf-8")
    return directory


class Shuffler(Service):
    """A running shuffler.

    Args:
        folder: With its key.
        directory: See :func:`made_key`.
        upstream: Where its batches go, ``host:port``.
    """

    def __init__(self, folder: Path, directory: Path, upstream: str) -> None:
        key = str(folder / "shuffler.pem")
        settings = {"role": "shuffler", "upstream": upstream, "shufflers": str(directory), "shuffler_key": key}
        super().__init__(folder, "shuffler", settings)

    def taken(self) -> int:
        """Batches of devices that are durable here."""
        return self._count("ids")

    def waiting(self) -> int:
        """Batches that leave, and have no answer yet."""
        return self._count("outgoing")

    def pooled(self) -> int:
        """Windows that are not cut yet."""
        return self._count("pools")

    async def forwarded(self) -> None:
        """Returns once all that it took is with the aggregator.

        Raises:
            JourneyError: It does not get there.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while self.pooled() or self.waiting():
            self.check_running()
            if time.monotonic() > deadline:
                raise JourneyError(f"the shuffler still has {self.waiting()} batches after {_PATIENCE_S:.0f} s")
            await asyncio.sleep(_LOOK_S)

    def _count(self, table: str) -> int:
        try:
            connection = KIND.open_reading(self.data / "shuffler.db")
        except AggregatorError:
            return 0  # it is just made
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  the name of a table of ours
        except sqlite3.Error as error:
            raise JourneyError(f"the shuffler's file cannot be read: {error}") from error
        finally:
            connection.close()


def window_to_shuffle(plan: Plan, now_ms: int) -> int:
    """The first window whose cut leaves the fleet enough time.

    Raises:
        SettingsConflictError: Nobody would wait for it.
    """
    schedule, window = plan.window, plan.window.index_at(now_ms)
    while cut_ms(schedule, window) < now_ms + _SPARE_MS:
        window += 1
    wait_ms = cut_ms(schedule, window) - now_ms
    if wait_ms > _WAIT_MAX_MS:
        raise SettingsConflictError(
            f"a shuffler forwards when a window is over, and the plan's next one is so in {wait_ms / 60_000:.0f} "
            'minutes: take windows of seconds for a run, such as window.length = "10s" and window.lateness = "8s"'
        )
    return window
