"""Plans with ``window.late = "next"``: the device binds a late delta to a later window, and it counts once."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge_client import Config, EdgeClient, Event, NotCountedError, SpoolError
from edge_client.encoding import moved, split
from edge_client.spool.changes import Add, Change, PackedDelta, Rebind, Result
from edge_client.status import Counts, EventKind, SendStats
from hushsum import Plan
from hushsum.delta import Delta, DeltaId, read_header, rebound
from hushsum.errors import ContributionError, DeltaError, PlanError, Reason
from hushsum_proto.answers import Answer, Refusal, Status
from tests.aggregator.deltas import windowed_plan
from tests.edge_client.clocks import until
from tests.edge_client.model_service import ModelService
from tests.edge_client.spools import opened
from tests.edge_client.test_client import FixedClock
from tests.plans import secure_plan, small_plan, tables

NEXT = {"late": "next"}
PLAN = small_plan(window=NEXT)
OF_CLIENTS = small_plan(window=NEXT, privacy={"unit": "client", "records_per_client": 3})
CONFIG = Config(backoff_first_s=0.01, backoff_longest_s=0.05, first_contact_s=120.0, call_timeout_s=120.0)
RECORDS = np.array([[1.0, 2.0], [3.0, 4.0]])
WINDOW = PLAN.window.index_at(FixedClock().at_ms)


class LateService(ModelService):
    """Answers ``late``, or another status, for windows before one of its choice."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.open_from, self.status = WINDOW, Status.LATE
        self.asked: list[tuple[int, DeltaId]] = []
        take = self.fold.take

        def taken(client_id: str, data: bytes) -> Answer:
            header = read_header(data)
            self.asked.append((header.window, header.id))
            return Answer(header.id, self.status) if header.window < self.open_from else take(client_id, data)

        self.fold.take = taken  # type: ignore[method-assign]  # a fold whose windows are over


@pytest.fixture
async def runtime() -> AsyncIterator[FixedClock]:
    clock = FixedClock()
    yield clock
    clock.close()


async def served(plan: Plan, runtime: FixedClock) -> LateService:
    service = LateService(plan)
    service.clock_ms = runtime.now_ms
    await service.start()
    return service


# --------------------------------------------------------------------------------------------------------- the plan


def test_the_key_is_in_a_plan_s_bytes_only_where_it_is_set_and_needs_mode_central() -> None:
    assert small_plan(window={"late": "drop"}).id == small_plan().id
    assert b'"late":"next"' in PLAN.to_bytes()
    assert Plan.from_bytes(PLAN.to_bytes()).window.late == "next"
    with pytest.raises(PlanError, match=r"window\.late: got 'soon'"):
        small_plan(window={"late": "soon"})
    local = tables(privacy={"mode": "local", "local": {"form": "silo"}}, window=NEXT)
    for make in (partial(secure_plan, window=NEXT), partial(Plan.from_fields, local)):
        with pytest.raises(
            PlanError, match=r"window\.late: got 'next', expected 'drop' with modes 'secure' and 'local'"
        ):
            make()


# -------------------------------------------------------------------------------------------------------- the spool


def test_a_rebound_delta_has_the_bytes_that_it_would_have_been_packed_to() -> None:
    ids = DeltaId(2**64 - 1, 300), DeltaId(7, 2**40)
    data = split(PLAN, RECORDS, -70).deltas[0].pack(ids[0])
    other = split(PLAN, RECORDS, 5).deltas[0].pack(ids[1])
    assert rebound(data, ids[1], 5) == other
    assert Delta.unpack(other, PLAN).records == 2


def rebind(plan: Plan, sequence: int, window: int) -> Rebind:
    return Rebind(sequence, "late", lambda data: moved(plan, data, window))


def test_a_late_delta_is_removed_and_added_in_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = opened(path)
    spool.commit([split(PLAN, RECORDS, 5)])
    size = spool._state.bytes
    spool._database.execute("CREATE TRIGGER full BEFORE DELETE ON deltas BEGIN SELECT RAISE(FAIL, 'disk'); END")
    with pytest.raises(SpoolError, match="disk"):
        spool.commit([rebind(PLAN, 0, 9)])
    spool._database.execute("DROP TRIGGER full")
    assert spool.unanswered() == (0,)
    (stored,) = spool.commit([rebind(PLAN, 0, 9)])
    spool.close()
    again = opened(path)
    assert again.unanswered() == (1,)
    assert again.load(0, 9, 2**20) == stored
    assert [read_header(delta.data).window for delta in again.load(0, 9, 2**20)] == [9]
    assert (again._state.bytes, again.tallies["deltas_moved"], again.tallies["late"]) == (size, 1, 0)
    again.commit([rebind(PLAN, 1, 3)])  # a service whose clock is behind
    assert [read_header(delta.data).window for delta in again.load(0, 9, 2**20)] == [10]


