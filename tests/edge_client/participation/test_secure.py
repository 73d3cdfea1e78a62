"""A device in secure sums: over real gRPC with a real spool, beside services that lie, break, and are killed."""

import asyncio
import shutil
import sqlite3
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import override

from edge_client import (
    AbsentWarning,
    ClientStateError,
    Config,
    Counts,
    EdgeClient,
    FlushTimeoutError,
    NotCountedError,
    NotCountedWarning,
    PlanChangedError,
    Policy,
    SessionRefusedError,
    SettingsError,
    UnreachableError,
)
from edge_client.encoding import counters_of
from edge_client.participation.secure_sum import SecureMode, UnreadMessages
from edge_client.spool.plan_history import PlanHistory
from edge_client.spool.window_submissions import SecureSubmissions
from hushsum import Plan, Sketch, labels
from hushsum.entropy import Entropy, ReplayableEntropy
from hushsum.errors import ContributionError, KeyFileError, Reason
from hushsum.noise.polya import PolyaShare
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.messages import Kind, message_bytes_max
from hushsum.secure_sum.parameters import round_parameters
from hushsum.signed_plan import SignedPlan
from hushsum.signing import DIRECTORY_BYTES_MAX, Directory, SigningKey, digest_of
from hushsum_proto.answers import ServiceReason
from hushsum_proto.rounds import (
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    RoundResult,
    VectorChunk,
    Waiting,
    entry_parts,
)
from tests.edge_client.clocks import HOUR, MINUTE, START, Clock, until
from tests.edge_client.round_service import TOLD, RoundService, Seat, kind_of
from tests.edge_client.secure_plans import directory_of, keys_of, secure_plan
from tests.edge_client.spools import opened

CONFIG = Config(backoff_first_s=0.001, backoff_longest_s=0.002, close_flush_s=0.0, first_contact_s=5.0)
NAMES = ("device-a", "device-b", "device-c", "device-d", "device-e")
COMPANIONS = keys_of(NAMES[1:])
WINDOW = START // HOUR
#: Noise of this plan is zero but for 1 draw in 10^19: the sum is exactly that of the records.
EXACT = secure_plan(epsilon=1000, total_epsilon=10_000)
PLAN = secure_plan()
OUTCOME = "outcome"


class RushingClock(Clock):
    """Stands still for the device, and lets it wait for nothing: what is tried again is tried at once."""

    def __init__(self) -> None:
        super().__init__()
        self.flushing = True

    async def sleep(self, seconds: float) -> None:
        if seconds <= CONFIG.backoff_longest_s:
            self.at_ms += 1
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


async def started(plan: Plan = PLAN, seats: int = 1, directory: Directory | None = None) -> RoundService:
    service = RoundService(plan, seats=seats, directory=directory)
    service.companion_keys = COMPANIONS
    await service.start()
    return service


@pytest.fixture
async def service() -> AsyncIterator[RoundService]:
    model = await started()
    yield model
    await model.stop()


def client_of(
    service: RoundService,
    path: Path,
    clock: Clock,
    name: str = NAMES[0],
    key: SigningKey | None = None,
    policy: Policy | None = None,
) -> EdgeClient:
    return EdgeClient(service.target, spool=path, client_id=name, config=CONFIG, runtime=clock, key=key, policy=policy)


def said(service: RoundService) -> list[tuple[str, int]]:
    """What clients said up to their vector, and its sizes: companions may end a round before the rest has come."""
    sizes = [
        (Kind(each.data[1]).name if isinstance(each, Message) else "VECTOR", len(each.data))
        for each in service.heard
        if isinstance(each, Message | VectorChunk)
    ]
    return [(kind, size) for kind, size in sizes if kind not in {"CONSENT", "UNMASKING"}]


def vectors(service: RoundService, name: str = NAMES[0], window: int = WINDOW) -> int:
    """Rounds in which anything of this client's vector of the window came."""
    return sum(1 for client_id, of_window, _ in service.vectors if (client_id, of_window) == (name, window))


# ------------------------------------------------------------------------------------------------------------ honest


