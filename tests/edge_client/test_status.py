"""What a client tells: its status, its events, and the lines that it logs; with a service in memory."""

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest

from edge_client import (
    ClippedRecordsWarning,
    Config,
    DroppedRecordsWarning,
    EdgeClient,
    Event,
    EventKind,
    FlushTimeoutError,
    NotCountedError,
    PlanChangedError,
    SpoolFullError,
    SystemRuntime,
)
from edge_client.testing import MemoryService
from hushsum import Sketch
from hushsum.errors import Reason
from hushsum_proto.answers import ServiceReason
from tests.edge_client.clocks import until
from tests.plans import classed_plan, set_plan, small_plan

PLAN = small_plan()
QUICK = Config(backoff_first_s=0.001, backoff_longest_s=0.01, close_flush_s=0.0)


@pytest.fixture
def service() -> MemoryService:
    return MemoryService(PLAN)


class Heard(list[Event]):
    """The events of a client."""

    @property
    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self]

    def first(self, kind: EventKind) -> Event:
        return next(event for event in self if event.kind is kind)


async def test_a_service_in_memory_counts_each_record_once(service: MemoryService, tmp_path: Path) -> None:
    records = np.random.default_rng(0).uniform(0, 10, (50, 2))
    expected = Sketch(PLAN)
    expected.add(records)
    began = PLAN.window.index_at(service.now_ms())
    async with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        await client.add(records)
        await client.flush(120)
        status = client.status()
    assert service.records == status.records == 50
    assert np.array_equal(service.sketch().counters, expected.counters)
    assert service.windows <= {began, PLAN.window.index_at(service.now_ms())}
    assert (status.queued, status.connected, status.last_error, status.next_attempt_ms) == (0, True, None, None)


@pytest.mark.parametrize("tell", ["late", "forget", "refuse"])
async def test_an_answer_that_does_not_count_is_an_event_a_number_and_an_error_of_the_next_flush(
    service: MemoryService, tmp_path: Path, tell: str
) -> None:
    heard, name = Heard(), {"late": "late", "forget": "unknown", "refuse": "refused"}[tell]
    getattr(service, tell)()
    async with EdgeClient(service, spool=tmp_path / "spool.db", on_event=heard.append) as client:
        await client.add([1.0, 2.0])
        with pytest.raises(NotCountedError) as caught:
            await client.flush(120)
        await client.flush(120)  # it was told
        status = client.status()
    event = heard.first(EventKind(name))
    assert event.delta is not None
    if tell == "refuse":
        assert (status.refused, caught.value.refused, event.reason) == (
            *[{"too_many_records": 1}] * 2,
            "too_many_records",
        )
        assert event.detail == caught.value.details["too_many_records"] == "refused by the test"
    else:
        assert getattr(status, name) == getattr(caught.value, name) == 1
    assert service.records == 0


