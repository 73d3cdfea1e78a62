"""What a client is given arrives exactly once, or the caller hears why not; offline, over crashes, by the hundred."""

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from google.protobuf.message import Message
from scipy.sparse import csr_array
from typing_extensions import override

from edge_client import (
    ClientStateError,
    ClippedRecordsWarning,
    ClockWarning,
    Config,
    DroppedRecordsWarning,
    EdgeClient,
    EventTimeError,
    FlushTimeoutError,
    NotCountedError,
    NotCountedWarning,
    PlanChangedError,
    Policy,
    PolicyError,
    SessionRefusedError,
    SpoolError,
    SpoolInUseError,
    SystemRuntime,
    UnreachableError,
)
from edge_client.participation.mode import CentralMode, Mode
from edge_client.session.session import Stage
from edge_client.spool.changes import Add, StoredDelta
from edge_client.transport.grpc import pushed_back
from hushsum import Plan, Sketch
from hushsum.delta import DeltaId
from hushsum.errors import ContributionError, PlanError, Reason, RecordError
from hushsum.parameters import digest
from hushsum.usable_records import RecordProblems
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.metadata import REASON, RETRY_AFTER_MS
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from tests.edge_client.clocks import until
from tests.edge_client.model_service import Fold, ModelService
from tests.plans import classed_plan, client_plan, small_plan, tables

QUICK = Config(backoff_first_s=0.01, backoff_longest_s=0.05, first_contact_s=120.0, call_timeout_s=120.0)
AT_ONCE = Config(backoff_first_s=0.01, backoff_longest_s=0.05, first_contact_s=120.0, close_flush_s=0.0)
TIME = 1_750_000_000_000


class FixedClock(SystemRuntime):
    """A device whose clock stands still; counts what it sleeps."""

    def __init__(self, now_ms: int = TIME) -> None:
        super().__init__(2)
        self.at_ms = now_ms
        self.sleeps = 0

    @override
    def now_ms(self) -> int:
        return self.at_ms

    @override
    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