async def test_records_of_a_window_come_in_its_sum_once_and_nothing_else_leaves(
    path: Path, clock: RushingClock, rng: np.random.Generator
) -> None:
    service = await started(EXACT)
    records = rng.uniform(0, 10, (7, 2))
    async with client_of(service, path, clock) as client:
        await client.add(records[:4])
        await client.add(records[4:])
        assert service.entered.total() == 0  # adding is no reason to come
        await client.flush(20)
        await client.flush(20)
        with pytest.warns(AbsentWarning, match=f"1 records of window {WINDOW}"):
            await client.add(records[0])
        await client.flush(20)
        account = client.status().account
        assert account is not None
        assert [spend.window for spend in account.spends] == [WINDOW]
    await service.stop()
    (total,) = service.sums.values()
    sketch = Sketch(EXACT)
    sketch.add(records)
    counters, counts = EXACT.words.centred(total.words)
    np.testing.assert_array_equal(counters.reshape(-1), sketch.counters.reshape(-1))
    np.testing.assert_array_equal(counts, sketch.counts)
    assert total.submissions == 5
    sent = sum(size for _, size in said(service))
    assert sent <= client.status().bytes_sent <= sent + 2 * 138  # a consent, and five shares less one
    assert replace(client.status().counts, bytes_sent=0) == Counts(
        records=7, records_absent=1, deltas=2, submissions_spent=1, submissions_counted=1
    )
    assert service.fold.received.total() == 0
    assert sum(service.vectors.values()) == EXACT.words.bytes


async def test_five_devices_make_a_sum_over_their_own_directory(clock: RushingClock, tmp_path: Path) -> None:
    keys = keys_of(NAMES)
    _, directory = directory_of(keys)
    plan = secure_plan(cohort={"directory": directory.digest().hex()}, epsilon=1000, total_epsilon=10_000)
    service = await started(plan, seats=5, directory=directory)
    service.companion_keys = {}
    clients = [client_of(service, tmp_path / name, clock, name, keys[name]) for name in NAMES]
    for client in clients:
        await client.__aenter__()
    await asyncio.gather(*(client.add([[float(place), 1.0]]) for place, client in enumerate(clients)))
    await asyncio.gather(*(client.flush(20) for client in clients))
    for client in clients:
        await client.__aexit__(None, None, None)
    await service.stop()
    (total,) = service.sums.values()
    sketch = Sketch(plan)
    sketch.add([[float(place), 1.0] for place in range(5)])
    np.testing.assert_array_equal(plan.words.centred(total.words)[0].reshape(-1), sketch.counters.reshape(-1))
    assert {client.status().submissions_counted for client in clients} == {1}
    assert service.dropped == {}


async def test_a_vector_goes_in_chunks(
    service: RoundService, path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.participation.secure_sum.CHUNK_BYTES", 50)
    async with client_of(service, path, clock) as client:
        await client.flush(20)
    chunks = [(each.offset, len(each.data)) for each in service.heard if isinstance(each, VectorChunk)]
    assert chunks == [(0, 50), (50, 50), (100, PLAN.words.bytes - 100)]
    assert client.status().submissions_counted == 1


async def test_a_client_takes_part_after_its_windows_end_with_records_or_without_and_alike(
    tmp_path: Path, service: RoundService
) -> None:
    traces = []
    for name, records in (("device-x", 0), ("device-y", 50)):
        clock = Clock()
        service.heard.clear()
        async with client_of(service, tmp_path / name, clock, name) as client:
            if records:
                await client.add(np.full((records, 2), 3.0))
            clock.pass_time(40 * 60 - 1)
            assert service.entered[name, WINDOW] == 0  # the window has not ended
            for _ in range(PLAN.window.lateness_ms // MINUTE):
                clock.pass_time(60)
                await asyncio.sleep(0.005)
            await until(lambda: client.status().submissions_counted == 1, "its window's sum")
            clock.pass_time(PLAN.window.length_ms / 1000)
            await until(lambda: client.status().windows_unspent >= 0, "time")
        assert vectors(service, name) == 1
        traces.append(said(service))
        clock.close()
    assert traces[0] == traces[1]
    assert [kind for kind, _ in traces[0]] == ["ADVERTISEMENT", "OPENING", "SHARES", "VECTOR"]


# ------------------------------------------------------------------------------------------------------------- liars


def lie_at(
    step: object, lies: int, result: RoundResult | None = RoundResult.ABORTED
) -> Callable[[Seat, RoundReply], RoundReply | None]:
    """Says "it has failed, come again" (or, without a fate, breaks the call) in place of what comes at this step."""
    left = [lies]

    def lie(seat: Seat, reply: RoundReply) -> RoundReply | None:
        here = OUTCOME if isinstance(reply, RoundOutcome) else kind_of(reply)
        if here != step or not left[0]:
            return reply
        left[0] -= 1
        round_id = seat.round.id if seat.round is not None else bytes(32)
        return None if result is None else RoundOutcome(round_id, result, "it has failed", again=True)

    return lie


def named(step: object) -> str:
    return step.name.lower() if isinstance(step, Kind) else str(step)


STEPS = [*TOLD, OUTCOME]
SPENT_BY = frozenset({Kind.SURVIVORS, Kind.QUORUM, OUTCOME})


@pytest.mark.parametrize("result", [RoundResult.ABORTED, None], ids=["failed", "broken"])
@pytest.mark.parametrize("step", STEPS, ids=named)
async def test_a_service_that_lies_once_never_gets_a_second_vector_and_a_free_failure_is_tried_again(
    service: RoundService, path: Path, clock: RushingClock, step: object, result: RoundResult | None
) -> None:
    service.lie = lie_at(step, 1, result)
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0]])
        await flushed(client)
    assert vectors(service) == 1
    assert client.status().submissions_spent == 1
    assert service.entered[NAMES[0], WINDOW] == (1 if step in SPENT_BY else 2)
    lost = step in SPENT_BY and (result is not None or step != OUTCOME)
    assert client.status().submissions_counted + client.status().submissions_lost == 1
    if not (step in SPENT_BY and result is None):  # else it asks, and what it is told depends on how far the round came
        assert client.status().submissions_lost == lost