async def test_while_the_service_is_away_the_status_the_events_and_the_log_say_when_it_is_tried_again(
    service: MemoryService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edge_client")
    heard, runtime = Heard(), SystemRuntime()
    config = Config(backoff_first_s=500.0, backoff_longest_s=500.0, close_flush_s=0.0)
    async with EdgeClient(
        service, spool=tmp_path / "spool.db", config=config, runtime=runtime, on_event=heard.append
    ) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
        assert client.status().connected
        service.go_away()
        await until(lambda: EventKind.DISCONNECTED in heard.kinds, "the end of the connection")
        assert client.status().next_attempt_ms is None, "nothing is waiting to be sent"
        await client.add([1.0, 2.0])
        status = client.status()
        lost = heard.first(EventKind.DISCONNECTED)
        assert not status.connected
        assert (status.queued, status.last_error, lost.detail, lost.attempt) == (1, *[lost.detail] * 2, 1)
        assert status.next_attempt_ms is not None
        assert 0 <= status.next_attempt_ms - runtime.now_ms() <= 500_000
    runtime.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "a service in memory: connected"
    assert lines[1].startswith("a service in memory: connection ended (the service is unavailable")
    assert lines[1].endswith("failed attempts: 1")


async def test_attempts_are_counted_and_what_waits_is_sent_when_the_service_comes_back(
    service: MemoryService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edge_client")
    heard = Heard()
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK, on_event=heard.append) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
        service.go_away()
        await client.add([1.0, 2.0])
        await until(lambda: heard.kinds.count(EventKind.DISCONNECTED) >= 3, "three attempts")
        service.come_back()
        await client.flush(120)
    attempts = [event.attempt for event in heard if event.kind is EventKind.DISCONNECTED]
    assert attempts[:3] == [1, 2, 3]
    assert "next attempt in 0.0 s" in caplog.text
    assert service.records == 2


async def test_records_that_are_left_out_or_clipped_are_events_beside_the_warnings(
    tmp_path: Path,
) -> None:
    heard, plan = Heard(), classed_plan("a", "b")
    async with EdgeClient(MemoryService(plan), spool=tmp_path / "spool.db", on_event=heard.append) as client:
        with pytest.warns(DroppedRecordsWarning), pytest.warns(ClippedRecordsWarning):
            await client.add([[1.0, 2.0], [1.0, 99.0], [3.0, 4.0]], labels=["a", "b", "c"])
        await client.flush(120)
        problems = client.status().problems
    kinds = {kind: heard.first(kind).detail for kind in (EventKind.RECORDS_DROPPED, EventKind.RECORDS_CLIPPED)}
    assert "1 of 3" in kinds[EventKind.RECORDS_DROPPED]
    assert (problems.records, problems.dropped, problems.clipped) == (3, 1, 1)


async def test_a_full_spool_is_an_event_and_an_error_of_the_add(service: MemoryService, tmp_path: Path) -> None:
    heard, config = Heard(), Config(spool_bytes_max=2**20, backoff_longest_s=0.01, close_flush_s=0.0)
    client = EdgeClient(service, spool=tmp_path / "spool.db", config=config, on_event=heard.append)
    async with client:
        service.go_away()
        with pytest.raises(SpoolFullError):  # noqa: PT012  how many it takes depends on how a delta is packed
            for _ in range(10_000):
                await client.add(np.random.default_rng(0).uniform(0, 10, (500, 2)))
        added = client.status().records
        service.come_back()
        await client.flush(120)
        assert client.status().queued == 0
    assert heard.kinds.count(EventKind.SPOOL_FULL) == 1
    assert service.records == added


async def test_another_plan_stops_the_client_with_an_event_and_keeps_what_it_has(
    service: MemoryService, tmp_path: Path
) -> None:
    heard = Heard()
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK) as client:
        service.go_away()
        await client.add([1.0, 2.0])
    other = MemoryService(small_plan(sketch={"rows": 10}))
    with pytest.raises(PlanChangedError):
        async with EdgeClient(other, spool=tmp_path / "spool.db", config=QUICK, on_event=heard.append) as client:
            await client.flush(120)
    assert heard.kinds == [EventKind.STOPPED]
    assert isinstance(heard[0].error, PlanChangedError)
    assert (client.status().queued, client.status().last_error) == (1, str(heard[0].error))
    service.come_back()
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK) as client:
        await client.flush(120)
    assert service.records == 1


async def test_each_of_several_flushes_at_once_raises_what_is_not_counted_and_a_later_one_does_not(
    service: MemoryService, tmp_path: Path
) -> None:
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK) as client:
        service.go_away()
        await client.add([1.0, 2.0])
        flushes = [asyncio.create_task(client.flush(120)) for _ in range(3)]
        short = asyncio.create_task(client.flush(0.05))
        with pytest.raises(FlushTimeoutError):
            await short
        service.late()
        service.come_back()
        errors = await asyncio.gather(*flushes, return_exceptions=True)
        assert [error.late for error in errors if isinstance(error, NotCountedError)] == [1, 1, 1]
        await client.flush(120)


