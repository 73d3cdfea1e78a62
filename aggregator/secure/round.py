"""One round of a secure sum: claims its members, runs the protocol's machine, and releases what was not spent.

Events of clients go into the machine one at a time, and its effects back to them. The machine computes in a worker
thread; everything else happens on the event loop. A client that vanishes, is silent, does not read or breaks the
protocol is out, and the machine says what that means for the others.
"""

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from aggregator.errors import (
    FAILED,
    ClaimLostError,
    ConfigError,
    RefusedError,
    StoreUnavailableError,
    WindowOrderError,
    overloaded,
)
from aggregator.ingest.collection_budget import ASK_S, asked
from aggregator.logs import FailureLog, journal
from aggregator.model import RoundMembers
from aggregator.runtime import TRANSIENT, Backoff, Runtime, within
from aggregator.secure.cohorts import CallKey
from aggregator.store.store import Store
from aggregator.windows import due_ms
from hushsum.errors import Reason, SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.messages import HASH_BYTES, ID_BYTES_MAX, KEYS_BYTES, SEALED_BYTES, Kind, pack
from hushsum.secure_sum.parameters import RoundParameters, round_parameters
from hushsum.secure_sum.server import (
    Await,
    ClientMessage,
    Done,
    Drop,
    Effect,
    Event,
    Expired,
    Failed,
    Grant,
    ServerRound,
    Step,
    Sum,
    Tell,
    Uploaded,
    Vanished,
)
from hushsum.signing import SIGNATURE_BYTES, Directory
from hushsum_proto.answers import Refusal
from hushsum_proto.rounds import Message, RoundOutcome, RoundReply, RoundResult, VectorChunk

CHUNK_BYTES_MAX: Final = 256 * 1024
UPLOADS_MAX: Final = 2  # vectors of a round that may come in at once
# A round has fewer messages for one client: a client with so many unread does not read, and its call is ended.
UNREAD_MAX: Final = 16
PROGRESS_S: Final = 0.2  # the least time between two looks at who is in which step
AGAIN_MS: Final = 1000

_STEPS_LEFT: Final = 3  # signatures, shares, and the sum's way into the log
_ROUND: Final = slice(42, 74)  # of the protocol's messages: behind format, kind, plan and window
_LATE: Final = "the vector did not arrive in time"
_TAKEN: Final = (
    f"a vector of this client may have been accepted in this window, or it was in {ATTEMPTS_MAX} cohorts of it"
)
_ALL_NEEDED: Final = frozenset({Step.ADVERTISE, Step.OPEN, Step.SHARE})

_journal = journal("secure sums")


class RoundEnd(NamedTuple):
    """How a round ended."""

    sum: Sum | None  # None: the round failed
    why: str = ""  # what failed, in one sentence
    again: bool = False  # whether those that are still there may begin another round at once
    result: RoundResult = RoundResult.ABORTED  # of a round without a sum, for its clients
    suspects: tuple[str, ...] = ()  # clients because of whom it may have failed


@dataclass(frozen=True)
class RoundSettings:
    """How long rounds wait.

    Attributes:
        step_s: For every client's message of a step.
        upload_s: For a client's vector, from the moment it may send it; and for all that are missing, from the moment
            that enough are whole.
        manual: Windows are sealed by hand, and not when they are due.
    """

    step_s: float
    upload_s: float
    manual: bool = False

    @property
    def least_left_s(self) -> float:
        """How long a window must still be open when the first vector is asked for."""
        return self.upload_s + _STEPS_LEFT * self.step_s

    def check(self, plan: Plan) -> None:
        """Refuses times in which no round of a plan would come to its end.

        Devices come within the first quarter of what lateness leaves besides the wait for a cohort.

        Raises:
            ConfigError: With what a round takes, and what the plan leaves.
        """
        cohort, left_ms = plan.privacy.cohort, plan.window.lateness_ms
        assert cohort is not None, "a plan in mode secure"
        open_s = 0.75 * (left_ms - cohort.wait_ms) / 1000
        if not self.manual and open_s < self.least_left_s:
            raise ConfigError(
                f"secure_upload_s: got {self.upload_s:g}: with {_STEPS_LEFT} steps of secure_step_s = {self.step_s:g} "
                f"a round may take {self.least_left_s:g} s, and after a window the lateness leaves it {open_s:g} "
                "s; expected smaller ones, or a plan with more lateness"
            )


def message_bytes_max(parameters: RoundParameters) -> int:
    """The size of the longest message of a client; a vector is no message."""
    advertisement = 2 + ID_BYTES_MAX + KEYS_BYTES + SIGNATURE_BYTES
    shares = HASH_BYTES + parameters.degree * SEALED_BYTES
    return len(pack(parameters, Kind.SHARES)) + max(advertisement, shares)  # all other messages are shorter


