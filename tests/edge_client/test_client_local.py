"""A device in local mode beside a service that lies: what it has randomised once leaves in those bytes alone."""

import asyncio
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client import (
    AbsentWarning,
    AccountError,
    ClientStateError,
    DroppedRecordsWarning,
    EdgeClient,
    EdgeError,
    NotCountedError,
)
from edge_client.participation.silo import SiloMode, prepared
from edge_client.spool.window_submissions import WindowStatus
from hushsum import Plan
from hushsum.delta import DeltaId, read_header
from hushsum.local import silo
from tests.edge_client.clocks import HOUR, MINUTE, START, until
from tests.edge_client.local_clients import (
    LIES,
    MEMO,
    REPORT,
    SILO,
    WINDOW,
    RushingClock,
    WorkingClock,
    client_of,
    flushed_or_sent,
    started,
)
from tests.edge_client.local_plans import report_plan, silo_plan
from tests.edge_client.local_service import Kept
from tests.plans import tables


def large_plan() -> Plan:
    fields = tables(privacy={"mode": "local", "local": {"form": "silo"}}, window={"length": "1h", "lateness": "20m"})
    sketch = fields["sketch"]
    assert isinstance(sketch, dict)
    plan = Plan.from_fields({**fields, "sketch": {**sketch, "rows": 3000, "buckets": 256}})
    assert plan.upload_bytes_max > 2**18
    return plan


def silo_mode_of(client: EdgeClient) -> SiloMode:
    mode = client._started()
    assert isinstance(mode, SiloMode)
    return mode


@pytest.mark.filterwarnings("ignore::edge_client.NotCountedWarning")  # of an answer that came after the flush
@pytest.mark.parametrize("name", LIES)
async def test_whatever_a_service_says_it_gets_one_submission_of_a_window(
    path: Path, clock: RushingClock, name: str
) -> None:
    kept = Kept()
    for again in range(3):
        service = await started(SILO, clock, kept)
        service.lie = LIES[name]
        async with client_of(service, path, clock) as client:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AbsentWarning)
                await client.add([[1.0, 2.0]] * (again + 1))
            await flushed_or_sent(client, kept)
            account = client.status().account
            assert account is not None
            assert len(account.spends) == 1
        await service.stop()
    assert len(kept.of_window(WINDOW)) == len(kept.ids()) == 1


@pytest.mark.filterwarnings("ignore::edge_client.NotCountedWarning")  # of the answers late and unknown
@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("plan", [REPORT, MEMO], ids=["fresh", "memoised"])
async def test_whatever_a_service_says_it_gets_a_batch_in_the_same_bytes_alone(
    path: Path, clock: RushingClock, name: str, plan: Plan
) -> None:
    kept = Kept()
    for again in range(3):
        service = await started(plan, clock, kept)
        service.lie = LIES[name]
        async with client_of(service, path, clock) as client:
            if again == 0:
                await client.add(np.arange(20.0).reshape(10, 2) / 2)
            await flushed_or_sent(client, kept)
        await service.stop()
    assert len(set(kept.received)) == len(kept.ids()) == 1


async def test_a_device_that_is_killed_between_its_submission_and_the_answer_sends_the_same_bytes(
    path: Path, clock: RushingClock
) -> None:
    kept = Kept()
    for again in range(3):
        service = await started(SILO, clock, kept)
        service.answers.clear()  # it hears no answer
        async with client_of(service, path, clock) as client:
            await flushed_or_sent(client, kept)
        await service.stop()
        assert len(kept.received) == again + 1
    service = await started(SILO, clock, kept)
    async with client_of(service, path, clock) as client:
        await client.flush(30)
        assert client.status().submissions_counted == client.status().submissions_spent == 1
    await service.stop()
    assert len(set(kept.received)) == 1


async def test_nothing_is_sent_before_it_is_durable_and_charged(path: Path, clock: RushingClock) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        spool = client._started().spool

        def look(_: DeltaId, __: int) -> None:
            assert spool.unanswered() == (0,)
            assert spool.rows("SELECT window FROM rounds") == [(WINDOW,)]

        service.lie = look
        await client.flush(30)
    await service.stop()
    assert client.status().submissions_counted == 1


