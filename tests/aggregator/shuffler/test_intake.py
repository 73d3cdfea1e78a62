"""The way in: what is refused and with which word, what is acknowledged and when, and that no name goes further."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import RefusedError, StoreError
from aggregator.ingest.group_commit import CommitLimits
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import BATCH_COST_MIN, RateLimits
from aggregator.shuffler.intake import Intake, PoolWriter
from aggregator.shuffler.reports_file import PoolAnswer, ReportsFile, TakenBatch
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, ServiceReason, Status
from tests.aggregator.shuffler.shuffled import PLAN, bytes_in, opened, packed, shuffled_plan
from tests.doubles import ManualRuntime

NAME = "device-of-somebody-4711"
OTHER = shuffled_plan(21)


class Door:
    """An intake that runs."""

    def __init__(self, file: ReportsFile, runtime: ManualRuntime, rates: RateLimits, limits: CommitLimits) -> None:
        self.file, self.runtime, self.metrics = file, runtime, Metrics()
        self.window = PLAN.window.index_at(runtime.now_ms())
        writer = PoolWriter(PLAN, file, runtime, self.metrics, limits)
        self.intake = Intake(PLAN, writer, rates=rates, runtime=runtime, metrics=self.metrics, skew_ms=0)

    async def send(self, data: bytes, plan_id: bytes = PLAN.id, name: str = NAME) -> Answer:
        return await self.intake.submit(ReceivedDelta(name, plan_id, data))

    def batch(self, *reports: int, ahead: int = 0, stream: int = 1) -> bytes:
        return packed(reports or (1, 2, 3), window=self.window + ahead, stream=stream)


@asynccontextmanager
async def door_at(folder: Path, *, burst: int = 1 << 20, entries_max: int = 100) -> AsyncIterator[Door]:
    runtime = ManualRuntime()
    file = await opened(folder, runtime)
    door = Door(file, runtime, RateLimits(1.0, burst), CommitLimits(entries_max, 1 << 20, 64, 1 << 20))
    door.intake.start()
    try:
        yield door
    finally:
        await door.intake.finish()
        await file.close()


def reason_of(answer: Answer) -> object:
    assert answer.status is Status.REFUSED
    assert answer.refusal is not None
    return answer.refusal.reason


async def test_a_batch_is_acknowledged_and_its_resend_as_well_and_counted_once(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        for _ in range(2):
            assert (await door.send(door.batch(5, 5, 9))).status is Status.ACKNOWLEDGED
        await door.file.close_through(door.window)
        assert (await door.file.pool(door.window)).reports().tolist() == [5, 5, 9]


async def test_nothing_is_acknowledged_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door_at(tmp_path) as door:
        held, take = asyncio.Event(), door.file.take

        async def slow(batches: Sequence[TakenBatch]) -> list[PoolAnswer | Reason]:
            await held.wait()
            return await take(batches)

        monkeypatch.setattr(door.file, "take", slow)
        answer = asyncio.ensure_future(door.send(door.batch()))
        await door.runtime.settle()
        assert not answer.done()
        held.set()
        assert (await answer).status is Status.ACKNOWLEDGED


async def test_a_file_that_fails_is_answered_unavailable_and_the_resend_gets_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door_at(tmp_path) as door:

        async def broken(_: Sequence[TakenBatch]) -> list[PoolAnswer | Reason]:
            raise StoreError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(door.file, "take", broken)
            assert reason_of(await door.send(door.batch())) is ServiceReason.UNAVAILABLE
        assert (await door.send(door.batch())).status is Status.ACKNOWLEDGED


async def test_a_caller_that_fails_with_its_answer_takes_none_from_the_others_of_its_group(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        answers: list[Answer] = []

        def broken(_: Answer) -> None:
            raise RuntimeError("planted")

        for stream, tell in enumerate((broken, answers.append), 1):
            door.intake.send(ReceivedDelta(NAME, PLAN.id, door.batch(stream=stream)), tell)
        await door.runtime.settle()
        answers.append(await door.send(door.batch(stream=3)))  # the writer goes on
        assert [answer.status for answer in answers] == [Status.ACKNOWLEDGED] * 2


async def test_what_is_no_batch_of_this_plan_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        whole = door.batch()
        assert reason_of(await door.send(whole[:-1])) is Reason.MALFORMED
        assert reason_of(await door.send(bytes(PLAN.upload_bytes_max + 1))) is Reason.TOO_LARGE
        assert reason_of(await door.send(whole, plan_id=OTHER.id)) is Reason.WRONG_PLAN
        of_other = packed([1], window=door.window, stream=1, plan=OTHER)
        assert reason_of(await door.send(of_other, plan_id=PLAN.id)) is Reason.WRONG_PLAN
        unordered = whole[:-4] + whole[-2:] + whole[-4:-2]
        assert reason_of(await door.send(unordered)) is Reason.MALFORMED
        assert reason_of(await door.send(door.batch(ahead=1))) is Reason.WINDOW_IN_FUTURE


async def test_an_id_that_comes_with_other_bytes_is_refused(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        await door.send(door.batch(1))
        assert reason_of(await door.send(door.batch(2))) is Reason.ID_REUSED


async def test_after_the_cut_a_new_batch_is_late_and_a_known_one_is_not(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        await door.send(door.batch(1))
        await door.runtime.advance(15)
        await door.file.close_through(door.window)
        assert (await door.send(door.batch(1))).status is Status.ACKNOWLEDGED
        assert (await door.send(door.batch(1, stream=2))).status is Status.LATE
        assert (await door.send(door.batch(1, ahead=-9, stream=3))).status is Status.UNKNOWN


async def test_a_client_beyond_its_rate_is_told_when_to_come_again_and_others_are_not(tmp_path: Path) -> None:
    async with door_at(tmp_path, burst=10) as door:
        many = tuple(range(200))
        assert (await door.send(door.batch(*many))).status is Status.ACKNOWLEDGED
        answer = await door.send(door.batch(1, stream=2))
        assert reason_of(answer) is ServiceReason.RATE_LIMITED
        assert answer.refusal is not None
        assert 190_000 <= answer.refusal.retry_after_ms <= 200_000
        assert (await door.send(door.batch(1, stream=3), name="another")).status is Status.ACKNOWLEDGED


async def test_a_batch_of_one_report_costs_as_many_as_it_takes_room_for(tmp_path: Path) -> None:
    async with door_at(tmp_path, burst=10) as door:
        assert (await door.send(door.batch(1))).status is Status.ACKNOWLEDGED
        answer = await door.send(door.batch(1, stream=2))
        assert reason_of(answer) is ServiceReason.RATE_LIMITED
        assert answer.refusal is not None
        assert answer.refusal.retry_after_ms == 1000 * (BATCH_COST_MIN - 10) + 1


async def test_what_cannot_be_unpacked_costs_its_sender_and_what_is_not_looked_at_does_not(tmp_path: Path) -> None:
    async with door_at(tmp_path, burst=10) as door:
        for _ in range(3):
            assert reason_of(await door.send(bytes(PLAN.upload_bytes_max + 1))) is Reason.TOO_LARGE
            assert reason_of(await door.send(door.batch(ahead=1))) is Reason.WINDOW_IN_FUTURE
        assert reason_of(await door.send(door.batch()[:-1])) is Reason.MALFORMED
        assert reason_of(await door.send(door.batch())) is ServiceReason.RATE_LIMITED


async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door_at(tmp_path, burst=10, entries_max=1) as door:
        held, take = asyncio.Event(), door.file.take

        async def slow(batches: Sequence[TakenBatch]) -> list[PoolAnswer | Reason]:
            await held.wait()
            return await take(batches)

        monkeypatch.setattr(door.file, "take", slow)
        first = asyncio.ensure_future(door.send(door.batch(1)))
        await door.runtime.settle()
        for _ in range(3):  # which costs nothing
            assert reason_of(await door.send(door.batch(1, stream=2), name="b")) is ServiceReason.OVERLOADED
        held.set()
        assert (await first).status is Status.ACKNOWLEDGED


async def test_a_stop_answers_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    async with door_at(tmp_path) as door:
        accepted = asyncio.ensure_future(door.send(door.batch(1)))
        await asyncio.sleep(0)
        door.intake.stop_accepting()
        with pytest.raises(RefusedError, match="shutting down"):
            door.intake.check_running()
        assert reason_of(await door.send(door.batch(2, stream=2))) is ServiceReason.SHUTTING_DOWN
        await door.intake.finish()
        assert (await accepted).status is Status.ACKNOWLEDGED


async def test_no_name_and_no_batch_is_in_the_files_the_journal_or_the_metrics(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    from prometheus_client import generate_latest

    async with door_at(tmp_path) as door:
        sent = [door.batch(*rng.integers(0, 1280, 60).tolist(), stream=7 << 50 | n) for n in range(8)]
        for n, data in enumerate(sent):
            assert (await door.send(data, name=f"{NAME}-{n}")).status is Status.ACKNOWLEDGED
            assert (tmp_path / "shuffler.db-wal").stat().st_size == 0
        await door.send(sent[0][:-1], name=f"{NAME}-bad")
        shown = capsys.readouterr()
        everything = bytes_in(tmp_path) + generate_latest(door.metrics.registry) + (shown.out + shown.err).encode()
        assert NAME.encode() not in everything
        assert all(data[-40:] not in everything for data in sent)
        for n in range(8):  # in the file alone, and beside no report
            stream = (7 << 50 | n).to_bytes(8, "big")
            assert everything.count(stream) == 1