@dataclass(frozen=True)
class RoundClaims:
    """What the rounds of one plan ask of the store.

    No client is in two rounds, in whichever process, and the ledger pays before a vector is sent.
    """

    plan: Plan
    store: Store
    runtime: Runtime

    async def claim(self, window: int, members: RoundMembers, is_wanted: Callable[[], bool]) -> frozenset[str]:
        """Claims the members of a round that begins, and tries again until that works or is no longer wanted.

        It is tried with the same members: a cohort is drawn at random, and is not drawn again.

        Returns:
            Those of whom another round may have a vector of this window, or that were drawn too often.
        """
        backoff, trouble = Backoff(), FailureLog(_journal)
        while is_wanted():
            work = self.store.claim_clients(self.plan.id, window, members)
            try:
                return await within(ASK_S, work, runtime=self.runtime)
            except (TimeoutError, *TRANSIENT) as error:
                trouble.failed(self.runtime.monotonic(), "cohort waiting for the store", error, passes=True)
            await self.runtime.sleep(backoff.next_s())
        return frozenset()

    async def charge(self, window: int, members: RoundMembers) -> None:
        """Has the window charged, and fixes that its members' vectors belong to this round alone.

        Raises:
            RefusedError: The ledger does not pay, or the window has not begun.
            WindowOrderError: The window is not open.
            ClaimLostError: Members are in another round by now.
            StoreUnavailableError: The store does not say: it may be done.
        """
        await asked(self.store.charge_collection(self.plan, window, members), self.runtime)

    async def release(self, window: int, members: RoundMembers) -> None:
        """Lets members that have sent nothing of a vector into other rounds; where the store is away, they stay out."""
        try:
            work = self.store.release_clients(self.plan.id, window, members)
            await within(ASK_S, work, runtime=self.runtime)
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning(
                "participants not released for other rounds of the window", window=window, error=str(error)
            )


class VectorUploads:
    """The vectors of one round that are being uploaded.

    Args:
        at_once: How many clients may be sending: so many vectors are held here at most.

    Attributes:
        granted: Clients that were ever allowed to send: their vector may be spent.
        begun: Clients that have sent any of their vector: it is spent.
    """

    def __init__(self, total_bytes: int, at_once: int) -> None:
        self._total = total_bytes
        self._at_once = at_once
        self._held: dict[str, bytearray] = {}
        self.granted: set[str] = set()
        self.begun: set[str] = set()

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._held.values()))

    def grant(self, client_id: str) -> None:
        assert len(self._held) < self._at_once, "more uploads granted than this server holds"
        assert client_id not in self.granted, "a vector is granted once"
        self.granted.add(client_id)
        self._held[client_id] = bytearray()

    def drop(self, client_id: str) -> None:
        """Ends a client's upload, and discards what came of it."""
        self._held.pop(client_id, None)

    def add(self, client_id: str, offset: int, data: bytes) -> bytes | None:
        """Takes the next chunk of a vector: 1 to ``CHUNK_BYTES_MAX`` bytes, from where the last one ended.

        Returns the vector, once it is whole.

        Raises:
            SecureSumError: It was not granted, does not follow the last one, or is too long.
        """
        held = self._held.get(client_id)
        if held is None:
            raise SecureSumError("chunk of a vector that was not requested")
        if offset != len(held):
            raise SecureSumError(f"chunk at offset {offset}, expected {len(held)}")
        if not 1 <= len(data) <= CHUNK_BYTES_MAX:
            raise SecureSumError(f"chunk of {len(data)} bytes, expected 1 to {CHUNK_BYTES_MAX}")
        if offset + len(data) > self._total:
            raise SecureSumError(f"vector longer than {self._total} bytes")
        self.begun.add(client_id)
        held += data
        if len(held) < self._total:
            return None
        del self._held[client_id]
        return bytes(held)