async def test_a_report_is_charged_before_it_is_sent(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    async with client_of(service, path, clock) as client:
        spool = client._started().spool

        def look(_: DeltaId, __: int) -> None:
            assert spool.rows("SELECT window FROM rounds") == [(WINDOW,)]

        service.lie = look
        await client.add([1.0, 2.0])
        await client.flush(30)
        assert client.status().acknowledged == 1
    await service.stop()


@pytest.mark.parametrize("work_s", [0.0, 1.5], ids=["no work", "as much work as many records make"])
async def test_a_silo_submits_at_a_moment_that_no_record_decides(path: Path, work_s: float) -> None:
    clock = WorkingClock()
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        if work_s:
            await client.add(np.ones((3000, 2)))
        clock.work_s = work_s
        schedule = silo_mode_of(client)._schedule
        await clock.settled()
        due_ms = SILO.window.end_ms(WINDOW) + 60_000
        schedule._windows[WINDOW].due_ms = due_ms  # the same moment for both
        clock.pass_time((due_ms - 1000 - clock.at_ms) / 1000)
        await clock.settled()
        clock.pass_time(1.0)
        await until(lambda: silo_mode_of(client).driver.is_connected, "it connects again")
        await clock.settled()
        while clock.at_ms < due_ms + 10_000 and not client.status().submissions_spent:
            clock.pass_time(0.25)
            await clock.settled()
        assert client.status().submissions_spent == 1
        assert clock.at_ms == due_ms + 2_000  # what it takes to read and noise the sum is done in these 2 s
    await service.stop()
    clock.close()


async def test_a_flush_that_waits_for_a_window_when_its_client_closes_raises(path: Path, clock: RushingClock) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        mode = silo_mode_of(client)
        # Nothing can be stored, so that the flush waits for its window, and not for a delta's answer.
        stop = "CREATE TEMP TRIGGER no BEFORE INSERT ON deltas BEGIN SELECT RAISE(ABORT, 'no'); END"
        mode.spool._database.execute(stop)
        flushes = [asyncio.ensure_future(client.flush(timeout_s)) for timeout_s in (None, 600.0)]
        await until(lambda: mode._schedule._windows[WINDOW].expedited, "the flushes wait")
    done, waiting = await asyncio.wait(flushes, timeout=120)
    await service.stop()
    assert (len(done), len(waiting)) == (2, 0)
    for flush in flushes:
        with pytest.raises(ClientStateError, match="closed"):
            await flush


async def test_a_flush_that_is_about_to_wait_when_its_client_closes_raises(
    path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await started(SILO, clock)
    is_updating, may_update = threading.Event(), threading.Event()
    async with client_of(service, path, clock) as client:
        submissions = silo_mode_of(client).submissions
        update = submissions.update

        def update_late(windows: range) -> WindowStatus:
            is_updating.set()
            may_update.wait(60)
            return update(windows)

        monkeypatch.setattr(submissions, "update", update_late)
        clock.at_ms += HOUR  # so that the flush has new windows to find
        flush = asyncio.ensure_future(client.flush())
        await until(is_updating.is_set, "the flush updates")
    may_update.set()
    await asyncio.wait([flush], timeout=120)
    await service.stop()
    assert flush.done()
    with pytest.raises(ClientStateError, match="closed"):
        await flush


async def test_a_device_that_cannot_pay_takes_no_part_and_says_so(path: Path, clock: RushingClock) -> None:
    plan = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=1)
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
        await client.flush(30)
        clock.at_ms += HOUR
        with pytest.warns(AbsentWarning):
            await client.add([3.0, 4.0])
        with pytest.raises(NotCountedError, match="ledger has no budget"):
            await client.flush(30)
        await client.flush(30)
    await service.stop()
    assert len(service.kept.received) == 1
    assert client.status().records_absent == 1


async def test_reports_that_the_account_does_not_pay_for_are_refused_to_their_caller(
    path: Path, clock: RushingClock
) -> None:
    plan = report_plan(unit="client", records_per_client=2, epsilon=2, total_epsilon=2)
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
        clock.at_ms += HOUR
        with pytest.raises(AccountError) as caught:
            await client.add([3.0, 4.0])
        account = client.status().account
        assert account is not None
        assert caught.value.left == account.left
        await client.add([5.0, 6.0], time=START)
        await client.flush(30)
    await service.stop()
    assert len(service.kept.received) == 2


@pytest.mark.parametrize("plan", [REPORT, MEMO, SILO], ids=["fresh", "memoised", "silo"])
async def test_what_became_of_unusable_records_is_said_as_it_was(path: Path, clock: RushingClock, plan: Plan) -> None:
    service = await started(plan, clock)
    random = "each of 2 unusable records sends a uniformly random report, 1 were added: 2 cannot be read "
    said = "2 of 3 records were left out: 2 cannot be read " if plan is SILO else random
    async with client_of(service, path, clock) as client:
        with pytest.warns(DroppedRecordsWarning, match=f"^{said}"):
            await client.add([[np.nan, 1.0], [1.0, 2.0], [np.inf, 0.0]])
        assert client.status().reports == (0 if plan is SILO else 3)
    await service.stop()


async def test_a_late_submission_loses_its_window_and_flushes_at_once_say_so_and_no_later_one(
    path: Path, clock: RushingClock
) -> None:
    service = await started(SILO, clock)
    service.lie = LIES["late"]
    async with client_of(service, path, clock) as client:
        errors = await asyncio.gather(*(client.flush(30) for _ in range(3)), return_exceptions=True)
        told = [error.windows for error in errors if isinstance(error, NotCountedError)]
        assert told == [{WINDOW: "its submission is late and is not counted"}] * 3
        await client.flush(30)
    await service.stop()
    assert client.status().submissions_lost == client.status().late == 1


# --------------------------------------------------------------------------- nothing is spent for a window that is over


@pytest.mark.parametrize("plan", [SILO, large_plan()], ids=["stream", "no stream tells that the service is gone"])
async def test_a_silo_spends_nothing_while_it_is_offline_and_catches_up(
    path: Path, clock: RushingClock, plan: Plan
) -> None:
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        driver = silo_mode_of(client).driver
        await until(lambda: driver.is_connected, "it is connected")
        await service.stop()
        if plan is SILO:
            await until(lambda: not driver.is_connected, "its stream tells")
        await client.add([1.0, 2.0])
        flush = asyncio.ensure_future(client.flush(600))
        await until(lambda: driver._session.failures > 5, "it tries to connect again and again")
        assert client.status().submissions_spent == 0
        await service.start(service.port)
        await flush
        assert client.status().submissions_counted == client.status().submissions_spent == 1
    await service.stop()


async def test_a_silo_with_a_fast_clock_spends_nothing_for_a_window_that_has_not_begun(
    path: Path, clock: RushingClock
) -> None:
    service = await started(SILO, clock)
    service.clock_ms = lambda: clock.now_ms() - 3 * HOUR
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
        why = f"the service takes window {WINDOW - 2} and earlier ones: this device's clock is fast"
        with pytest.raises(NotCountedError, match=why):
            await client.flush(600)
        assert client.status().submissions_spent == 0
    await service.stop()


async def test_a_silo_that_starts_without_its_service_submits_once_that_is_there(
    path: Path, clock: RushingClock
) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock):
        pass  # it has its plan from here on
    await service.stop()
    async with client_of(service, path, clock) as client:
        flush = asyncio.ensure_future(client.flush(600))
        await until(lambda: silo_mode_of(client).driver._session.failures > 5, "it tries to connect again and again")
        await service.start(service.port)
        await flush
        assert client.status().submissions_counted == 1
    await service.stop()


