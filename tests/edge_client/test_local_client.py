"""A device in local mode beside a service that lies: what it has randomised once leaves in those bytes alone."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from edge_client import (
    AbsentWarning,
    AccountError,
    Config,
    EdgeClient,
    EdgeError,
    NotCountedError,
    Policy,
    PolicyError,
    RefusedError,
)
from edge_client.silo.submissions import prepared
from edge_client.silo.submitter import SiloSubmitter
from hushsum import Plan
from hushsum.delta import DeltaId, read_header
from hushsum.errors import Reason
from hushsum.local import silo
from hushsum.signatures import SigningKey
from hushsum.signed_plan import SignedPlan
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from tests.edge_client.clocks import HOUR, START, Clock, until
from tests.edge_client.local_plans import report_plan, silo_plan
from tests.edge_client.local_service import Kept, LocalService

CONFIG = Config(backoff_first_s=0.001, backoff_longest_s=0.002, close_flush_s=0.0, first_contact_s=5.0)
WINDOW = START // HOUR
SILO = silo_plan()
REPORT = report_plan()
MEMO = report_plan(memoise=True)
KEY = SigningKey(b"planner".ljust(32, b"."))

Lie = Callable[[DeltaId, int], Answer | None]


class RushingClock(Clock):
    """Stands still for the device, and lets it wait for nothing that is short."""

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds <= 2.5:
            self.seconds += seconds
            await asyncio.sleep(0)
        else:
            await super().sleep(seconds)


@pytest.fixture
async def clock() -> AsyncIterator[RushingClock]:
    clock = RushingClock()
    yield clock
    clock.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


async def started(plan: Plan, clock: Clock, kept: Kept | None = None) -> LocalService:
    service = LocalService(plan, kept)
    service.clock_ms = clock.now_ms
    await service.start()
    return service


def client_of(service: LocalService, path: Path, clock: Clock, policy: Policy | None = None) -> EdgeClient:
    return EdgeClient(service.target, spool=path, client_id="device", config=CONFIG, runtime=clock, policy=policy)


async def flushed_or_sent(client: EdgeClient, kept: Kept) -> None:
    """Flushes, and returns once that has ended, or something was sent that has no answer."""
    before = len(kept.received)
    task = asyncio.create_task(client.flush(60))
    await until(lambda: task.done() or len(kept.received) > before, "something was sent")
    if not task.done():
        await asyncio.wait([task], timeout=0.3)
    task.cancel()
    with suppress(NotCountedError, RefusedError, asyncio.CancelledError):
        await task


def refused(id: DeltaId, reason: Reason | ServiceReason) -> Answer:
    return Answer(id, Status.REFUSED, Refusal.of(reason, "a lie", 1))


LIES: dict[str, Lie] = {
    "late": lambda id, _: Answer(id, Status.LATE),
    "unknown": lambda id, _: Answer(id, Status.UNKNOWN),
    "refused": lambda id, _: refused(id, Reason.MALFORMED),
    "second delta": lambda id, _: refused(id, Reason.SECOND_DELTA),
    "too early": lambda id, _: refused(id, Reason.WINDOW_IN_FUTURE),
    "budget": lambda id, _: refused(id, ServiceReason.BUDGET),
    "busy at first": lambda id, before: refused(id, ServiceReason.OVERLOADED) if before < 3 else None,
    "rate at first": lambda id, before: refused(id, ServiceReason.RATE_LIMITED) if before < 3 else None,
    "no id at first": lambda _, before: Answer(None, Status.REFUSED) if before < 3 else None,
    "another's id at first": lambda id, before: (
        Answer(DeltaId(id.stream ^ 2, id.sequence), Status.ACKNOWLEDGED) if before < 1 else None
    ),
}


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
            assert client.account is not None
            assert len(client.account.spends) == 1
        await service.stop()
    assert len(kept.of_window(WINDOW)) == len(kept.ids()) == 1


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
        assert client.tallies.submissions_counted == client.tallies.submissions_spent == 1
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
    assert client.tallies.submissions_counted == 1


async def test_a_report_is_charged_before_it_is_sent(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    async with client_of(service, path, clock) as client:
        spool = client._started().spool

        def look(_: DeltaId, __: int) -> None:
            assert spool.rows("SELECT window FROM rounds") == [(WINDOW,)]

        service.lie = look
        await client.add([1.0, 2.0])
        await client.flush(30)
        assert client.tallies.acknowledged == 1
    await service.stop()


async def test_a_silo_submits_at_a_moment_that_no_record_decides(tmp_path: Path) -> None:
    moments = []
    for records in (0, 3000):
        clock = Clock()
        service = await started(SILO, clock)
        async with client_of(service, tmp_path / f"{records}.db", clock) as client:
            clock.pass_time(0)
            if records:
                await client.add(np.ones((records, 2)))
            taker = client._started().taker
            assert taker is not None
            taker._participation.keep([], clock.now_ms())  # the same moment for both
            moment_ms = SILO.window.end_ms(WINDOW) + 60_000
            taker._participation._turns[WINDOW] = taker._participation._first(WINDOW, clock.now_ms())
            taker._participation._turns[WINDOW].due_ms = moment_ms
            clock.pass_time((moment_ms - 1000 - clock.at_ms) / 1000)
            for _ in range(60):
                clock.pass_time(0.5)
                for _ in range(40):
                    await asyncio.sleep(0.0005)
                if client.tallies.submissions_spent:
                    break
            moments.append(clock.at_ms - moment_ms)
        await service.stop()
        clock.close()
    assert moments[0] == moments[1]
    assert 1_500 <= moments[0] <= 3_000


async def test_a_device_that_cannot_pay_takes_no_part_and_says_so(path: Path, clock: RushingClock) -> None:
    plan = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=1)
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
        await client.flush(30)
        clock.at_ms += HOUR
        with pytest.warns(AbsentWarning):
            await client.add([3.0, 4.0])
        with pytest.raises(NotCountedError, match="account does not pay"):
            await client.flush(30)
        await client.flush(30)
    await service.stop()
    assert len(service.kept.received) == 1
    assert client.tallies.records_absent == 1


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
        assert client.account is not None
        assert caught.value.left == client.account.left
        await client.add([5.0, 6.0], time=START)
        await client.flush(30)
    await service.stop()
    assert len(service.kept.received) == 2


async def test_a_late_submission_loses_its_window_and_flush_says_so_once(path: Path, clock: RushingClock) -> None:
    service = await started(SILO, clock)
    service.lie = LIES["late"]
    async with client_of(service, path, clock) as client:
        with pytest.raises(NotCountedError, match="late"):
            await client.flush(30)
        await client.flush(30)
    await service.stop()
    assert client.tallies.submissions_lost == client.tallies.late == 1


async def test_a_large_submission_goes_in_chunks_and_is_counted(path: Path, clock: RushingClock) -> None:
    wide = {"rows": 3000, "buckets": 256}
    plan = Plan.from_fields({**_fields(), "sketch": {**_fields()["sketch"], **wide}})
    assert plan.upload_bytes_max > 2**18
    service = await started(plan, clock)
    async with client_of(service, path, clock) as client:
        await client.flush(60)
    await service.stop()
    assert service.kept.large == 1
    (data,) = service.kept.received
    assert silo.unpack(data, plan).window == WINDOW


def _fields() -> dict[str, dict[str, object]]:
    from tests.plans import tables

    return tables(  # type: ignore[return-value]  # its name aside, all are tables
        privacy={"mode": "local", "local": {"form": "silo"}}, window={"length": "1h", "lateness": "20m"}
    )


# --------------------------------------------------------------------------------------------------- signed plans


def signed(plan: Plan, key: SigningKey = KEY) -> SignedPlan:
    return SignedPlan.sign(plan.bundle, key, "planner")


WANTS = Policy(signed_by=KEY.verify_key)


async def test_a_signature_is_kept_beside_the_plan_and_checked_at_every_start(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS):
        pass
    await service.stop()
    async with client_of(service, path, clock, WANTS) as client:  # offline
        await client.add([1.0, 2.0])
    stranger = Policy(signed_by=SigningKey(b"other".ljust(32, b".")).verify_key)
    with pytest.raises(PolicyError, match="signed_by"):
        await client_of(service, path, clock, stranger).__aenter__()


@pytest.mark.parametrize("by", [None, SigningKey(b"other".ljust(32, b"."))], ids=["nobody", "a stranger"])
async def test_a_plan_that_is_signed_by_nobody_who_counts_is_not_kept(
    path: Path, clock: RushingClock, by: SigningKey | None
) -> None:
    service = await started(REPORT, clock)
    service.signed = None if by is None else signed(REPORT, by)
    for _ in range(2):
        with pytest.raises(PolicyError, match="signed_by"):
            await client_of(service, path, clock, WANTS).__aenter__()
    await service.stop()
    with pytest.raises(EdgeError, match="holds no plan"):
        await EdgeClient(
            service.target, spool=path, config=Config(first_contact_s=0.01), runtime=clock, client_id="device"
        ).__aenter__()


async def test_a_spool_that_is_older_than_the_signature_fetches_it_once(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS) as client:
        await client.flush(30)
    await service.stop()
    async with client_of(service, path, clock, WANTS):
        pass  # offline
    assert len(service.kept.ids()) == 1


# ----------------------------------------------------------------------------------------------- planted mistakes


async def test_noise_drawn_anew_for_a_resend_would_be_seen(
    path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of one submission fails where a second one could be had."""
    monkeypatch.setattr("edge_client.submitted.require_part", lambda *_: 0)
    kept = Kept()
    service = await started(SILO, clock, kept)
    service.lie = LIES["late"]
    async with client_of(service, path, clock) as client:
        with suppress(NotCountedError):
            await client.flush(30)
        taker = client._started().taker
        assert isinstance(taker, SiloSubmitter)
        again = prepared(SILO, WINDOW, taker._submissions.pending(WINDOW), taker._secrets)
        with pytest.raises(EdgeError):  # the table of spends holds a window once, whoever asks
            await client._started().writer.put(again)
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
    from edge_client.reports import Randomising
    from hushsum.entropy import OsEntropy

    asked: list[object] = []

    def reports(_: Plan, __: object, ___: object, entropy: object) -> tuple[object, int]:
        asked.append(entropy)
        return np.zeros(1, np.int64), 0

    monkeypatch.setattr("edge_client.reports.encoding.reports", reports)
    Randomising(REPORT).addition([[1.0, 2.0]], 7, None)
    assert [type(each) for each in asked] == [OsEntropy]
