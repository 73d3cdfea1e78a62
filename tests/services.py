"""A real service for tests: real SQLite files, a real gRPC port, a clock that stands where the test puts it."""

import asyncio
import itertools
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, cast

import grpc.aio
import numpy as np
import numpy.typing as npt

from aggregator.app import Service, running
from aggregator.config import Config
from aggregator.interfaces import Log
from aggregator.model import EntryBatch, NewEntry
from aggregator.runtime import SystemRuntime
from hushsum.delta import DeltaId, encode
from hushsum.plan import Plan
from hushsum_proto import convert, metadata
from hushsum_proto.answers import Answer
from hushsum_proto.entries import DeltaEntry, ReportsEntry
from hushsum_proto.messages import Hello, Welcome
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc

HOUR_MS = 3_600_000
WINDOW = 472_222  # the window of an hour that the tests' clock stands in
NOW_MS = WINDOW * HOUR_MS + HOUR_MS // 2  # half past


class SetRuntime(SystemRuntime):
    """Real tasks and threads, and a wall clock that only the test moves."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        super().__init__()
        self.set_ms = now_ms

    def now_ms(self) -> int:
        return self.set_ms


def config_of(folder: Path, plan: Plan, **settings: object) -> Config:
    """Settings of a service by hand, on a free port, with its data and its plan in ``folder``."""
    path = folder / "plan.json"
    path.write_bytes(plan.bundle)
    return Config.of(
        **{
            "plan": str(path),
            "data": str(folder / "data"),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "manual": True,
            "stop_s": 5.0,
            **settings,
        }
    )


def same(log: Log) -> Log:
    """The service's own log, as it is."""
    return log


@asynccontextmanager
async def service_of(
    config: Config, runtime: SetRuntime | None = None, wrap_log: Callable[[Log], Log] = same
) -> AsyncIterator[Service]:
    """Runs a service as long as the block does."""
    own = SetRuntime() if runtime is None else runtime
    async with running(config, own, wrap_log) as service:
        yield service


class HeldLog:
    """A log whose deltas wait on their way to the disk as long as the test says; seals pass.

    Attributes:
        groups: The number of deltas in each append, in order, as they reach the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._free = asyncio.Event()
        self._free.set()
        self._arrived = asyncio.Event()
        self.groups: list[int] = []
        self.failures: list[Exception] = []

    @property
    def partitions(self) -> int:
        return self._log.partitions

    def hold(self) -> None:
        self._free.clear()
        self._arrived.clear()

    def free(self) -> None:
        self._free.set()

    async def arrived(self) -> None:
        """Returns once an append waits here."""
        await self._arrived.wait()

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        if any(isinstance(convert.entry_from_bytes(entry.data), DeltaEntry | ReportsEntry) for entry in entries):
            self.groups.append(len(entries))
            self._arrived.set()
            await self._free.wait()
            if self.failures:
                raise self.failures.pop()
        return await self._log.append(entries)

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        return await self._log.read(partition, position, limit, wait_s)

    async def end(self, partition: int) -> int:
        return await self._log.end(partition)

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        await self._log.forget(window, below)

    async def close(self) -> None:
        await self._log.close()


class RawClient:
    """The bare wire: one channel, one declared name, and no care taken of anything."""

    def __init__(self, address: str, client_id: str | None = "alice") -> None:
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self.collection = wire_pb2_grpc.CollectionStub(self.channel)
        self.catalog = wire_pb2_grpc.CatalogueStub(self.channel)
        self.administration = wire_pb2_grpc.AdministrationStub(self.channel)
        self.metadata = () if client_id is None else ((metadata.CLIENT_ID, client_id),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def hello(self, plan_id: bytes = b"", versions: tuple[int, ...] = (1,), *, wait: bool = False) -> Welcome:
        """Opens a session; with ``wait`` tries to connect until that works."""
        request = convert.hello_to_wire(Hello(versions, plan_id, "test"))
        call = self.collection.Hello(request, metadata=self.metadata, wait_for_ready=wait)
        return convert.welcome_from_wire(await call)

    async def submit_one(self, plan_id: bytes, delta: bytes) -> Answer:
        request = convert.submission_to_wire(plan_id, delta)
        return convert.answer_from_wire(await self.collection.SubmitOne(request, metadata=self.metadata))

    async def submit(self, plan_id: bytes, deltas: Sequence[bytes]) -> list[Answer]:
        """The answers to deltas on one stream, in the order in which they came."""

        async def requests() -> AsyncIterator[pb.SubmitRequest]:
            for delta in deltas:
                yield convert.submission_to_wire(plan_id, delta)

        call = self.collection.Submit(requests(), metadata=self.metadata)
        return [answer async for reply in call for answer in convert.answers_from_wire(reply)]

    async def seal(self) -> int:
        return (await self.administration.SealWindow(pb.SealWindowRequest(oldest=True, early=True))).window

    async def release(self) -> pb.ReleaseWindowReply:
        return await self.administration.ReleaseWindow(pb.ReleaseWindowRequest(oldest=True))


class Contributor:
    """Makes deltas of its own stream, with the records that they hold."""

    def __init__(self, plan: Plan, stream: int, window: int = WINDOW) -> None:
        self.plan, self.stream, self.window = plan, stream, window
        self._sequence = itertools.count()
        self._rng = np.random.default_rng(stream)
        self.records: list[npt.NDArray[np.float64]] = []

    def delta(
        self, records: int = 1, *, window: int | None = None, sequence: int | None = None
    ) -> tuple[DeltaId, bytes]:
        """The next delta, of random records."""
        values = self._rng.uniform(0, 10, (records, self.plan.vectors.dim))
        self.records.append(values)
        id = DeltaId(self.stream, next(self._sequence) if sequence is None else sequence)
        delta, _ = encode(self.plan, values, window=self.window if window is None else window, id=id)
        assert delta is not None
        return id, delta.pack(self.plan)


async def ends_of(service: Service) -> list[int]:
    """The log's end in each partition: whatever is appended moves one of them."""
    return [await service.log.end(partition) for partition in range(service.log.partitions)]


async def folded_all(service: Service) -> None:
    """Returns once every fold has passed what is in the log."""
    for partition, end in enumerate(await ends_of(service)):
        await service.workers.passed(partition, end - 1)


def counted(service: Service, name: str, **labels: str) -> float:
    """A counter of the service's metrics."""
    return service.metrics.registry.get_sample_value(name, labels) or 0.0


def page_of(address: str) -> str:
    """The text of a service's metrics page, without the labels that every sample has."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
        return without_process_labels(reply.read().decode())


def without_process_labels(page: str) -> str:
    """A page of metrics without the labels of the process."""
    return re.sub(r'\b(?:plan|role)="[^"]*",?', "", page).replace(",}", "}").replace("{}", "")


def trailing(error: grpc.aio.AioRpcError) -> Mapping[str, str | bytes]:
    """The metadata that ended a call."""
    return dict(cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()))