class SleptClock(FixedClock):
    """A device on which nothing takes time but sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s = 0.0

    @override
    def monotonic(self) -> float:
        return self.slept_s

    @override
    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self.slept_s += seconds


@pytest.fixture
async def runtime(service: ModelService) -> AsyncIterator[FixedClock]:
    clock = FixedClock()
    service.clock_ms = clock.now_ms
    yield clock
    clock.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def client_of(service: ModelService, path: Path, runtime: FixedClock, config: Config = QUICK) -> EdgeClient:
    return EdgeClient(service.target, spool=path, config=config, runtime=runtime)


def values(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return rng.uniform(0, 10, (count, 2))


def sketch_of(*records: object) -> Sketch:
    sketch = Sketch(small_plan())
    for part in records:
        sketch.add(np.atleast_2d(np.asarray(part)))
    return sketch


def holds(fold: Fold, *records: object) -> bool:
    """Whether the service has counted exactly these records, each once."""
    return np.array_equal(fold.sketch.counters, sketch_of(*records).counters)


class UnreadableService(ModelService):
    """Its first three replies to Hello, or to a delta that is sent alone, are no messages, or too large."""

    def __init__(self, plan: Plan, method: str, change: Callable[[bytes], bytes]) -> None:
        super().__init__(plan)
        self.unreadable, self._method, self._change = 3, method, change

    @override
    def offer(self, server: grpc.aio.Server) -> None:
        stubs.add_CatalogueServicer_to_server(self, server)
        calls: dict[str, tuple[Any, Any]] = {
            "Hello": (self.Hello, pb.HelloRequest),
            "SubmitOne": (self.SubmitOne, pb.SubmitRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                called, request.FromString, self._written if name == self._method else _bytes_of
            )
            for name, (called, request) in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hushsum.v1.Collection", handlers),))

    def _written(self, reply: Message) -> bytes:
        self.unreadable -= 1
        return self._change(_bytes_of(reply)) if self.unreadable >= 0 else _bytes_of(reply)


def _bytes_of(reply: Message) -> bytes:
    return reply.SerializeToString()


def _no_message(_: bytes) -> bytes:
    return b"\xff"


def _too_large(reply: bytes) -> bytes:
    """With an unknown field of 1 MiB."""
    return reply + b"\xc2\x3e\x80\x80\x40" + bytes(2**20)


@pytest.mark.parametrize("change", [_no_message, _too_large])
@pytest.mark.parametrize("method", ["Hello", "SubmitOne"])
async def test_a_reply_that_is_no_message_or_too_large_is_a_lost_connection(
    path: Path, method: str, change: Callable[[bytes], bytes]
) -> None:
    service = UnreadableService(small_plan(), method, change)
    await service.start()
    runtime = FixedClock()
    service.clock_ms = runtime.now_ms
    async with client_of(service, path, runtime, replace(QUICK, unary=True)) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
        assert holds(service.fold, [1.0, 2.0])
    assert service.unreadable < 0
    runtime.close()
    await service.stop()


async def test_records_arrive_once_however_they_are_given(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batch, one, listed = values(rng, 50), values(rng, 1)[0], values(rng, 3)
    async with client_of(service, path, runtime) as client:
        await client.add(batch)
        await client.add(one)
        await client.add(listed.tolist())
        await client.add(np.empty((0, 2)))
        await client.flush()
        assert client.status().queued == 0
    assert holds(service.fold, batch, one, listed)
    tallies = client.status()
    assert {id.stream for id in service.fold.received} == {client.stream}
    assert (tallies.records, tallies.deltas, tallies.deltas_sent, tallies.acknowledged) == (54, 3, 3, 3)
    assert tallies.deltas_resent == 0
    assert tallies.bytes_sent == sum(map(len, service.fold.bytes_of.values()))


async def test_a_batch_beyond_the_plans_limit_becomes_several_deltas(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batch = values(rng, 2 * service.plan.delta_records_max + 1)
    async with client_of(service, path, runtime) as client:
        await client.add(batch)
        await client.flush()
    assert client.status().deltas == 3
    assert holds(service.fold, batch)


async def test_all_answers_of_one_message_are_taken(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    service.together = 3
    async with client_of(service, path, runtime) as client:
        await client.add(values(rng, 2 * service.plan.delta_records_max + 1))
        await client.flush()
        assert client.status().queued == 0
    assert client.status().acknowledged == 3


async def test_a_caller_may_use_its_array_again_before_add_returns(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batch = values(rng, 100)
    buffer = batch.copy()
    async with client_of(service, path, runtime) as client:
        adding = asyncio.ensure_future(client.add(buffer))
        await asyncio.wait([adding], timeout=0)
        buffer[:] = 0
        await adding
        await client.flush()
    assert holds(service.fold, batch)


async def test_labels_go_with_their_records_over_several_deltas_and_may_be_used_again_at_once(
    path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    service = ModelService(classed_plan())
    service.clock_ms = runtime.now_ms
    await service.start()
    batch = values(rng, 2 * service.plan.delta_records_max + 1)
    labels = np.array(["a", "b", "c", "nobody"])[rng.integers(0, 4, len(batch))]
    labels[-1] = "a"
    expected = Sketch(service.plan)
    unknown = int((labels == "nobody").sum())
    with pytest.warns(DroppedRecordsWarning):
        expected.add(batch, labels=labels.copy())
    async with client_of(service, path, runtime) as client:
        adding = asyncio.ensure_future(client.add(batch, labels=labels))
        await asyncio.wait([adding], timeout=0)
        labels[:] = "c"
        with pytest.warns(DroppedRecordsWarning, match=f"{unknown} of .* records were left out"):
            await adding
        for wrong in (None, ["a"], labels[1:], 7, [7.5] * len(batch), {"a"}):
            with pytest.raises(RecordError, match="labels: "):
                await client.add(batch, labels=wrong)
        await client.flush()
    assert np.array_equal(service.fold.sketch.counters, expected.counters)
    assert np.array_equal(service.fold.sketch.counts, expected.counts)
    assert (client.status().deltas, client.status().records_dropped) == (2, unknown)
    await service.stop()


async def test_a_record_with_nan_or_infinity_is_left_out_alone_with_a_warning(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batch = values(rng, 10)
    batch[3, 1], batch[7, 0] = np.nan, np.inf
    async with client_of(service, path, runtime) as client:
        with pytest.warns(DroppedRecordsWarning, match="2 of 10 records were left out: 2 "):
            await client.add(batch)
        with pytest.warns(DroppedRecordsWarning, match="1 of "):
            await client.add([np.nan, 1.0])
        await client.flush()
    assert holds(service.fold, np.delete(batch, [3, 7], axis=0))
    assert (client.status().records, client.status().records_dropped, client.status().deltas) == (8, 3, 1)


async def test_the_window_is_that_of_the_event_time_or_else_of_the_devices_clock(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    hour = 3_600_000
    moment = datetime.fromtimestamp((TIME + 2 * hour) / 1000, UTC)
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await client.add([1.0, 2.0], time=TIME + hour)
        await client.add([[1.0, 2.0], [3.0, 4.0]], time=moment)
        await client.flush()
    now = TIME // hour
    assert service.fold.windows == {now: 1, now + 1: 1, now + 2: 2}


@pytest.mark.parametrize("time", [datetime(2026, 1, 1), 1.5, "now", True, 2**53])  # noqa: DTZ001  naive on purpose
async def test_a_time_that_is_none_is_refused(
    service: ModelService, path: Path, runtime: FixedClock, time: int
) -> None:
    async with client_of(service, path, runtime) as client:
        with pytest.raises(EventTimeError, match="time: got"):
            await client.add([1.0, 2.0], time=time)


async def test_what_cannot_be_used_at_all_is_refused_and_nothing_is_taken(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    async with client_of(service, path, runtime) as client:
        for wrong in (np.zeros(3), np.array([["a", "b"]]), np.zeros((2, 2, 2)), 1.0):
            with pytest.raises(RecordError):
                await client.add(wrong)
        with pytest.raises(RecordError, match="labels: not allowed, because this plan has no classes"):
            await client.add([1.0, 2.0], labels=["a"])
        assert client.status().deltas == 0


async def test_clipped_records_are_counted_and_warned_of(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    async with client_of(service, path, runtime) as client:
        with pytest.warns(ClippedRecordsWarning, match=r"^1 \(50 %\) of 2 records lay outside .*: x1 1 \(50 %\)$"):
            await client.add([[1.0, 2.0], [3.0, 11.0]])
        await client.flush()
    async with client_of(service, path, runtime) as client:
        assert (client.status().records, client.status().records_clipped) == (2, 1)


async def test_tables_are_read_by_the_plans_names(path: Path, runtime: FixedClock, tmp_path: Path) -> None:
    service = ModelService(classed_plan(record={"names": ["x", "y"]}))
    service.clock_ms = runtime.now_ms
    await service.start()
    rows = np.random.default_rng(0).uniform(0, 10, (20, 2))
    labels = np.array(["a", "b", "c"])[np.arange(20) % 3]
    frame = pd.DataFrame({"kind": labels, "y": rows[:, 1], "x": rows[:, 0]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = Sketch(service.plan)
    async with client_of(service, path, runtime) as client:
        for records in (frame, frame.to_dict("records"), tmp_path / "rows.csv", {"x": 1.0, "y": 2.0, "kind": "c"}):
            await client.add(records, labels="kind")
        await client.add({"x": 1.0, "y": 2.0}, labels=["c"])
        for wrong in (frame.rename(columns={"x": "z"}), {"x": 1.0, "z": 2.0, "kind": "a"}):
            with pytest.raises(RecordError, match="x, y"):
                await client.add(wrong, labels="kind")
        with pytest.raises(RecordError, match="none has the key 'c'"):
            await client.add({"x": 1.0, "y": 2.0}, labels="c")
        await client.flush()
    for _ in range(3):
        expected.add(rows, labels=labels)
    expected.add([[1.0, 2.0]] * 2, labels=["c", "c"])
    assert np.array_equal(service.fold.sketch.counters, expected.counters)
    await service.stop()


class Point(NamedTuple):
    y: float
    x: float


async def test_rows_with_names_are_read_by_them_one_or_many(path: Path, runtime: FixedClock, tmp_path: Path) -> None:
    service = ModelService(classed_plan("01", "02", record={"names": ["x", "y"]}))
    service.clock_ms = runtime.now_ms
    await service.start()
    (tmp_path / "rows.csv").write_text("kind,y,x\n01,2,1\n02,2,1\n")
    one, series = Point(2.0, 1.0), pd.Series({"y": 2.0, "x": 1.0})
    async with client_of(service, path, runtime) as client:
        for record in (one, series):
            await client.add(record, labels=["01"])
            await client.add([record, record], labels=["01", "02"])
        await client.add(tmp_path / "rows.csv", labels="kind")  # text, although it looks like numbers
        await client.flush()
    expected = Sketch(service.plan).add([[1.0, 2.0]] * 8, labels=["01"] * 5 + ["02"] * 3)
    assert np.array_equal(service.fold.sketch.counters, expected.counters)
    assert np.array_equal(service.fold.sketch.counts, expected.counts)
    await service.stop()


async def test_a_caller_may_use_its_table_again_before_add_returns(
    path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    service = ModelService(small_plan(record={"names": ["x", "y"]}))
    service.clock_ms = runtime.now_ms
    await service.start()
    rows = values(rng, 50)
    frame = pd.DataFrame(rows.copy(), columns=["x", "y"])
    mapping: dict[str, Any] = {"x": rows[:, 0].copy(), "y": list(rows[:, 1])}
    dicts = frame.to_dict("records")
    async with client_of(service, path, runtime) as client:
        adding = [asyncio.ensure_future(client.add(records)) for records in (frame, mapping, dicts)]
        await asyncio.wait(adding, timeout=0)
        frame[:], mapping["x"][:], mapping["y"][:], dicts[:] = 0.0, 0.0, [0.0] * 50, []
        await asyncio.gather(*adding)
        await client.flush()
    assert np.array_equal(service.fold.sketch.counters, Sketch(service.plan).add(np.tile(rows, (3, 1))).counters)
    await service.stop()


class TracedPath:
    """A path that keeps the threads that look at it, and holds them until it is let go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads: set[threading.Thread] = set()
        self.entered, self.released = threading.Event(), threading.Event()

    def __fspath__(self) -> str:
        self.threads.add(threading.current_thread())
        self.entered.set()
        assert self.released.wait(30)
        return str(self.path)