class Participant:
    """One client's part in a window: one call, from its entry to its last reply.

    Attributes:
        round: The round that it is in; None while it waits for one.
        past_rounds: Ids of rounds that it was in, and that ended before anything was spent: a message of one was on
            its way when that round ended, and is no fault of the client.
        is_there: Whether its call goes on, as far as is known.
    """

    def __init__(self, key: CallKey, window: int) -> None:
        self.key = key
        self.window = window
        self.round: RoundDriver | None = None
        self.past_rounds: set[bytes] = set()
        self.is_there = True
        self._unread: deque[RoundReply] = deque()
        self._ending: RoundOutcome | RefusedError | None = None
        self._wake = asyncio.Event()

    @property
    def client_id(self) -> str:
        return self.key.client_id

    @property
    def has_ended(self) -> bool:
        return self._ending is not None

    def is_of_past_round(self, data: bytes) -> bool:
        """Whether a message is of a round that it was in, and that is over."""
        return data[_ROUND] in self.past_rounds

    def tell(self, reply: RoundReply) -> bool:
        """Queues a reply; False where too many are unread already, and the call has been ended for that."""
        if self._ending is not None:
            return True
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            self.end(overloaded(f"more than {UNREAD_MAX} unread messages"))
            return False
        self._unread.append(reply)
        self._wake.set()
        return True

    def end(self, ending: RoundOutcome | RefusedError) -> None:
        """Sets the last reply; only the first end counts."""
        if self._ending is None:
            self._ending = ending
            self.is_there = False
            self._wake.set()

    async def replies(self) -> AsyncIterator[RoundReply]:
        """All replies, in order, for one reader; RefusedError if that was the end."""
        while True:
            while self._unread:
                yield self._unread.popleft()
            if isinstance(self._ending, RefusedError):
                raise self._ending
            if self._ending is not None:
                yield self._ending
                return
            self._wake.clear()
            await self._wake.wait()


class _Timer(enum.Enum):
    """The timers of a round besides those of its clients, which are named by the client."""

    STEP = "step"
    UPLOADS = "uploads"