async def test_a_silo_with_a_slow_clock_spends_nothing_for_what_was_over_when_it_connected_again(
    path: Path, clock: RushingClock
) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        driver = silo_mode_of(client).driver
        await until(lambda: driver.is_connected, "it is connected")
        await client.add([1.0, 2.0])
        await service.stop()
        await until(lambda: not driver.is_connected, "it is disconnected")
        service.clock_ms = lambda: clock.now_ms() + 3 * HOUR + MINUTE
        await service.start(service.port)
        with pytest.raises(NotCountedError, match=f"the service takes window {WINDOW + 3} and later ones"):
            await client.flush(600)
        assert client.status().submissions_spent == 0
    await service.stop()


async def test_a_silo_whose_clock_was_set_back_spends_nothing_for_what_was_over_while_it_was_connected(
    path: Path, clock: RushingClock
) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        driver = silo_mode_of(client).driver
        await until(lambda: driver.is_connected, "it is connected")
        await client.add([1.0, 2.0])
        clock.seconds += 3660  # it is 21 minutes past the window's end, and the lateness is 20
        with pytest.raises(NotCountedError, match=f"the service takes window {WINDOW + 1} and later ones"):
            await client.flush(600)
        assert client.status().submissions_spent == 0
        assert driver.oldest_window == WINDOW - 1, "as it was told at first"
    await service.stop()