async def test_files_are_read_off_the_event_loop(path: Path, runtime: FixedClock, tmp_path: Path) -> None:
    service = ModelService(small_plan(record={"names": ["x", "y"]}))
    service.clock_ms = runtime.now_ms
    await service.start()
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    file = TracedPath(tmp_path / "rows.csv")
    file.released.set()
    async with client_of(service, path, runtime) as client:
        await client.add(file)
        await client.flush()
    assert file.threads
    assert threading.current_thread() not in file.threads
    assert np.array_equal(service.fold.sketch.counters, Sketch(service.plan).add([[1.0, 2.0]]).counters)
    await service.stop()


class WideFrame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A frame that is too wide to copy."""

    @override
    def copy(self, *_: Any, **__: Any) -> Any:
        raise MemoryError


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "arrow": lambda x, y: pa.table({"x": pa.array(x), "y": pa.array(y)}),
    "batch": lambda x, y: pa.record_batch({"x": pa.array(x), "y": pa.array(y)}),
    "polars": lambda x, y: pl.DataFrame({"x": pl.Series(x), "y": pl.Series(y)}),
    "pandas": lambda x, y: WideFrame({"x": x, "y": y}, copy=False),
    "mapping": lambda x, y: {"x": x, "y": y},
    "dicts": lambda x, y: [{"x": x[at : at + 1].reshape(()), "y": y[at : at + 1].reshape(())} for at in range(len(x))],
    "lists": lambda x, y: [[x[at : at + 1].reshape(()), y[at : at + 1].reshape(())] for at in range(len(x))],
    "rows": lambda x, y: list(np.array([x, y]).T),
}


@pytest.mark.parametrize("form", FORMS)
async def test_memory_that_is_reused_while_an_add_waits_changes_nothing(
    path: Path, runtime: FixedClock, form: str
) -> None:
    service = ModelService(small_plan(record={"names": ["x", "y"]}))
    service.clock_ms = runtime.now_ms
    await service.start()
    x, y = np.arange(1.0, 5.0), np.arange(2.0, 6.0)
    expected = Sketch(service.plan).add(np.column_stack([x, y])).counters
    records = FORMS[form](x, y)
    async with client_of(service, path, runtime) as client:
        adding = asyncio.ensure_future(client.add(records))
        await asyncio.wait([adding], timeout=0)
        for column in (x, y, *(records if form == "rows" else ())):
            column[:] = 9.0
        await adding
        await client.flush()
    assert np.array_equal(service.fold.sketch.counters, expected)
    await service.stop()


async def test_an_add_that_reads_while_its_client_closes_raises_and_takes_nothing(
    service: ModelService, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    file = TracedPath(tmp_path / "rows.csv")
    async with EdgeClient(service.target, spool=path, config=QUICK) as client:  # with a runtime of its own
        adding = asyncio.ensure_future(client.add(file, by_position=True))
        while not file.entered.is_set():
            await asyncio.wait([adding], timeout=0)
    file.released.set()
    with pytest.raises(ClientStateError):
        await adding
    assert client.status().deltas == 0


async def test_a_runtime_that_is_closed_raises_the_error_of_a_closed_client() -> None:
    runtime = SystemRuntime()
    runtime.close()
    for run in (runtime.computing, runtime.blocking):
        with pytest.raises(ClientStateError, match="closed"):
            await run(print)


@pytest.mark.filterwarnings("ignore::hushsum.DroppedRecordsWarning", "ignore::hushsum.ClippedRecordsWarning")
async def test_the_counts_since_the_start_are_of_no_delta_that_was_in_the_spool(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    async with client_of(service, path, runtime, AT_ONCE) as client:
        await client.add([1.0, 2.0])
        await client.flush()
        await service.stop()
        await client.add([[1.0, 2.0], [np.nan, 2.0], [99.0, 2.0]])
    assert (client.status(since_start=True).deltas, client.status(since_start=True).acknowledged) == (2, 1)
    await service.start()
    async with client_of(service, path, runtime) as client:
        await client.flush()
        assert (client.status(since_start=True).acknowledged, client.status().acknowledged) == (0, 2)
        await client.add([[1.0, 2.0], [3.0, np.nan]])
        await client.add([[99.0, 2.0], [np.inf, 2.0]])
        await client.flush()
    since, whole = client.status(since_start=True), client.status()
    assert (since.records, since.deltas, since.acknowledged, since.deltas_sent) == (2, 2, 2, 3)
    assert (whole.records, whole.deltas, whole.acknowledged) == (5, 4, 4)
    assert client.status().problems == RecordProblems(4, 2, clipped=1, columns=(("x0", 1),))


async def test_unit_client_adds_the_first_records_up_to_its_bound_and_tells_how_many_it_refuses(
    path: Path, runtime: FixedClock
) -> None:
    service = ModelService(client_plan(records_per_client=3))
    service.clock_ms = runtime.now_ms
    await service.start()
    for left in (1, 0):  # across a restart, too
        async with client_of(service, path, runtime) as client:
            if left:
                await client.add([[1.0, 2.0], [3.0, 4.0]])
                said = "the plan allows 3 records per client and window: 2 of 3 were refused"
                dropped = "1 of 4 records were left out: "
                with (
                    pytest.warns(DroppedRecordsWarning, match=dropped),
                    pytest.warns(DroppedRecordsWarning, match=said),
                ):
                    await client.add([[np.nan, 1.0], [5.0, 6.0], [1.0, 2.0], [3.0, 4.0]])
            with pytest.raises(ContributionError, match="expected at most 0"):
                await client.add([[1.0, 2.0], [3.0, 4.0]])
            await client.flush()
        assert (client.status().records, client.status().records_refused, client.status().records_dropped) == (3, 2, 1)
    assert sum(service.fold.windows.values()) == 3
    await service.stop()


async def test_a_plan_with_another_array_than_it_names_is_refused_before_anything_is_kept(
    path: Path, runtime: FixedClock
) -> None:
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    steps = [{"kind": "linear", "matrix": digest(turn)}]
    service = ModelService(Plan.from_fields(tables(sketch={"transforms": steps}), [turn]))
    service.clock_ms = runtime.now_ms
    await service.start()
    honest = service.plan_bytes
    for bundle in (honest[:-1] + b"\x00", service.plan.to_bytes(), honest + honest[-40:]):
        service.plan_bytes = bundle
        with pytest.raises(PlanError):
            await EdgeClient(service.target, spool=path, config=QUICK, runtime=runtime).__aenter__()
    service.plan_bytes = honest
    async with EdgeClient(service.target, spool=path, config=QUICK, runtime=runtime) as client:
        assert client.plan == service.plan
    await service.stop()


async def test_a_caller_may_use_its_sets_again_before_add_returns(path: Path, runtime: FixedClock) -> None:
    sketch = {"family": "hashed", "kernel": "jaccard", "rows": 8, "buckets": 64}
    plan = Plan(name="sets", record={"kind": "set"}, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 9})
    service, expected = ModelService(plan), Sketch(plan)
    service.clock_ms = runtime.now_ms
    await service.start()
    sets = [np.arange(1, 9), np.array([3, 70])]
    matrix = csr_array((np.ones(3), ([0, 0, 1], [2, 5, 7])), shape=(2, 2**31))
    for records in (sets, matrix):
        expected.add(records)
    async with EdgeClient(service.target, spool=path, config=QUICK, runtime=runtime) as client:
        for records, array in ((sets, sets[0]), (matrix, matrix.indices)):
            adding = asyncio.ensure_future(client.add(records))
            await asyncio.wait([adding], timeout=0)
            array[:] = 0
            await adding
        await client.flush()
    assert np.array_equal(service.fold.sketch.counters, expected.counters)
    await service.stop()


async def test_a_plan_that_the_policy_does_not_allow_is_refused_before_anything_is_kept(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    strict = Policy(max_epsilon=0.5)
    for _ in range(2):
        client = EdgeClient(service.target, spool=path, policy=strict, config=QUICK, runtime=runtime)
        with pytest.raises(PolicyError, match=r"max_epsilon allows at most 0\.5, but the plan has epsilon 1 per"):
            await client.__aenter__()
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await client.flush()
    client = EdgeClient(service.target, spool=path, policy=strict, config=QUICK, runtime=runtime)
    with pytest.raises(PolicyError):  # also for the plan in the spool
        await client.__aenter__()


@pytest.mark.timeout(120)
async def test_without_a_plan_and_a_service_the_first_start_fails_in_the_stated_time(
    path: Path, service: ModelService
) -> None:
    await service.stop()
    runtime = SleptClock()
    config = Config(first_contact_s=0.3, backoff_first_s=0.01, backoff_longest_s=0.05)
    with pytest.raises(UnreachableError, match=r"sent no plan within 0\.3 s"):
        await client_of(service, path, runtime, config).__aenter__()
    assert runtime.sleeps > 0  # it was tried again
    runtime.close()


async def test_a_service_that_comes_up_in_the_meantime_is_found(
    path: Path, runtime: FixedClock, service: ModelService
) -> None:
    await service.stop()
    client = client_of(service, path, runtime)
    entering = asyncio.ensure_future(client.__aenter__())
    while not runtime.sleeps:
        await asyncio.wait([entering], timeout=0.01)
    await service.start(service.port)
    await entering
    await client.__aexit__(None, None, None)


async def test_a_plan_that_does_not_hash_to_its_id_is_refused(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.plan_bytes = small_plan(sketch={"seed": 4}).to_bytes()
    with pytest.raises(SessionRefusedError, match="and sent plan"):
        await client_of(service, path, runtime).__aenter__()


async def test_what_is_added_offline_arrives_at_a_later_start(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    before, offline = values(rng, 20), values(rng, 200)
    async with client_of(service, path, runtime) as client:
        await client.add(before)
        await client.flush()
    await service.stop()
    async with client_of(service, path, runtime, AT_ONCE) as client:
        for part in np.array_split(offline, 100):  # more than the window of 64
            await client.add(part)
        assert client.status().queued == 100
    await service.start(service.port)
    async with client_of(service, path, runtime) as client:
        await client.flush()
    assert holds(service.fold, before, offline)
    assert client.status().acknowledged == 101
    assert set(service.fold.received.values()) == {1}


async def test_what_was_not_answered_when_the_service_died_is_sent_again_and_counted_once(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batch = values(rng, 100)
    async with client_of(service, path, runtime) as client:
        await client.add(batch[:50])
        await client.flush()
        service.answers.clear()
        for part in np.array_split(batch[50:], 10):
            await client.add(part)
        await service.taken.wait()
        await service.stop()
        reborn = ModelService(service.plan, service.fold)
        reborn.clock_ms = runtime.now_ms
        await reborn.start(service.port)
        await client.flush()
    await reborn.stop()
    assert holds(service.fold, batch)
    assert client.status().deltas_resent > 0
    assert max(service.fold.received.values()) > 1
    assert client.status().acknowledged == 11


async def test_a_spool_of_another_plan_stops_with_a_clear_error_and_mixes_nothing(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    async with client_of(service, path, runtime):
        pass
    await service.stop()
    async with client_of(service, path, runtime, AT_ONCE) as client:
        await client.add([1.0, 2.0])
    other = ModelService(small_plan(sketch={"seed": 4}))
    await other.start(service.port)
    client = await client_of(other, path, runtime).__aenter__()
    with pytest.raises(PlanChangedError, match="use another spool"):
        await client.flush()
    with pytest.raises(PlanChangedError):
        await client.add([1.0, 2.0])
    await client.__aexit__(None, None, None)
    other.greeted.clear()
    with pytest.raises(PlanChangedError):  # who never asks is told at the end
        async with client_of(other, path, runtime):
            await other.greeted.wait()
    await other.stop()
    assert other.fold.received == {}
    await service.start(service.port)
    async with client_of(service, path, runtime) as client:
        await client.flush()
    assert service.fold.windows.total() == 1


async def test_refusals_are_raised_by_flush_with_their_reasons_and_once(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    def decide(id: DeltaId) -> Answer | None:
        if id.sequence < 2:
            return Answer(id, Status.REFUSED, Refusal.of(Reason.WINDOW_IN_PAST, "a window long gone"))
        return Answer(id, Status.LATE) if id.sequence == 2 else None

    service.decide = decide
    async with client_of(service, path, runtime) as client:
        for _ in range(4):
            await client.add([1.0, 2.0])
        told = r"^not counted: 1 delta arrived .* \(late\); 2 deltas refused for window_in_past \(a window long gone\)$"
        with pytest.raises(NotCountedError, match=told) as caught:
            await client.flush()
        await client.flush()
    assert (caught.value.refused, caught.value.late, caught.value.windows) == ({"window_in_past": 2}, 1, {})
    status = client.status()
    assert (status.refused, status.late, status.acknowledged) == ({"window_in_past": 2}, 1, 1)


async def test_what_is_counted_nowhere_is_raised_by_the_next_flush_or_a_warning_of_the_end(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.decide = lambda id: Answer(id, Status.UNKNOWN if id.sequence % 2 else Status.LATE)
    client = await client_of(service, path, runtime).__aenter__()
    for _ in range(3):
        await client.add([1.0, 2.0])
    with pytest.raises(NotCountedError, match=r"2 deltas arrived after .*; 1 delta of an ended window .*\(unknown\)$"):
        await client.flush()
    for _ in range(2):
        await client.add([1.0, 2.0])
    with pytest.warns(NotCountedWarning, match=r"1 delta arrived after .*; 1 delta of"):
        await client.__aexit__(None, None, None)
    assert (client.status().late, client.status().unknown) == (3, 2)


async def test_refusals_that_nobody_asked_about_are_a_warning_at_the_end(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.decide = lambda id: Answer(id, Status.REFUSED, Refusal.of(Reason.TOO_MANY_RECORDS, "too many"))
    with pytest.warns(NotCountedWarning, match="not counted: 1 delta refused for too_many_records"):
        async with client_of(service, path, runtime) as client:
            await client.add([1.0, 2.0])
    assert client.status().refused == {"too_many_records": 1}


async def test_a_refusal_for_the_moment_is_no_refusal(service: ModelService, path: Path, runtime: FixedClock) -> None:
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1)
    seen: set[DeltaId] = set()

    def decide(id: DeltaId) -> Answer | None:
        if id in seen:
            return None
        seen.add(id)
        return Answer(id, Status.REFUSED, busy)

    service.decide = decide
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await client.flush()
    assert (client.status().acknowledged, client.status().refused, client.status().deltas_resent) == (1, {}, 1)


async def test_a_flush_after_the_session_ended_while_a_delta_was_stored_raises(
    service: ModelService, path: Path, runtime: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(self: Mode, addition: Add) -> asyncio.Future[tuple[StoredDelta, ...]]:
        stored = honest(self, addition)
        self.driver._fail(SessionRefusedError("not any more"))
        return stored

    honest = CentralMode.put
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
        with monkeypatch.context() as patch:
            patch.setattr(CentralMode, "put", put)
            await client.add([3.0, 4.0])
        with pytest.raises(SessionRefusedError, match="not any more"):
            await client.flush(120)
        assert client.status().acknowledged == 1
    async with client_of(service, path, runtime) as client:
        await client.flush(120)
        assert client.status().acknowledged == 2


async def test_a_flush_that_takes_too_long_says_what_is_left_and_gives_nothing_up(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.answers.clear()
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        with pytest.raises(FlushTimeoutError, match=r"1 deltas have no answer after 0.05 s: they remain in the spool"):
            await client.flush(timeout_s=0.05)
        service.answers.set()
        await client.flush()
    assert client.status().acknowledged == 1


async def test_a_network_without_streams_gets_calls_of_their_own(
    service: ModelService, path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    service.streams = False
    service.busy_calls = 2
    batch = values(rng, 30)
    async with client_of(service, path, runtime) as client:
        for part in np.array_split(batch, 10):
            await client.add(part)
        await client.flush()
    assert service.unary_calls == 12
    assert holds(service.fold, batch)
    assert client.status().acknowledged == 10


@pytest.mark.parametrize("after", ["9" * 5000, "9" * 11, "-1", "1.5", "soon", "\u0663", ""])
async def test_a_wait_that_is_no_number_of_milliseconds_stops_and_holds_nobody(
    service: ModelService, path: Path, runtime: FixedClock, after: str
) -> None:
    service.streams = False
    service.busy_calls = 2
    service.retry_after = after if after.isascii() else "1" * 2000
    assert pushed_back(((REASON, "overloaded"), (RETRY_AFTER_MS, after))) == (ServiceReason.OVERLOADED, 0)
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
    assert client.status().acknowledged == 1


async def test_a_disk_that_fails_for_a_while_ends_nothing_and_the_window_waits_for_durable_answers(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.answers.clear()
    async with client_of(service, path, runtime) as client:
        for _ in range(100):
            await client.add([1.0, 2.0])
        spool = client._spool
        assert spool is not None
        with spool._lock:
            spool._database.execute("PRAGMA query_only = ON")
        service.answers.set()
        await until(lambda: len(service.fold.received) >= 64, "the window is full")
        with pytest.raises(FlushTimeoutError):
            await client.flush(0.5)
        assert {id.sequence for id in service.fold.received} == set(range(64))
        with pytest.raises(SpoolError, match="readonly"):
            await client.add([1.0, 2.0])
        assert (client.status().queued, len(spool.unanswered()), client.status().acknowledged) == (100, 100, 0)
        with spool._lock:
            spool._database.execute("PRAGMA query_only = OFF")
        await client.add([1.0, 2.0])
        await client.flush(120)
        assert client.status().acknowledged == 101
    assert set(service.fold.received.values()) == {1}
    assert len(service.fold.received) == 101


async def test_what_was_answered_is_soon_gone_from_the_log_while_the_client_runs(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    log = path.with_name("spool.db-wal")
    service.answers.clear()
    async with client_of(service, path, runtime) as client:
        await client.add([1.0, 2.0])
        await service.taken.wait()
        (delta,) = service.fold.bytes_of.values()
        assert delta in await runtime.blocking(log.read_bytes)
        service.answers.set()
        await client.flush()
        async with asyncio.timeout(120):
            while delta in await runtime.blocking(log.read_bytes):
                pass
        assert delta not in await runtime.blocking(path.read_bytes)


async def test_a_service_that_wants_no_session_says_why(service: ModelService, path: Path, runtime: FixedClock) -> None:
    service.refusal = Refusal.of(ServiceReason.UNAUTHENTICATED, "who are you?")
    with pytest.raises(SessionRefusedError, match="who are you"):
        await client_of(service, path, runtime).__aenter__()


async def test_clocks_that_are_far_apart_are_a_warning(service: ModelService, path: Path, runtime: FixedClock) -> None:
    async with client_of(service, path, runtime):
        pass
    service.clock_ms = lambda: TIME - 600_000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with client_of(service, path, runtime) as client:
            await client.add([1.0, 2.0])
            await client.flush()
    assert [warning.category for warning in caught] == [ClockWarning]
    assert "600 s ahead of the service's" in str(caught[0].message)


async def test_a_client_id_of_any_script_reaches_the_service(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    client = EdgeClient(service.target, spool=path, client_id="sonde-é %7", config=QUICK, runtime=runtime)
    async with client:
        await client.add([1.0, 2.0])
        await client.flush()
        assert client.client_id == "sonde-é %7"
    assert {client_id for client_id, _ in service.fold.bytes_of} == {"sonde-é %7"}


async def test_a_client_works_inside_its_block_alone_and_once(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    client = client_of(service, path, runtime)
    with pytest.raises(ClientStateError):
        await client.add([1.0, 2.0])
    async with client:
        with pytest.raises(SpoolInUseError):
            await client_of(service, path, runtime).__aenter__()
    for use in (client.add([1.0, 2.0]), client.flush(), client.__aenter__()):
        with pytest.raises(ClientStateError):
            await use


async def test_an_add_that_was_cancelled_is_sent_all_the_same_if_it_was_taken(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    async with client_of(service, path, runtime) as client:
        for _ in range(20):
            adding = asyncio.ensure_future(client.add([1.0, 2.0]))
            while not client.status().deltas and not adding.done():
                await asyncio.wait([adding], timeout=0)
            adding.cancel()
            await asyncio.wait([adding])
        await client.add([1.0, 2.0])
        await client.flush()
        assert client.status().queued == 0
    assert client.status().acknowledged == client.status().deltas == len(service.fold.received)


async def test_leaving_leaves_no_task_behind_whatever_it_is_doing(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.answers.clear()
    for ending in ("error", "cancelled"):
        client = await client_of(service, path, runtime, Config(close_flush_s=60.0)).__aenter__()
        await client.add([1.0, 2.0])
        await service.taken.wait()
        if ending == "error":
            await client.__aexit__(ValueError, ValueError(), None)
        else:
            leaving = asyncio.ensure_future(client.__aexit__(None, None, None))
            await asyncio.wait([leaving], timeout=0.05)
            while not leaving.done():  # somebody who is very impatient
                leaving.cancel()
                await asyncio.wait([leaving], timeout=0)
            with pytest.raises(asyncio.CancelledError):
                await leaving
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("hushsum-edge")]
    service.answers.set()
    async with client_of(service, path, runtime) as client:  # the spool was given back, with everything in it
        await client.flush()
    assert client.status().acknowledged == 2


async def test_a_flush_that_waits_when_its_client_closes_raises_and_gives_nothing_up(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.answers.clear()
    async with client_of(service, path, runtime, AT_ONCE) as client:
        await client.add([1.0, 2.0])
        flushes = [asyncio.ensure_future(client.flush(timeout_s)) for timeout_s in (None, 600.0)]
        await service.taken.wait()
    done, waiting = await asyncio.wait(flushes, timeout=120)
    assert (len(done), len(waiting)) == (2, 0)
    for flush in flushes:
        with pytest.raises(ClientStateError, match="this client was closed; unanswered deltas stay in the spool"):
            await flush
    service.answers.set()
    async with client_of(service, path, runtime) as client:
        await client.flush()
    assert client.status().acknowledged == 1


async def test_a_flush_whose_last_answer_becomes_durable_while_its_client_closes_returns(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    service.answers.clear()
    client = await client_of(service, path, runtime, AT_ONCE).__aenter__()
    await client.add([1.0, 2.0])
    flush = asyncio.ensure_future(client.flush())
    await service.taken.wait()
    driver, spool = client._started().driver, client._started().spool
    with spool._lock:  # the disk is slow: the answer has come, and is not durable
        service.answers.set()
        await until(lambda: driver._session.send_window._places[0].stage is Stage.SETTLING, "the answer came")
        leaving = asyncio.ensure_future(client.__aexit__(None, None, None))
        await until(lambda: driver._closed, "the client closes")
        assert not flush.done()
    await leaving
    await asyncio.wait([flush], timeout=120)
    assert flush.done()
    await flush
    assert client.status().acknowledged == 1


async def test_many_clients_share_a_loop_and_a_runtime_and_an_idle_one_does_nothing(
    service: ModelService, tmp_path: Path, runtime: FixedClock, rng: np.random.Generator
) -> None:
    batches = values(rng, 40 * 6).reshape(40, 6, 2)
    clients = [client_of(service, tmp_path / f"{number}.db", runtime) for number in range(len(batches))]
    await asyncio.gather(*(client.__aenter__() for client in clients))

    async def contribute(client: EdgeClient, batch: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        await asyncio.gather(*(client.add(part) for part in np.array_split(batch, 3)))
        await client.flush()

    await asyncio.gather(*(contribute(client, batch) for client, batch in zip(clients, batches, strict=True)))
    assert holds(service.fold, batches.reshape(-1, 2))
    slept = runtime.sleeps
    await asyncio.wait([asyncio.ensure_future(service.taken.wait())], timeout=0.2)
    assert runtime.sleeps == slept  # no polling
    await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))
    assert sum(client.status().acknowledged for client in clients) == 120


async def offline(service: ModelService, path: Path, runtime: FixedClock, records: object) -> None:
    """A device that knows its plan and is given records while its service is away."""
    async with client_of(service, path, runtime):
        pass
    await service.stop()
    async with client_of(service, path, runtime, AT_ONCE) as client:
        await client.add(records)
    await service.start(service.port)


async def test_what_waits_in_the_spool_is_sent_before_the_service_has_replied_to_hello(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    await offline(service, path, runtime, [1.0, 2.0])
    service.hello.clear()
    async with client_of(service, path, runtime) as client:
        await asyncio.wait_for(service.taken.wait(), 120)
        assert client.status().acknowledged == 0  # no answer is heard before the welcome
        service.hello.set()
        await client.flush()
        assert (client.status().acknowledged, client.status().deltas_resent) == (1, 0)
    assert holds(service.fold, [1.0, 2.0])


async def test_a_refused_hello_ends_the_session_as_ever_though_its_delta_was_acknowledged(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    await offline(service, path, runtime, [1.0, 2.0])
    service.hello.clear()
    service.refusal = Refusal.of(Reason.WRONG_PLAN, "another one")
    async with client_of(service, path, runtime, AT_ONCE) as client:
        await asyncio.wait_for(service.taken.wait(), 120)
        service.hello.set()
        with pytest.raises(PlanChangedError, match="another plan"):
            await client.flush()
    assert (client.status().acknowledged, client.status().queued) == (0, 1)
    service.refusal = None
    async with client_of(service, path, runtime) as client:
        await client.flush()
    assert holds(service.fold, [1.0, 2.0])  # sent again, and counted once


async def test_a_network_without_streams_gets_a_call_for_what_went_with_the_hello(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    await offline(service, path, runtime, [1.0, 2.0])
    service.streams = False
    async with client_of(service, path, runtime) as client:
        await client.flush()
    assert (service.unary_calls, service.streams_opened) == (1, 1)
    assert holds(service.fold, [1.0, 2.0])


async def test_a_client_that_was_idle_is_not_connected_until_its_next_delta(
    service: ModelService, path: Path, runtime: FixedClock
) -> None:
    config = Config(backoff_first_s=0.01, backoff_longest_s=0.05, idle_s=0.05)
    told: list[str] = []
    client = EdgeClient(
        service.target,
        spool=path,
        config=config,
        runtime=runtime,
        on_event=lambda event: told.append(f"{event.kind}: {event.detail}"),
    )
    async with client:
        await client.add([1.0, 2.0])
        await client.flush()
        await until(lambda: not client.status().connected, "the idle connection ends")
        assert client.status().last_error is None
        assert told[-1] == "disconnected: nothing to send: it connects again with the next delta"
        await client.add([3.0, 4.0])
        await client.flush()
    assert holds(service.fold, [1.0, 2.0], [3.0, 4.0])
    assert service.streams_opened >= 2
