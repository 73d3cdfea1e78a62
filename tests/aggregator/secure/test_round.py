"""One round of this process, with the protocol's own clients and a clock that the test moves."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from aggregator.errors import RefusedError
from aggregator.model import RoundMembers
from aggregator.runtime import SystemRuntime
from aggregator.secure.cohorts import CallKey
from aggregator.secure.coordinator import outcome_of
from aggregator.secure.round import (
    UNREAD_MAX,
    UPLOADS_MAX,
    Participant,
    RoundClaims,
    RoundDriver,
    RoundEnd,
    RoundSettings,
)
from hushsum import Plan
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.server import Effect, Event, ServerRound
from hushsum_proto.rounds import (
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    RoundResult,
    VectorChunk,
    Waiting,
)
from tests.aggregator.secure_clients import SecureClient, VanishedError, fleet_of
from tests.aggregator.secure_crowd import Crowd, crowd_of
from tests.aggregator.secure_site import SIZE, plan_of, total
from tests.doubles import ManualRuntime
from tests.plans import small_plan
from tests.services import WINDOW

PLAN = plan_of()
ROUND = bytes(range(32))
SETTINGS = RoundSettings(step_s=20.0, upload_s=120.0, manual=True)


class NoClaims(RoundClaims):
    """A store that lets every client in, and a ledger that pays for every window."""

    def __init__(self) -> None:
        pass

    async def claim(self, window: int, members: RoundMembers, is_wanted: Callable[[], bool]) -> frozenset[str]:
        return frozenset()

    async def charge(self, window: int, members: RoundMembers) -> None:
        pass

    async def release(self, window: int, members: RoundMembers) -> None:
        pass


def round_of(
    plan: Plan, names: list[str], runtime: ManualRuntime | SystemRuntime, settings: RoundSettings = SETTINGS
) -> RoundDriver:
    participants = [Participant(CallKey(name, number), WINDOW) for number, name in enumerate(names)]
    return RoundDriver(
        plan,
        ROUND,
        participants,
        is_drawn=True,
        claims=NoClaims(),
        runtime=runtime,
        settings=settings,
        directory=None,
    )


class LocalLine:
    """A client's line straight into a round."""

    def __init__(self, ongoing: RoundDriver, client_id: str) -> None:
        self._round = ongoing
        self._part = ongoing.participants[client_id]
        self._replies = self._part.replies()

    async def say(self, request: RoundRequest) -> None:
        await asyncio.sleep(0)  # as on a network, others come between
        if isinstance(request, Message):
            await self._round.message(self._part, request)
        elif isinstance(request, VectorChunk):
            await self._round.chunk(self._part, request)
        else:
            assert isinstance(request, Enter)

    async def hear(self) -> RoundReply:
        return await anext(self._replies)

    def cut(self) -> None:
        self._round.left(self._part)


class Site:
    """A round and its clients, all of them under way."""

    def __init__(
        self,
        plan: Plan,
        fleet: list[SecureClient],
        runtime: ManualRuntime | None = None,
        settings: RoundSettings = SETTINGS,
    ) -> None:
        self.runtime = ManualRuntime() if runtime is None else runtime
        self.round = round_of(plan, [client.client_id for client in fleet], self.runtime, settings)
        self.lines = {client.client_id: LocalLine(self.round, client.client_id) for client in fleet}
        self.fleet = fleet
        self.running = asyncio.ensure_future(self.round.run())
        self.clients = [
            asyncio.ensure_future(client.take_part_on(self.lines[client.client_id], WINDOW)) for client in fleet
        ]

    async def end(self) -> RoundEnd:
        """The round's end, without any time that passes."""
        await self.runtime.settle(2000)
        assert self.running.done(), "it waits for something"
        return self.running.result()

    async def outcome(self, client: SecureClient) -> RoundOutcome | BaseException:
        task = self.clients[self.fleet.index(client)]
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return result

    async def close(self) -> None:
        for part in self.round.participants.values():
            part.end(outcome_of(ROUND, RoundResult.UNKNOWN))
        await asyncio.gather(*self.clients, return_exceptions=True)
        self.running.cancel()


@asynccontextmanager
async def site_of(fleet: list[SecureClient]) -> AsyncIterator[Site]:
    site = Site(PLAN, fleet)
    try:
        yield site
    finally:
        await site.close()