@pytest.mark.parametrize(("before", "is_moved"), [(1, True), (2, False)])
def test_a_moved_delta_counts_against_the_bound_of_its_new_window(tmp_path: Path, before: int, is_moved: bool) -> None:
    spool = opened(tmp_path / "spool.db")
    spool.commit([split(OF_CLIENTS, RECORDS, 5), split(OF_CLIENTS, np.ones((before, 2)), 9)])
    spool.commit([rebind(OF_CLIENTS, 0, 9)])
    told = Counts.of(spool.tallies, SendStats())
    assert (told.deltas_moved, told.late, told.deltas) == ((1, 0, 2) if is_moved else (0, 1, 2))
    assert spool.unanswered() == ((1, 2) if is_moved else (1,))
    assert spool.rows("SELECT window, records FROM contributions ORDER BY window") == [
        (5, 0),
        (9, 3 if is_moved else 2),
    ]


def test_a_client_adds_to_so_many_windows_and_then_falls_silent(tmp_path: Path) -> None:
    plan, path = windowed_plan(2), tmp_path / "spool.db"
    spool = opened(path)

    def add(window: int) -> None:
        ((result,),) = [spool.commit([split(plan, RECORDS, window)])]
        if isinstance(result, Exception):
            raise result

    for window in (5, 9, 5):
        add(window)
    spool.close()
    spool = opened(path)
    assert spool.windows == 2
    with pytest.raises(ContributionError, match=r"has added records to 2 windows, the plan allows 2 a client"):
        add(7)
    add(9)
    # While others of its deltas may count in window 5, a third window is one too many; the last one takes its place.
    spool.commit([rebind(plan, 0, 11), rebind(plan, 2, 11)])
    assert spool.rows("SELECT window FROM contributions WHERE records > 0") == [(9,), (11,)]
    told = Counts.of(spool.tallies, SendStats())
    assert (told.deltas_moved, told.late, spool.windows) == (1, 1, 2)