async def test_a_silo_that_loses_its_connection_while_it_noises_its_sum_spends_nothing(
    path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await started(SILO, clock)
    async with client_of(service, path, clock) as client:
        driver, computing, computed = silo_mode_of(client).driver, clock.computing, list[int]()
        attempts: list[asyncio.Task[Any] | None] = []

        async def lose(*work: Any) -> Any:
            if not computed:
                await service.stop()
                await until(lambda: not driver.is_connected, "it is disconnected")
            computed.append(client.status().submissions_spent)
            attempts.append(asyncio.current_task())
            return await computing(*work)

        monkeypatch.setattr(clock, "computing", lose)
        flush = asyncio.ensure_future(client.flush(600))
        await until(lambda: any(task and task.done() for task in attempts), "the attempt has ended")
        clock.at_ms += MINUTE  # which ends the wait before the next one
        await until(lambda: driver._session.failures > 5, "it tries to connect again and again")
        await service.start(service.port)
        await flush
        assert computed == [0, 0], "what was noised first is given up"
        assert client.status().submissions_counted == client.status().submissions_spent == 1
    await service.stop()


async def test_a_large_submission_whose_call_breaks_off_counts_as_sent_and_then_as_sent_again(
    path: Path, clock: RushingClock
) -> None:
    plan = large_plan()
    service = await started(plan, clock)
    service.busy_calls = 1
    async with client_of(service, path, clock) as client:
        await client.flush(60)
        tallies = client.status()
    await service.stop()
    assert service.kept.large == 2
    assert (tallies.deltas_sent, tallies.deltas_resent) == (1, 1)


async def test_a_large_submission_goes_in_chunks_and_is_counted(path: Path, clock: RushingClock) -> None:
    plan = large_plan()
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        await client.flush(60)
    await service.stop()
    assert service.kept.large == 1
    (data,) = service.kept.received
    assert silo.unpack(data, plan).window == WINDOW


# ----------------------------------------------------------------------------------------------- planted mistakes


async def test_noise_drawn_anew_for_a_resend_would_be_seen(
    path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of one submission fails where a second one could be had."""
    monkeypatch.setattr("edge_client.spool.transaction.require_part", lambda *_: 0)
    kept = Kept()
    service = await started(SILO, clock, kept)
    service.lie = LIES["late"]
    async with client_of(service, path, clock) as client:
        with suppress(NotCountedError):
            await client.flush(30)
        mode = silo_mode_of(client)
        again = prepared(SILO, WINDOW, mode.submissions.pending(WINDOW), mode._secrets)
        with pytest.raises(EdgeError):  # the table of spends holds a window once, whoever asks
            await mode.driver.writer.put(again)
    await service.stop()
    assert len(kept.of_window(WINDOW)) == 1


def test_reports_and_headers_name_no_client_and_no_spool(tmp_path: Path) -> None:
    from tests.edge_client.local_plans import ReportSpool

    spool = ReportSpool(tmp_path / "spool.db", REPORT)
    (bound,) = spool.add([[1.0, 2.0]])
    assert spool.spool.client_id.encode() not in bound.data
    assert read_header(bound.data).id.stream != spool.spool.stream
    spool.spool.close()


def test_the_randomness_of_reports_is_not_the_jitters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_client.encoding import ReportEncoder
    from hushsum.entropy import OsEntropy

    asked: list[object] = []

    def reports(_: Plan, __: object, ___: object, entropy: object) -> tuple[object, int]:
        asked.append(entropy)
        return np.zeros(1, np.int64), 0

    monkeypatch.setattr("hushsum.local.reports.reports", reports)
    ReportEncoder(REPORT).encode([[1.0, 2.0]], 7, None)
    assert [type(each) for each in asked] == [OsEntropy]