@pytest.mark.parametrize("step", [*TOLD[1:], OUTCOME], ids=named)
async def test_a_service_that_lies_at_every_round_gets_at_most_one_vector_and_eight_contributions(
    service: RoundService, path: Path, clock: RushingClock, step: object
) -> None:
    service.lie = lie_at(step, 10**6)
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0]])
        if step is Kind.ROSTER:  # nothing is opened, nothing is spent: it comes again until the window is over
            flushing = asyncio.ensure_future(client.flush(30))
            await until(lambda: service.entered.total() >= 12, "many calls")
            clock.pass_time(30)
            with pytest.raises(FlushTimeoutError):
                await flushing
        else:
            with pytest.raises(NotCountedError):
                await client.flush(20)
    openings = sum(isinstance(each, Message) and each.data[1] == Kind.OPENING for each in service.heard)
    assert vectors(service) == int(step in SPENT_BY)
    assert client.status().submissions_spent == vectors(service)
    asked_once = 1 if step in SPENT_BY else ATTEMPTS_MAX
    assert openings == (0 if step is Kind.ROSTER else asked_once)
    if step is not Kind.ROSTER:
        assert service.entered.total() == asked_once  # who has no attempt left breaks no round of others


@pytest.mark.parametrize("step", [None, Kind.ROSTER, Kind.INBOX, Kind.GRANT], ids=named)
async def test_noise_is_drawn_once_before_the_service_is_called_and_kept_while_rounds_end_unspent(
    service: RoundService, path: Path, clock: RushingClock, step: Kind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing that the service can time depends on it. Companions draw theirs on the main thread."""
    sample = PolyaShare.sample
    entered: list[int] = []

    def watched(share: PolyaShare, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        if threading.current_thread() is not threading.main_thread():
            entered.append(service.entered.total())
        return sample(share, size, entropy)

    monkeypatch.setattr(PolyaShare, "sample", watched)
    service.lie = lie_at(step or Kind.ROSTER, 2 if step else 0)
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0]])
        await client.flush(20)
        assert isinstance(client._mode, SecureMode)
        assert client._mode.shares.of(WINDOW) is None
    assert entered == [0]
    assert service.entered.total() == (3 if step else 1)
    assert vectors(service) == 1


@pytest.mark.parametrize("step", STEPS, ids=named)
async def test_a_device_that_is_killed_after_a_lie_sends_no_second_vector_from_its_spool(
    service: RoundService, path: Path, clock: RushingClock, step: object, tmp_path: Path
) -> None:
    left = tmp_path / "left.db"
    told = lie_at(step, 1)

    def lie(seat: Seat, reply: RoundReply) -> RoundReply | None:
        said = told(seat, reply)
        if said is not reply and not left.exists():
            copied(path, left)  # as a kill at this moment would leave it
            return None
        return said if not left.exists() else None  # the first device hears nothing more

    service.lie = lie
    client = client_of(service, path, clock)
    await client.__aenter__()
    await client.add([[1.0, 2.0]])
    flushing = asyncio.ensure_future(client.flush())
    await until(left.exists, "the lie")
    flushing.cancel()
    await asyncio.wait([flushing])
    await client.__aexit__(None, None, None)
    before = vectors(service)
    service.lie = lambda _, reply: reply
    async with client_of(service, left, clock) as again:
        await flushed(again)
    assert before == int(step in SPENT_BY)
    assert vectors(service) == 1
    assert again.status().submissions_spent == 1
    assert again.status().records == 1


async def test_a_device_that_is_killed_between_its_spend_and_its_vector_never_sends_it(
    service: RoundService, path: Path, clock: RushingClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left.db"
    spend = SecureSubmissions.spend

    def spend_and_die(rounds: SecureSubmissions, window: int, round_id: bytes, upto: int) -> None:
        spend(rounds, window, round_id, upto)
        copied(path, left)
        raise RuntimeError("killed")

    with monkeypatch.context() as killing:
        killing.setattr(SecureSubmissions, "spend", spend_and_die)
        client = client_of(service, path, clock)
        await client.__aenter__()
        await client.add([[1.0, 2.0]])
        with pytest.raises(RuntimeError, match="killed"):
            await client.flush(20)
        await client.__aexit__(None, None, None)
    assert service.vectors.total() == 0
    async with client_of(service, left, clock) as again:
        with pytest.raises(NotCountedError, match="left_out"):
            await again.flush(20)
        with pytest.warns(AbsentWarning):
            await again.add([[1.0, 2.0]])
        await again.flush(20)
    assert service.vectors.total() == 0
    assert service.asked == [(NAMES[0], (1).to_bytes(32, "big"))]
    told = again.status()
    assert (told.submissions_spent, told.submissions_lost, told.submissions_counted) == (1, 1, 0)


@pytest.mark.parametrize("step", [Kind.ROSTER, Kind.SURVIVORS], ids=named)
async def test_an_invitation_that_comes_again_or_after_the_vector_is_not_taken(
    service: RoundService, path: Path, clock: RushingClock, step: Kind
) -> None:
    invitations: list[bytes] = []
    lies: list[Kind] = []

    def lie(_: Seat, reply: RoundReply) -> RoundReply | None:
        if isinstance(reply, Message) and kind_of(reply) is Kind.INVITATION:
            invitations.append(reply.data)
        if kind_of(reply) is not step or lies:
            return reply
        lies.append(step)
        again = invitations[0]
        return Message(again if step is Kind.ROSTER else again[:-32] + b"n" * 32)

    service.lie = lie
    async with client_of(service, path, clock) as client:
        await client.flush(20)
    advertised = sum(isinstance(each, Message) and each.data[1] == Kind.ADVERTISEMENT for each in service.heard)
    assert advertised == service.entered.total() == (2 if step is Kind.ROSTER else 1)
    assert vectors(service) == client.status().submissions_counted == 1


async def test_a_call_has_no_more_invitations_than_a_window_has_attempts(
    service: RoundService, path: Path, clock: RushingClock
) -> None:
    lies: list[bytes] = []

    def lie(seat: Seat, reply: RoundReply) -> RoundReply | None:
        if isinstance(reply, Message) and kind_of(reply) is Kind.INVITATION and not lies:
            lies.extend(reply.data[:-1] + bytes((100 + number,)) for number in range(ATTEMPTS_MAX + 4))
            for data in lies:
                seat.replies.put_nowait(Message(data))
            return Waiting(1)
        return reply

    service.lie = lie
    async with client_of(service, path, clock) as client:
        service.deaf = True
        flushing = asyncio.ensure_future(client.flush(20))
        await until(lambda: service.entered.total() == 2, "a second call")
        service.deaf = False
        await flushing
    advertised = [each.data[:-32] for each in service.heard if isinstance(each, Message) and each.data[1] == 2]
    # One more came of the second call. The end of the first may overtake the last ones that it sent.
    assert 1 < len(advertised) <= ATTEMPTS_MAX + 1
    assert client.status().submissions_counted == 1


async def test_whoever_has_no_attempt_left_at_an_invitation_does_not_advertise(
    service: RoundService, path: Path, clock: RushingClock
) -> None:
    def lie(_: Seat, reply: RoundReply) -> RoundReply | None:
        if kind_of(reply) is Kind.INVITATION:
            mode = client._started()
            assert isinstance(mode, SecureMode)
            for _attempt in range(ATTEMPTS_MAX):
                mode.submissions.count_attempt(WINDOW)
        return reply

    service.lie = lie
    async with client_of(service, path, clock) as client:
        with pytest.raises(NotCountedError, match=f"{ATTEMPTS_MAX} rounds failed"):
            await client.flush(20)
    assert said(service) == []


async def test_of_two_windows_at_once_only_what_the_account_pays_for_is_entered(
    path: Path, clock: RushingClock
) -> None:
    clock.at_ms -= 15 * MINUTE  # the window before still takes vectors
    service = await started(secure_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=1))
    async with client_of(service, path, clock) as client:
        with pytest.raises(NotCountedError, match="Budget exceeded"):
            await client.flush(20)
    await service.stop()
    assert service.entered.total() == 1
    assert client.status().submissions_spent == client.status().submissions_counted == 1


async def test_nothing_that_depends_on_records_is_done_while_somebody_waits_for_a_client(
    service: RoundService, path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: list[str] = []

    class Heard(list[RoundRequest]):
        @override
        def append(self, request: RoundRequest) -> None:
            trace.append("heard " + (Kind(request.data[1]).name if isinstance(request, Message) else "VECTOR"))
            super().append(request)

    def lie(_: Seat, reply: RoundReply) -> RoundReply:
        kind = kind_of(reply)
        trace.append("says " + (OUTCOME if kind is None else kind.name))
        return reply

    def added(plan: Plan, deltas: tuple[bytes, ...]) -> object:
        trace.append("adds records up")
        return counters_of(plan, deltas)

    service.heard, service.lie = Heard(), lie
    monkeypatch.setattr("edge_client.participation.secure_sum.counters_of", added)
    async with client_of(service, path, clock) as client:
        await client.add(np.ones((50, 2)))
        await client.add(np.ones((50, 2)))
        assert client._spool is not None
        client._spool._database.set_trace_callback(trace.append)
        await client.flush(20)
        client._spool._database.set_trace_callback(None)
    assert client.status().submissions_counted == 1
    begin, end = trace.index("says INVITATION"), trace.index("heard VECTOR")
    assert "adds records up" in trace[:begin]
    round_ = trace[begin:end]
    assert any("INSERT INTO rounds" in each for each in round_)
    assert [each for each in round_ if "pending" in each or "adds" in each] == []
    assert any("DELETE FROM pending" in each for each in trace[end:])
    assert not any("DELETE FROM pending" in each for each in trace[:end])


async def test_a_disk_that_refuses_to_erase_what_was_spent_is_asked_again(
    service: RoundService, path: Path, clock: RushingClock
) -> None:
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0]])
        spool = client._spool
        assert spool is not None
        spool._database.execute("CREATE TRIGGER broken BEFORE DELETE ON pending BEGIN SELECT raise(ABORT, 'no'); END")
        await client.flush(20)
        assert client.status().submissions_counted == 1
        assert not spool.is_empty
        spool._database.execute("DROP TRIGGER broken")
        # More than once, for the attempt before may still be under way; the window is not over within these 20 minutes.
        await passing(clock, lambda: spool.is_empty, "the erasure", step_s=5.0, pause_s=0.05)


@pytest.mark.parametrize(("more", "told"), [(1, "expected at most"), (2**14, "RESOURCE_EXHAUSTED")])
async def test_a_message_longer_than_any_of_the_plans_ends_the_attempt(
    service: RoundService, path: Path, clock: RushingClock, caplog: pytest.LogCaptureFixture, more: int, told: str
) -> None:
    longest = message_bytes_max(round_parameters(PLAN, WINDOW, bytes(32)))
    lies: list[Kind] = []

    def lie(_: Seat, reply: RoundReply) -> RoundReply:
        if not isinstance(reply, Message) or kind_of(reply) is not Kind.ROSTER or lies:
            return reply
        lies.append(Kind.ROSTER)
        return Message(reply.data.ljust(longest + more, b"x"))

    service.lie = lie
    with caplog.at_level("INFO", "edge_client"):
        async with client_of(service, path, clock) as client:
            await client.flush(20)
    assert told in caplog.text
    assert service.entered.total() == 2
    assert client.status().submissions_counted == 1


async def test_unread_messages_are_bounded_in_bytes() -> None:
    unread = UnreadMessages(100)
    await unread.put(Message(bytes(60)))
    waiting = asyncio.ensure_future(unread.put(Message(bytes(60))))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    assert await unread.get() == Message(bytes(60))
    await waiting
    waiting = asyncio.ensure_future(unread.put(RoundOutcome(b"", RoundResult.LATE, "x" * 60)))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    await unread.get()
    await waiting


async def test_lies_at_random_never_get_two_vectors(
    service: RoundService, tmp_path: Path, clock: RushingClock, rng: np.random.Generator
) -> None:
    def lie(seat: Seat, reply: RoundReply) -> RoundReply | None:
        if rng.random() < 0.8:
            return reply
        round_id = seat.round.id if seat.round is not None else bytes(32)
        said: list[RoundReply | None] = [None, Message(reply.data[:-1] + b"x") if isinstance(reply, Message) else reply]
        said += [RoundOutcome(round_id, result, "a lie", again=True) for result in RoundResult]
        return said[rng.integers(len(said))]

    service.lie = lie
    for number in range(8):
        name = f"device-{number}"
        path = tmp_path / name
        spent = []
        for _ in range(3):
            async with client_of(service, path, clock, name) as client:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", AbsentWarning)
                    await client.add([[1.0, 2.0]])
                await flushed(client)
            spent.append(client.status().submissions_spent)
        assert vectors(service, name) <= spent[-1] <= 1
        assert spent == sorted(spent)


async def passing(
    clock: Clock, condition: Callable[[], bool], what: str, *, step_s: float = 30.0, pause_s: float = 0.005
) -> None:
    """Lets time pass until something is so, in 240 steps at most: two hours, unless told otherwise."""
    for _ in range(240):
        if condition():
            return
        clock.pass_time(step_s)
        await asyncio.sleep(pause_s)
    await until(condition, what)


async def flushed(client: EdgeClient) -> None:
    """Flushes; that the window is in no sum is no news to the test."""
    told: set[int] = {WINDOW}
    try:
        await client.flush(20)
    except NotCountedError as error:
        told = set(error.windows)
    assert told == {WINDOW}


def copied(path: Path, to: Path) -> None:
    """What a kill would leave of a spool: the file, and the log beside it."""
    shutil.copyfile(path.with_name(path.name + "-wal"), to.with_name(to.name + "-wal"))
    shutil.copyfile(path, to)


# ------------------------------------------------------------------------------------------------ refusals, restarts


async def test_what_became_of_a_vector_is_asked_until_it_is_told(
    service: RoundService, path: Path, clock: RushingClock
) -> None:
    refusals = [5]

    def refuses(enter: object) -> str | None:
        if getattr(enter, "spent_round", b"") and refusals[0]:
            refusals[0] -= 1
            return str(ServiceReason.OVERLOADED)
        return None

    service.refuses = refuses
    service.lie = lie_at(OUTCOME, 1, None)  # the call breaks after all was said
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0]])
        await client.flush(20)
    assert refusals == [0]
    assert client.status().submissions_counted == 1
    assert vectors(service) == 1


async def test_a_vector_of_which_nobody_tells_until_its_window_is_over_is_lost(
    service: RoundService, path: Path
) -> None:
    clock = Clock()
    service.lie = lie_at(OUTCOME, 10**6, None)
    async with client_of(service, path, clock) as client:
        flushing = asyncio.ensure_future(client.flush())
        await until(lambda: client.status().submissions_spent == 1, "the vector")
        await until(lambda: bool(service.asked), "a question")
        await passing(clock, flushing.done, "the end of the window")
        with pytest.raises(NotCountedError, match=f"window {WINDOW}: the service did not report its result"):
            await flushing
    clock.close()
    assert vectors(service) == 1
    assert client.status().submissions_lost == 1


async def test_a_vector_of_a_device_that_comes_back_after_its_window_is_told_as_lost(
    service: RoundService, path: Path
) -> None:
    clock = Clock()
    service.lie = lie_at(OUTCOME, 10**6, None)
    async with client_of(service, path, clock) as client:
        flushing = asyncio.ensure_future(client.flush())
        await until(lambda: client.status().submissions_spent == 1, "the vector")
        await until(lambda: bool(service.asked), "a question")
    with pytest.raises(ClientStateError):
        await flushing
    clock.at_ms += 30 * 24 * HOUR
    client = client_of(service, path, clock)
    await client.__aenter__()
    (warning,) = await client.end(wait=True)
    assert isinstance(warning, NotCountedWarning)
    assert str(warning) == f"not counted: window {WINDOW}: the service did not report its result"
    clock.close()
    assert (client.status().submissions_spent, client.status().submissions_lost) == (1, 1)


async def test_a_window_that_no_service_summed_is_over_unspent_and_its_records_are_erased(
    service: RoundService, path: Path
) -> None:
    clock = Clock()
    service.refuses = lambda _: str(ServiceReason.OVERLOADED)
    client = await client_of(service, path, clock).__aenter__()
    await client.add([[1.0, 2.0]])
    await passing(clock, lambda: client.status().windows_unspent == 1, "the end of the window")
    with pytest.warns(NotCountedWarning, match="it ended without a sum"):
        await client.__aexit__(None, None, None)
    clock.close()
    told = client.status()
    assert (told.records, told.records_unspent, told.submissions_spent) == (1, 1, 0)


@pytest.mark.parametrize("reason", [ServiceReason.BUDGET, ServiceReason.WINDOW_NOT_OPEN])
async def test_a_service_that_wants_no_part_in_a_window_is_not_asked_again(
    service: RoundService, path: Path, clock: RushingClock, reason: ServiceReason
) -> None:
    asked: list[object] = []

    def refuses(enter: object) -> str:
        asked.append(enter)
        return str(reason)

    service.refuses = refuses
    async with client_of(service, path, clock) as client:
        with pytest.raises(NotCountedError, match="refused by the test"):
            await client.flush(20)
        await client.flush(20)
    assert len(asked) == 1
    assert client.status().submissions_spent == 0


@pytest.mark.parametrize("reason", [Reason.WRONG_PLAN, Reason.WRONG_MODE])  # which older services check first
async def test_a_service_with_another_plan_ends_the_client_which_notes_that_for_the_next_start(
    service: RoundService, path: Path, clock: RushingClock, reason: Reason
) -> None:
    planner = SigningKey(bytes(32))
    service.signed = SignedPlan.sign(PLAN.bundle, planner, "planner")
    service.refuses = lambda _: str(reason)
    policy = Policy(signed_by=planner.verify_key, new_plan_after_s=0)
    with pytest.raises(PlanChangedError, match="the service collects another plan"):
        async with client_of(service, path, clock, policy=policy) as client:
            await client.flush(20)
    spool = opened(path)
    assert PlanHistory(spool).is_told
    spool.close()


async def test_unit_client_is_paid_for_by_the_devices_own_account_alone(path: Path, clock: RushingClock) -> None:
    plan = secure_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=1)
    service = await started(plan)
    async with client_of(service, path, clock) as client:
        await client.add([[1.0, 2.0], [1.0, 2.0]])
        with pytest.raises(ContributionError):
            await client.add([[1.0, 2.0]])
        await client.flush(20)
        clock.at_ms += HOUR
        with pytest.warns(AbsentWarning):
            await client.add([[1.0, 2.0]])
        await client.flush(20)
    await service.stop()
    assert service.entered.total() == 1
    assert client.status().submissions_spent == 1


async def test_a_flush_that_runs_out_of_time_gives_nothing_up(
    service: RoundService, path: Path, clock: RushingClock
) -> None:
    service.seats = 2
    service.companion_keys = keys_of(NAMES[2:])
    async with client_of(service, path, clock) as client:
        flushing = asyncio.ensure_future(client.flush(30))
        await until(lambda: service.entered.total() == 1, "its call")
        clock.pass_time(30)
        with pytest.raises(FlushTimeoutError, match="after 30 s"):
            await flushing
        async with client_of(service, path.with_name("other.db"), clock, NAMES[1]) as other:
            await asyncio.gather(client.flush(), other.flush())
    assert client.status().submissions_counted == other.status().submissions_counted == 1


# --------------------------------------------------------------------------------------------- keys and directories


def directory_plan() -> tuple[Plan, Directory]:
    _, directory = directory_of(keys_of(NAMES))
    return secure_plan(cohort={"directory": directory.digest().hex()}), directory


async def test_a_plan_with_a_directory_wants_a_key_and_the_one_that_it_holds(
    tmp_path: Path, clock: RushingClock
) -> None:
    plan, directory = directory_plan()
    service = await started(plan, directory=directory)
    keys = keys_of(NAMES)
    for name, key, match in (
        (NAMES[0], None, "key: got None, expected this client's Ed25519 key"),
        (NAMES[0], keys[NAMES[1]], "key: got the key"),
        ("device-z", keys[NAMES[0]], "client_id: got 'device-z'"),
    ):
        with pytest.raises(SettingsError, match=match):
            async with client_of(service, tmp_path / f"{name}{key}", clock, name, key):
                pass
    key_file = tmp_path / "key.pem"
    keys[NAMES[0]].save(key_file)
    client = EdgeClient(
        service.target, spool=tmp_path / "s", client_id=NAMES[0], config=CONFIG, runtime=clock, key=key_file
    )
    async with client:
        await client.flush(20)
    assert client.status().submissions_counted == 1
    await service.stop()
    key_file.chmod(0o644)
    with pytest.raises(KeyFileError):
        EdgeClient("localhost:1", spool=tmp_path / "s", key=key_file)


@pytest.mark.parametrize("named", [True, False], ids=["directory", "none"])
async def test_whoever_enters_or_asks_signs_for_it_where_the_plan_names_a_directory(
    path: Path, clock: RushingClock, *, named: bool
) -> None:
    plan, directory = directory_plan()
    service = await started(plan if named else PLAN, directory=directory if named else None)
    enters: list[Enter] = []
    service.refuses = enters.append
    service.lie = lie_at(OUTCOME, 1, None)
    key = keys_of(NAMES)[NAMES[0]]
    async with client_of(service, path, clock, key=key) as client:
        await client.flush(20)
    await service.stop()
    assert [bool(enter.spent_round) for enter in enters] == [False, True]
    for enter in enters:
        parts = entry_parts(enter, NAMES[0])
        assert enter.signature if named else enter.signature == b""
        assert not named or key.verify_key.verifies(enter.signature, labels.ENTRY, *parts)


async def test_a_spools_key_is_the_operating_systems_whatever_the_jitter_is_drawn_from(
    service: RoundService, tmp_path: Path, clock: RushingClock
) -> None:
    keys = set()
    for name in ("one", "two"):
        entropy = ReplayableEntropy(b"jitter".ljust(32, b"."))
        async with EdgeClient(service.target, spool=tmp_path / name, runtime=clock, entropy=entropy) as client:
            assert client._spool is not None
            keys.add(client._spool.rows("SELECT seed FROM identity_key")[0])
    assert len(keys) == 2


async def test_the_directory_is_fetched_once(path: Path, clock: RushingClock) -> None:
    plan, directory = directory_plan()
    key = keys_of(NAMES)[NAMES[0]]
    service = await started(plan, directory=directory)
    async with client_of(service, path, clock, key=key):
        pass
    await service.stop()
    async with client_of(service, path, clock, key=key) as offline:  # it needs nobody any more
        await offline.add([[1.0, 2.0]])


async def test_a_directory_in_toml_that_an_older_version_kept_is_fetched_again(path: Path, clock: RushingClock) -> None:
    plan, directory = directory_plan()
    key = keys_of(NAMES)[NAMES[0]]
    service = await started(plan, directory=directory)
    async with client_of(service, path, clock, key=key):
        pass
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE directory SET bytes = ?", (directory_of(keys_of(NAMES))[0].encode(),))
    async with client_of(service, path, clock, key=key):
        pass
    await service.stop()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT bytes FROM directory").fetchall() == [(directory.to_bytes(),)]


#: tomllib takes memory that grows with the square of this: 24 GB for 240 kB.
TOML_BOMB: Final = b'"[".' * 2000 + b"a = 1"


@pytest.mark.parametrize(
    "sent",
    [
        TOML_BOMB,
        directory_of(keys_of(NAMES))[0].encode(),
        directory_of(keys_of([*NAMES[:4], "device-z"]))[1].to_bytes(),
        b"[" * 100_000,
        b"\0" * DIRECTORY_BYTES_MAX,
    ],
    ids=["TOML that takes memory without end", "TOML", "another directory of this size", "deep", "long"],
)
async def test_nothing_is_read_of_a_directory_that_has_not_the_plans_digest(
    path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    plan, directory = directory_plan()
    service = await started(plan, directory=directory)
    service.directory_bytes, service.directory_part = sent, 1 << 18
    read: list[object] = []
    for name in ("tomllib.loads", "hushsum.signing.decode"):
        monkeypatch.setattr(name, read.append)
    with pytest.raises(SessionRefusedError, match=r"got the digest [0-9a-f]{12}…, expected [0-9a-f]{12}…, which"):
        async with client_of(service, path, clock, key=keys_of(NAMES)[NAMES[0]]):
            pass
    await service.stop()
    assert not read


async def test_what_comes_after_more_bytes_than_a_directory_has_is_not_waited_for(
    path: Path, clock: RushingClock
) -> None:
    plan, directory = directory_plan()
    service = await started(plan, directory=directory)
    service.directory_bytes, service.directory_part = bytes(100 << 20), 1 << 18
    with pytest.raises(SessionRefusedError, match=rf"bytes or more, expected at most {DIRECTORY_BYTES_MAX}"):
        async with client_of(service, path, clock, key=keys_of(NAMES)[NAMES[0]]):
            pass
    await service.stop()
    assert service.directory_parts < 100  # of 400


@pytest.mark.parametrize("sent", [b"{}", b"[]", b"{", b"\xff"])
async def test_bytes_that_the_plan_names_and_that_are_no_directory_are_refused(
    path: Path, clock: RushingClock, sent: bytes
) -> None:
    plan = secure_plan(cohort={"directory": digest_of(sent).hex()})
    service = await started(plan, directory=directory_of(keys_of(NAMES))[1])
    service.directory_bytes = sent
    with pytest.raises(SessionRefusedError, match="the service's key registry of clients is invalid: "):
        async with client_of(service, path, clock, key=keys_of(NAMES)[NAMES[0]]):
            pass
    await service.stop()


async def test_a_directory_that_does_not_come_is_told(path: Path, clock: RushingClock) -> None:
    plan, directory = directory_plan()
    service = await started(plan, directory=directory)
    service.directory_bytes = b""
    key = keys_of(NAMES)[NAMES[0]]
    with pytest.raises((SessionRefusedError, UnreachableError)):
        async with client_of(service, path, clock, key=key):
            pass
    await service.stop()