def test_room_for_others_does_not_change_with_a_move(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    addition = split(PLAN, RECORDS, 5)
    spool.commit([replace(addition, price=5000)])
    spool.commit([rebind(PLAN, 0, 2**40)])
    assert spool.rows("SELECT room FROM deltas") == [(5000,)]


def test_a_late_delta_that_cannot_be_packed_anew_is_counted_as_late(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    spool.commit([split(OF_CLIENTS, RECORDS, 5)])

    def pack(_: DeltaId) -> bytes:
        raise DeltaError(Reason.MALFORMED, "its bytes are damaged")

    def addition(data: bytes) -> Add:
        return replace(moved(OF_CLIENTS, data, 9), deltas=(PackedDelta(2, pack),))

    assert spool.commit([Rebind(0, "late", addition), split(OF_CLIENTS, RECORDS, 9)])[0] == ()
    told = Counts.of(spool.tallies, SendStats())
    assert (told.deltas_moved, told.late, spool.unanswered()) == (0, 1, (1,))
    assert spool.rows("SELECT window FROM contributions WHERE records > 0") == [(5,), (9,)]


# ------------------------------------------------------------------------------------------------------- the client


async def test_a_late_delta_is_counted_once_in_the_window_that_the_service_has_open(
    tmp_path: Path, runtime: FixedClock
) -> None:
    service, heard = await served(PLAN, runtime), list[Event]()
    client = EdgeClient(service.target, spool=tmp_path / "s.db", config=CONFIG, runtime=runtime, on_event=heard.append)
    async with client:
        for behind in (3, 3, 0):
            await client.add(RECORDS, time=runtime.at_ms - behind * 3_600_000)
        await client.flush()  # which raises nothing, and waits for what was moved
        assert service.fold.windows == {WINDOW: 6}
        assert not client.status().queued
    status = client.status()
    assert (status.deltas, status.deltas_moved, status.acknowledged, status.late) == (3, 2, 3, 0)
    assert [event.kind for event in heard].count(EventKind.MOVED) == 2
    assert EventKind.LATE not in [event.kind for event in heard]
    await service.stop()


async def test_a_delta_that_moved_to_a_window_that_has_not_begun_is_sent_again_once_it_has(
    tmp_path: Path, runtime: FixedClock
) -> None:
    plan = small_plan(window={"late": "next", "length": "2s"})
    service, began = await served(plan, runtime), runtime.monotonic()
    service.clock_ms = lambda: runtime.at_ms + round(1000 * (runtime.monotonic() - began))
    window = plan.window.index_at(runtime.at_ms)
    service.open_from = window + 1  # this one is sealed early
    take = service.fold.take

    def taken(client_id: str, data: bytes) -> Answer:
        header = read_header(data)
        if header.window <= plan.window.index_at(service.clock_ms()):
            return take(client_id, data)
        return Answer(header.id, Status.REFUSED, Refusal.of(Reason.WINDOW_IN_FUTURE, "not yet"))

    service.fold.take = taken  # type: ignore[method-assign]  # a gateway that goes by its clock
    async with EdgeClient(service.target, spool=tmp_path / "s.db", config=CONFIG, runtime=runtime) as client:
        await client.add(RECORDS)
        await client.flush(timeout_s=120.0)
    status = client.status()
    assert (status.deltas, status.deltas_moved, status.acknowledged, status.refused) == (1, 1, 1, {})
    assert service.fold.windows == {window + 1: 2}
    await service.stop()


async def test_only_a_definitive_late_moves_a_delta(tmp_path: Path, runtime: FixedClock) -> None:
    service = await served(PLAN, runtime)
    service.status = Status.UNKNOWN
    async with EdgeClient(service.target, spool=tmp_path / "s.db", config=CONFIG, runtime=runtime) as client:
        await client.add(RECORDS, time=runtime.at_ms - 3_600_000)
        with pytest.raises(NotCountedError, match="unknown"):
            await client.flush()
    assert (client.status().unknown, client.status().deltas_moved, len(service.asked)) == (1, 0, 1)
    await service.stop()


async def test_a_device_that_ends_before_the_move_is_durable_moves_it_at_its_next_start(
    tmp_path: Path, runtime: FixedClock
) -> None:
    service = await served(PLAN, runtime)
    path = tmp_path / "s.db"
    client = EdgeClient(service.target, spool=path, config=replace(CONFIG, close_flush_s=0.0), runtime=runtime)
    async with client:
        spool = client._spool
        assert spool is not None
        await client.add(RECORDS, time=runtime.at_ms - 3_600_000)
        add = spool.commit
        spool.commit = _failing  # type: ignore[method-assign]  # the disk takes nothing from here on
        await until(lambda: bool(service.asked), "it was answered")
    spool.commit = add  # type: ignore[method-assign]  # nothing more is written
    assert not service.fold.windows
    async with EdgeClient(service.target, spool=path, config=CONFIG, runtime=runtime) as again:
        await again.flush()
    assert service.fold.windows == {WINDOW: 2}
    late, new = {id for window, id in service.asked if window < WINDOW}, [id for w, id in service.asked if w == WINDOW]
    assert len(late) == len(new) == 1
    assert late.isdisjoint(new)
    status = again.status()
    assert (status.deltas, status.deltas_moved, status.acknowledged) == (1, 1, 1)
    await service.stop()


async def test_an_answer_that_the_spool_refuses_ends_the_session_and_loses_nothing(
    tmp_path: Path, runtime: FixedClock
) -> None:
    service, path = await served(PLAN, runtime), tmp_path / "s.db"
    async with EdgeClient(service.target, spool=path, config=CONFIG, runtime=runtime) as client:
        spool = client._spool
        assert spool is not None
        commit = spool.commit

        def refusing(changes: Sequence[Change]) -> list[Result]:
            return [SpoolError("no") if type(it) is Rebind else commit([it])[0] for it in changes]

        spool.commit = refusing  # type: ignore[method-assign]  # no real transaction refuses an answer
        await client.add(RECORDS, time=runtime.at_ms - 3_600_000)
        with pytest.raises(SpoolError, match="the answer to delta 0 cannot be stored: no"):
            await client.flush(timeout_s=120.0)
    async with EdgeClient(service.target, spool=path, config=CONFIG, runtime=runtime) as again:
        await again.flush()
    assert service.fold.windows == {WINDOW: 2}
    await service.stop()


def _failing(changes: Sequence[Change]) -> list[Result]:
    raise SpoolError("spool: the disk is full")