async def test_a_round_ends_with_the_sum_of_its_clients(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    async with site_of(fleet) as site:
        end = await site.end()
        assert end.sum is not None
        assert end.sum.submissions == SIZE
        counters, counts = PLAN.words.centred(end.sum.words)
        assert (np.concatenate((counters, counts)) == total(fleet)).all()
        assert site.round.granted == site.round.spent == {client.client_id for client in fleet}
        assert site.round.uploads.held_bytes == 0


async def test_no_more_than_a_few_vectors_are_held_at_a_time(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    held: list[int] = []
    async with site_of(fleet) as site:
        add = site.round.uploads.add

        def watched(client_id: str, offset: int, data: bytes) -> bytes | None:
            found = add(client_id, offset, data)
            held.append(site.round.uploads.held_bytes)
            return found

        site.round.uploads.add = watched  # type: ignore[method-assign]  # it is looked at, and goes on
        await site.end()
    assert PLAN.words.bytes < max(held) <= UPLOADS_MAX * PLAN.words.bytes


async def test_a_client_that_does_not_read_is_let_go_and_the_round_goes_on(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    part = Participant(CallKey("slow", 0), WINDOW)
    told = [part.tell(Waiting(SIZE)) for _ in range(UNREAD_MAX + 1)]
    assert told == [True] * UNREAD_MAX + [False]
    with pytest.raises(RefusedError, match="unread messages"):
        await anext(part.replies())

    async with site_of(fleet) as site:
        slow = site.round.participants[fleet[0].client_id]
        fleet[0].silent_at = Kind.GRANT  # it hears nothing from here on, and its messages pile up
        await site.runtime.settle(2000)
        site.clients[0].cancel()
        while slow.tell(Waiting(SIZE)):
            pass
        assert slow.has_ended
        site.round.left(slow)
        end = await site.end()
        assert end.sum is not None
        assert end.sum.submissions == SIZE - 1


async def test_what_a_client_was_not_granted_or_sends_twice_puts_it_out_alone(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[0].silent_at = fleet[1].silent_at = Kind.GRANT
    async with site_of(fleet) as site:
        await site.runtime.settle(2000)
        await site.lines[fleet[7].client_id].say(VectorChunk(0, b"0"))
        assert "not requested" in str(await site.outcome(fleet[7]))
        granted = site.lines[fleet[0].client_id]
        await granted.say(VectorChunk(0, b"0"))
        await granted.say(VectorChunk(0, b"0"))
        assert "expected 1" in str(await site.outcome(fleet[0]))
        await site.lines[fleet[1].client_id].say(Message(b"nonsense"))
        refused = await site.outcome(fleet[1])
        assert isinstance(refused, RefusedError)
        assert refused.refusal.reason == "malformed"
        end = await site.end()
        # Too few are left of eight: the round fails, and tells what it cost.
        assert end.sum is None
        assert not end.again
        assert site.round.dropped == {client.client_id for client in (fleet[0], fleet[1], fleet[7])}


async def test_a_step_that_is_waited_for_in_vain_ends_and_takes_the_silent_along_no_more(
    rng: np.random.Generator,
) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[3].silent_at = Kind.OPENINGS
    async with site_of(fleet) as site:
        await site.runtime.advance(SETTINGS.step_s - 1)
        assert not site.running.done()
        await site.runtime.advance(1.5)
        end = await site.end()
        assert (end.sum, end.again) == (None, True)
        there = {participant.client_id for participant in site.round.present}
        assert there == {client.client_id for client in fleet} - {fleet[3].client_id}
        assert "no message received within secure_step_s" in str(await site.outcome(fleet[3]))


async def test_a_client_that_is_cut_off_costs_the_others_nothing_and_is_no_silent_one(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[3].vanishes_at = Kind.OPENINGS
    async with site_of(fleet) as site:
        end = await site.end()
        assert isinstance(await site.outcome(fleet[3]), VanishedError)
        assert (end.sum, end.again) == (None, True)
        assert len(site.round.present) == SIZE - 1


async def test_a_client_that_is_cut_off_right_after_its_vector_is_a_survivor(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    async with site_of(fleet) as site:
        part, chunk = site.round.participants[fleet[0].client_id], site.round.chunk

        async def cut_off(sender: Participant, sent: VectorChunk) -> None:
            if sender is part and sent.offset + len(sent.data) == PLAN.words.bytes:
                asyncio.get_running_loop().call_soon(site.clients[0].cancel)
            await chunk(sender, sent)

        site.round.chunk = cut_off  # type: ignore[method-assign,assignment]  # the connection breaks while its last chunk is handled
        end = await site.end()
        assert end.sum is not None
        assert fleet[0].client_id in end.sum.survivors
        assert site.round.dropped == {fleet[0].client_id}
        assert fleet[0].outcome is None


async def test_an_upload_has_its_own_time_and_the_next_client_then_has_its_turn(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[0].silent_at = Kind.GRANT
    async with site_of(fleet) as site:
        await site.runtime.advance(SETTINGS.upload_s - 1)
        assert not site.running.done()
        await site.runtime.advance(1.5)
        end = await site.end()
        assert end.sum is not None
        assert fleet[0].client_id not in end.sum.survivors
        late = RoundOutcome(ROUND, RoundResult.LEFT_OUT, "the vector did not arrive in time")
        assert await site.outcome(fleet[0]) == late


async def test_a_round_that_is_aborted_says_why_and_handles_nothing_more(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[3].silent_at = Kind.OPENINGS
    async with site_of(fleet) as site:
        await site.runtime.settle()
        site.round.abort("the window was sealed", RoundResult.LATE)
        site.round.abort("the service is shutting down")
        end = await site.end()
        assert (end.sum, end.why, end.result) == (None, "the window was sealed", RoundResult.LATE)
        await site.lines[fleet[3].client_id].say(Message(b"too late"))
        assert not site.round.participants[fleet[3].client_id].has_ended


async def test_a_machine_that_breaks_ends_its_round_and_nothing_else(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: ServerRound, event: Event) -> list[Effect]:
        raise RuntimeError(f"ours: {type(event)}")

    monkeypatch.setattr(ServerRound, "handle", broken)
    async with site_of(fleet_of(PLAN, SIZE, rng)) as site:
        end = await site.end()
        assert (end.sum, end.again, end.result) == (None, False, RoundResult.ABORTED)
        assert end.why == "internal error; see the service's log"


# ------------------------------------------------------------------------------------------------------------ memory

CLIENTS, COUNTERS, CHUNK_BYTES = 20, 200_000, 1 << 15
LARGE = small_plan(
    sketch={"rows": 1, "buckets": COUNTERS},
    privacy={
        "mode": "secure",
        "unit": "client",
        "records_per_client": 3,
        "total_delta": "0.001",
        "secure": {"cohort": CLIENTS, "corrupt": "0.1", "dropout": "0.2"},
    },
)


SMALL = CLIENTS * CLIENTS * 600 + 4 * CHUNK_BYTES  # bytes, of what is held of clients and their neighbours


async def test_a_round_holds_a_few_vectors_however_many_clients_send_theirs() -> None:
    names = [f"client-{number}" for number in range(CLIENTS)]
    with crowd_of(LARGE.bundle, CLIENTS, WINDOW, ROUND) as crowd:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            end = await _play(crowd, names)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert end.sum is not None
    assert end.sum.submissions == CLIENTS
    vector = LARGE.words.length * LARGE.words.dtype.itemsize
    assert vector < peak - before < 4 * vector + SMALL


async def _play(crowd: Crowd, names: list[str]) -> RoundEnd:
    """A round with the clients of another process, each message handled as it comes."""
    ongoing = round_of(LARGE, names, SystemRuntime(threads=1))
    playing = [asyncio.ensure_future(_pass_on(crowd, ongoing, number, name)) for number, name in enumerate(names)]
    end = await ongoing.run()
    for part in ongoing.participants.values():
        part.end(outcome_of(ROUND, RoundResult.UNKNOWN))
    await asyncio.gather(*playing)
    return end


async def _pass_on(crowd: Crowd, ongoing: RoundDriver, number: int, name: str) -> None:
    part = ongoing.participants[name]
    async for reply in part.replies():
        if isinstance(reply, Message):
            kind = Kind(reply.data[1])
            said = crowd.begin(number) if kind is Kind.INVITATION else crowd.hear(number, reply.data)
            for data in said:
                await ongoing.message(part, Message(data))
            offset = 0
            while kind is Kind.GRANT and offset < LARGE.words.bytes:
                offset = await _send_chunk(crowd, ongoing, number, part, offset)


async def _send_chunk(crowd: Crowd, ongoing: RoundDriver, number: int, part: Participant, offset: int) -> int:
    """Sends one, keeps nothing of it, and says where the next one begins."""
    chunk = VectorChunk(offset, crowd.chunk(number, offset, CHUNK_BYTES))
    await ongoing.chunk(part, chunk)
    return offset + len(chunk.data)