async def test_a_flush_that_takes_too_long_leaves_what_is_not_counted_to_the_next(
    service: MemoryService, tmp_path: Path
) -> None:
    heard = Heard()
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK, on_event=heard.append) as client:
        service.late()
        await client.add([1.0, 2.0])
        await until(lambda: EventKind.LATE in heard.kinds, "it is late")
        service.go_away()
        await client.add([1.0, 2.0])
        with pytest.raises(FlushTimeoutError):
            await client.flush(0.05)
        service.accept()
        service.come_back()
        with pytest.raises(NotCountedError) as raised:
            await client.flush(120)
        assert raised.value.late == 1
        await client.flush(120)


async def test_a_mistake_in_on_event_is_logged_and_ends_nothing(
    service: MemoryService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(event: Event) -> None:
        raise ZeroDivisionError(event.kind)

    async with EdgeClient(service, spool=tmp_path / "spool.db", on_event=mistaken) as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
    assert service.records == 1
    assert "on_event raised an error; the client continues" in caplog.text


async def test_the_service_in_memory_refuses_an_id_that_comes_with_other_bytes_as_a_service_does(
    service: MemoryService, tmp_path: Path
) -> None:
    async with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        await client.add([1.0, 2.0])
        await client.flush(120)
    (delta,) = service.received
    connection = service.connect()
    await connection.greet(PLAN.id)
    await connection.send(delta)
    await connection.send(delta[:-1] + bytes([delta[-1] ^ 1]))
    answers = connection.answers()
    assert [(await anext(answers)).status.value for _ in range(2)] == ["acknowledged", "refused"]
    assert service.records == 1


async def test_a_refusal_for_the_moment_is_sent_again(service: MemoryService, tmp_path: Path) -> None:
    service.refuse(ServiceReason.OVERLOADED, "in a moment")
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK) as client:
        await client.add([1.0, 2.0])
        await until(lambda: len(service.received) > 1, "another send")
        service.accept()
        await client.flush(120)
        assert not client.status().refused
    assert service.records == 1


async def test_it_ends_a_session_for_a_reason_that_does(service: MemoryService, tmp_path: Path) -> None:
    service.refuse(Reason.WRONG_PLAN, "another one")
    async with EdgeClient(service, spool=tmp_path / "spool.db", config=QUICK) as client:
        await client.add([1.0, 2.0])
        with pytest.raises(PlanChangedError):
            await client.flush(120)


async def test_plans_of_reports_and_silos_are_served_too(tmp_path: Path) -> None:
    from tests.edge_client.local_clients import EVERYTHING, REPORT, SILO

    report, silo = MemoryService(REPORT), MemoryService(SILO)
    async with EdgeClient(report, spool=tmp_path / "report.db", policy=EVERYTHING) as client:
        await client.add([[1.0, 2.0], [3.0, 4.0]])
        await client.flush(120)
        assert client.status().account is not None
    async with EdgeClient(silo, spool=tmp_path / "silo.db", policy=EVERYTHING) as client:
        await client.add([[1.0, 2.0], [3.0, 4.0]])
        await client.flush(120)
        status = client.status()
        # Two windows may be open, in the lateness of the first.
        assert status.submissions_counted == status.submissions_spent == len(silo.windows) >= 1
    assert report.records == 2


async def test_many_clients_of_one_process_share_a_service(service: MemoryService, tmp_path: Path) -> None:
    runtime = SystemRuntime()

    async def contribute(number: int) -> None:
        async with EdgeClient(service, spool=tmp_path / f"{number}.db", runtime=runtime) as client:
            await client.add([1.0, 2.0])
            await client.flush(120)

    await asyncio.gather(*map(contribute, range(30)))
    runtime.close()
    assert service.records == 30


async def test_strings_are_a_set_alone_or_in_a_list_of_sets(tmp_path: Path) -> None:
    plan = set_plan()
    expected = Sketch(plan)
    expected.add([["cough", "fever"], ["cough"], ["fever"]])
    service = MemoryService(plan)
    async with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        await client.add({"cough", "fever"})
        await client.add(["cough"])
        await client.add([["fever"]])
        await client.flush(120)
    assert np.array_equal(service.sketch().counters, expected.counters)
