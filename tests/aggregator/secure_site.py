"""A service with secure sums for tests: a small plan, and a log that fails, holds or loses sums as the test says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aggregator.app import Service
from aggregator.config import Config
from aggregator.errors import LogUnavailableError
from aggregator.interfaces import Log
from aggregator.model import EntryBatch, NewEntry
from hushsum import Plan
from hushsum_proto import convert
from hushsum_proto.entries import CohortSumEntry
from hushsum_proto.rounds import Enter, RoundOutcome, RoundResult
from tests.aggregator.secure_clients import Line, SecureClient, Stub, VanishedError
from tests.plans import small_plan
from tests.services import WINDOW, RawClient, config_of

SIZE, LEAST = 8, 6  # of a cohort


@cache
def plan_of(
    *, directory: str = "", total_epsilon: str = "100", cohort_wait: str = "5m", pool: int | None = None
) -> Plan:
    """A plan of cohorts of 6 to 8, of whom 1 may be corrupt; with a pool, 1 of all clients.

    Fewer than 8 begin a round only where ``cohort_wait`` is short: else a slow machine would split 8 that come at once.
    """
    secure: dict[str, object] = {
        "cohort": SIZE,
        **({"corrupt": "0.1"} if pool is None else {"pool": pool, "corrupt_clients": 1}),
        "dropout": "0.25",
        "directory": directory,
        "cohort_wait": cohort_wait,
    }
    privacy = {
        "mode": "secure",
        "unit": "client",
        "records_per_client": 3,
        "total_epsilon": total_epsilon,
        "total_delta": "0.001",
        "secure": secure,
    }
    return small_plan(sketch={"rows": 10}, privacy=privacy)


def site_config(folder: Path, plan: Plan, **settings: object) -> Config:
    """Settings of a service whose rounds wait for everybody, however busy the machine is."""
    return config_of(folder, plan, **{"secure_step_s": 120.0, "secure_upload_s": 120.0, **settings})


class SumLog:
    """A log whose cohort sums meet with what the test says; everything else passes.

    Attributes:
        before: So many appends fail before anything is written.
        after: So many of those that follow are written, and fail all the same.
        sums: Every sum that was appended, in order, whether its append said so or not.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._free = asyncio.Event()
        self._free.set()
        self.arrived = asyncio.Event()
        self.before = self.after = 0
        self.sums: list[CohortSumEntry] = []

    @property
    def partitions(self) -> int:
        return self._log.partitions

    def hold(self) -> None:
        """Sums wait before they are written."""
        self._free.clear()

    def free(self) -> None:
        """No longer."""
        self._free.set()

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        sums = self.sums_in(entries)
        if not sums:
            return await self._log.append(entries)
        self.arrived.set()
        await self._free.wait()
        if self.before:
            self.before -= 1
            raise LogUnavailableError("not written")
        positions = await self._log.append(entries)
        self.sums += sums
        if self.after:
            self.after -= 1
            raise LogUnavailableError("written, and it was not heard of")
        return positions

    @staticmethod
    def sums_in(entries: Sequence[NewEntry]) -> list[CohortSumEntry]:
        """The sums among these entries."""
        decoded = [convert.entry_from_bytes(entry.data) for entry in entries]
        return [entry for entry in decoded if isinstance(entry, CohortSumEntry)]

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        return await self._log.read(partition, position, limit, wait_s)

    async def end(self, partition: int) -> int:
        return await self._log.end(partition)

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        await self._log.forget(window, below)

    async def close(self) -> None:
        await self._log.close()


def watched(logs: list[SumLog]) -> Callable[[Log], Log]:
    """Puts such a log in place of the service's, and into the list."""

    def wrap(log: Log) -> Log:
        logs.append(SumLog(log))
        return logs[-1]

    return wrap


async def all_parts(fleet: list[SecureClient], stub: Stub, window: int = WINDOW) -> list[RoundOutcome | BaseException]:
    """What all that take part at once are told; an exception where a call or a client ended with one."""
    return await asyncio.gather(*(client.take_part(stub, window) for client in fleet), return_exceptions=True)


def results(outcomes: list[RoundOutcome | BaseException]) -> list[RoundResult | None]:
    """None: it went away, as the test wanted; anything else that was raised is shown by the assertion that fails."""
    assert not [each for each in outcomes if not isinstance(each, RoundOutcome | VanishedError)], outcomes
    return [each.result if isinstance(each, RoundOutcome) else None for each in outcomes]


async def sealed(service: Service) -> tuple[int, int, npt.NDArray[np.int64]]:
    """(cohorts, submissions, counters and counts in one vector) of the window, once it is sealed."""
    async with RawClient(service.grpc) as operator:
        assert await operator.seal() == WINDOW
    window = await service.store.sealed_window(service.plan, WINDOW)
    assert window is not None
    vector = np.concatenate((window.sketch.counters.reshape(-1), window.sketch.counts.reshape(-1)))
    return window.cohorts, window.clients, vector


def total(clients: Sequence[SecureClient]) -> npt.NDArray[np.int64]:
    """What these clients' vectors add up to."""
    sums: npt.NDArray[np.int64] = np.sum([client.counters for client in clients], axis=0, dtype=np.int64)
    return sums


async def entered(line: Line, plan: Plan) -> object:
    """What a call is told first."""
    await line.say(Enter(plan.id, WINDOW))
    return await line.hear()