class RoundDriver:
    """One round.

    Args:
        is_drawn: Whether the participants are a cohort that was drawn now; else those that are left of one.
        claims: Claims them, and has the ledger pay for the window, once, before the first grant.

    Attributes:
        decided: Set once its result can be asked for.
        dropped: Clients that are out.
        spoilers: Clients because of whom it ended while all of them were needed.
        on_step: Called with each step that begins, and how many clients are in it.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        id: bytes,
        participants: Sequence[Participant],
        *,
        is_drawn: bool,
        claims: RoundClaims,
        runtime: Runtime,
        settings: RoundSettings,
        directory: Directory | None,
    ) -> None:
        self.id = id
        self.window = participants[0].window
        self.participants = {participant.client_id: participant for participant in participants}
        parameters = round_parameters(plan, self.window, id)
        self._machine = ServerRound(parameters, tuple(sorted(self.participants)), directory, uploads_max=UPLOADS_MAX)
        self.uploads = VectorUploads(plan.words.bytes, UPLOADS_MAX)
        self.ended: RoundEnd | None = None
        self.decided = asyncio.Event()
        self.dropped: set[str] = set()
        self.spoilers: frozenset[str] = frozenset()
        self.progress: Mapping[Step, int] = {}
        self.on_step: Callable[[Step, int], None] = lambda _, __: None
        self._is_drawn = is_drawn
        self._claims = claims
        self._runtime = runtime
        self._settings = settings
        self._survivors_min = parameters.members_min
        self._message_bytes_max = message_bytes_max(parameters)
        self._due_ms = None if settings.manual else due_ms(plan.window, self.window)
        self._elsewhere: set[str] = set()  # clients that the store did not let in
        self._is_charged = False  # whether the window may have been charged for it
        self._whole: set[str] = set()  # clients with a complete vector
        self._events: asyncio.Queue[tuple[Event | None, asyncio.Future[None]]] = asyncio.Queue()
        self._timers: dict[str | _Timer, asyncio.Task[None]] = {}
        self._heard: set[str] = set()
        self._looked_s = -PROGRESS_S

    @property
    def present(self) -> tuple[Participant, ...]:
        return tuple(each for client_id, each in self.participants.items() if client_id not in self.dropped)

    @property
    def granted(self) -> frozenset[str]:
        """Clients that were allowed to send their vector: it may be spent."""
        return frozenset(self.uploads.granted)

    @property
    def spent(self) -> frozenset[str]:
        return frozenset(self.uploads.begun)

    @property
    def used_up(self) -> frozenset[str]:
        """Clients that must not be in another round of the window: here or elsewhere, a vector of them may be taken."""
        return self.spent | self._elsewhere

    async def run(self) -> RoundEnd:
        """Runs it to its end; every client still there waits for its outcome."""
        members = RoundMembers(self.id, tuple(self.participants), self._is_drawn)
        for client_id in await self._claims.claim(self.window, members, lambda: self.ended is None):
            self._elsewhere.add(client_id)
            self._drop(client_id, RoundOutcome(b"", RoundResult.UNKNOWN, _TAKEN))
        end = await self._run_protocol()
        if self._is_charged and (unspent := self.participants.keys() - self.spent):
            await self._claims.release(self.window, RoundMembers(self.id, tuple(unspent)))
        return end

    def abort(self, why: str, result: RoundResult = RoundResult.ABORTED) -> None:
        """Ends it as it stands, if it has not ended."""
        if self.ended is None:
            self._end(RoundEnd(None, why, result=result))
            self._put(None)

    async def message(self, participant: Participant, message: Message) -> None:
        """Takes a client's message, and returns once it is handled: no more than one of a client waits."""
        client_id, size = participant.client_id, len(message.data)
        if size <= self._message_bytes_max:
            await self._put(ClientMessage(client_id, message.data), participant)
        elif self._is_in(participant):
            detail = f"a message of {size} bytes, expected at most {self._message_bytes_max}"
            self._drop(client_id, _malformed(detail))

    async def chunk(self, participant: Participant, chunk: VectorChunk) -> None:
        client_id = participant.client_id
        if not self._is_in(participant):
            return
        try:
            vector = self.uploads.add(client_id, chunk.offset, chunk.data)
        except SecureSumError as error:
            self._drop(client_id, _malformed(str(error)))
            return
        if vector is not None:
            self._cancel_timer(client_id)
            self._whole.add(client_id)
            if len(self._whole) >= self._survivors_min and _Timer.UPLOADS not in self._timers:
                self._set_timer(_Timer.UPLOADS, self._settings.upload_s, self._drop_late)
            await self._put(Uploaded(client_id, vector), participant)

    def left(self, participant: Participant) -> None:
        if self._is_in(participant):
            self._drop(participant.client_id)

    # ------------------------------------------------------------------------------------------------- the machine

    async def _run_protocol(self) -> RoundEnd:
        try:
            if self.ended is None:
                self._apply(await self._runtime.blocking(self._machine.begin))
            while self.ended is None:
                event, handled = await self._events.get()
                try:
                    if event is not None:
                        await self._handle(event)
                finally:
                    if not handled.done():  # the call that waited for it may have ended
                        handled.set_result(None)
        except Exception as error:  # noqa: BLE001  whatever went wrong here, the clients are told that it did
            _journal.error("round failed", window=self.window, exc_info=error)
            self._end(RoundEnd(None, FAILED))
        finally:
            for timer in list(self._timers):
                self._cancel_timer(timer)
            self._discard_events()
        assert self.ended is not None
        return self.ended

    async def _handle(self, event: Event) -> None:
        if isinstance(event, ClientMessage | Uploaded):
            self._heard.add(event.client_id)
        step = self._machine.step
        effects = await self._runtime.blocking(self._machine.handle, event)
        if self.ended is not None:  # aborted meanwhile
            return
        if any(isinstance(effect, Failed) for effect in effects):
            guilty = self._drop_silent() if isinstance(event, Expired) else {event.client_id}
            # Before all are known to be there, a round fails only for all that are gone.
            self.spoilers = frozenset(guilty | self.dropped - self._elsewhere if step is Step.ADVERTISE else guilty)
            if step not in _ALL_NEEDED:
                self.spoilers = frozenset()
        is_first = not self.granted and any(isinstance(effect, Grant) for effect in effects)
        if is_first and not await self._may_grant():
            return
        self._apply(effects)

    async def _may_grant(self) -> bool:
        """Has the window charged before a vector is asked for; where it is not, the round ends unspent."""
        if self._is_in_time():
            self._is_charged = True
            members = RoundMembers(self.id, tuple(participant.client_id for participant in self.present))
            try:
                await self._claims.charge(self.window, members)
            except ClaimLostError as error:
                for client_id in error.clients:
                    began = overloaded("a round of this client started at another gateway")
                    self._drop(client_id, began, is_vanished=False)
                self.spoilers = error.clients
                self._end(RoundEnd(None, str(error), again=True))
            except RefusedError as error:
                for participant in self.present:
                    participant.end(error)
                self._end(RoundEnd(None, error.refusal.detail))
            except WindowOrderError as error:
                self._end(RoundEnd(None, str(error), result=RoundResult.LATE))
            except StoreUnavailableError as error:
                self._end(RoundEnd(None, f"the window may not have been charged: {error}"))
        return self.ended is None and self._is_in_time()

    def _is_in_time(self) -> bool:
        """Whether the window stays open for long enough; else the round ends."""
        least_s = self._settings.least_left_s
        is_in_time = self._due_ms is None or self._due_ms - self._runtime.now_ms() >= 1000 * least_s
        if not is_in_time:
            why = f"no vector was requested: the window is sealed in less than {least_s:g} s"
            self._end(RoundEnd(None, why, result=RoundResult.LATE))
        return is_in_time

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(client_id, data):
                    self._tell(client_id, data)
                case Grant(client_id):
                    self._grant(client_id)
                case Drop(client_id, text):
                    self._whole.discard(client_id)  # where it was its vector that does not fit
                    self._drop(client_id, _malformed(text), is_vanished=False)
                case Await(step):
                    self._heard.clear()
                    self.on_step(step, len(self.present))
                    self._set_timer(_Timer.STEP, self._settings.step_s, partial(self._put, Expired(step)))
                case Done(sum):
                    self._end(RoundEnd(sum))
                case Failed():
                    self._end(RoundEnd(None, effect.reason, effect.again, suspects=effect.suspects))
        now_s = self._runtime.monotonic()
        if now_s - self._looked_s >= PROGRESS_S or self.ended is not None:
            self._looked_s = now_s
            self.progress = dict(self._machine.progress)

    def _put(self, event: Event | None, participant: Participant | None = None) -> asyncio.Future[None]:
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_in = participant is None or self._is_in(participant)
        if (self.ended is not None and event is not None) or not is_in:
            handled.set_result(None)
        else:
            self._events.put_nowait((event, handled))
        return handled

    def _end(self, end: RoundEnd) -> None:
        if self.ended is None:
            self.ended = end

    def _discard_events(self) -> None:
        """Resumes those that wait for an event to be handled: none will be."""
        while not self._events.empty():
            _, handled = self._events.get_nowait()
            if not handled.done():
                handled.set_result(None)

    # ------------------------------------------------------------------------------------------------- the clients

    def _is_in(self, participant: Participant) -> bool:
        client_id = participant.client_id
        is_member = self.participants.get(client_id) is participant
        return self.ended is None and client_id not in self.dropped and is_member

    def _tell(self, client_id: str, data: bytes) -> None:
        if client_id not in self.dropped and not self.participants[client_id].tell(Message(data)):
            self._drop(client_id)

    def _grant(self, client_id: str) -> None:
        if client_id in self.dropped:  # the machine hears of it with the next event
            return
        self.uploads.grant(client_id)
        self._set_timer(client_id, self._settings.upload_s, partial(self._leave_out, client_id, _LATE))

    def _leave_out(self, client_id: str, why: str, *, again: bool = False) -> None:
        after_ms = AGAIN_MS if again else 0
        self._drop(client_id, RoundOutcome(self.id, RoundResult.LEFT_OUT, why, again, after_ms))

    def _drop(
        self, client_id: str, ending: RoundOutcome | RefusedError | None = None, *, is_vanished: bool = True
    ) -> None:
        """Takes a client out, with its last reply, and tells the machine that it vanished, unless the machine knows."""
        if ending is not None:
            self.participants[client_id].end(ending)
        if client_id not in self.dropped:
            self.dropped.add(client_id)
            self.uploads.drop(client_id)
            self._cancel_timer(client_id)
            if is_vanished:
                self._put(Vanished(client_id))

    # --------------------------------------------------------------------------------------------------------- time

    def _drop_silent(self) -> set[str]:
        """Takes out, and returns, those that were silent in a step that failed: the next round begins without them."""
        silent = {participant.client_id for participant in self.present} - self._heard
        for client_id in silent:
            self._drop(client_id, overloaded("no message received within secure_step_s"), is_vanished=False)
        return silent

    def _drop_late(self) -> None:
        """Enough vectors are whole, and all others have had their time: those that were not granted go first."""
        if len(self._whole) >= self._survivors_min:
            late = [participant.client_id for participant in self.present if participant.client_id not in self._whole]
            for client_id in sorted(late, key=lambda client_id: client_id in self.granted):
                is_granted = client_id in self.granted
                self._leave_out(
                    client_id, _LATE if is_granted else "other participants were slow", again=not is_granted
                )

    def _set_timer(self, name: str | _Timer, seconds: float, act: Callable[[], object]) -> None:
        """Calls ``act`` later, in place of what this timer was set to do."""
        self._cancel_timer(name)
        self._timers[name] = self._runtime.spawn(self._expire(name, seconds, act), "round-alarm")

    def _cancel_timer(self, name: str | _Timer) -> None:
        if (task := self._timers.pop(name, None)) is not None:
            task.cancel()

    async def _expire(self, name: str | _Timer, seconds: float, act: Callable[[], object]) -> None:
        await self._runtime.sleep(seconds)
        del self._timers[name]
        act()


def _malformed(detail: str) -> RefusedError:
    return RefusedError(Refusal.of(Reason.MALFORMED, detail))
