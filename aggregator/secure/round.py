"""One round as it runs: events of its clients into the protocol's machine, one at a time, and effects back to them.

The machine computes in a worker thread; everything else happens on the event loop. A client that vanishes, is silent,
does not read or breaks the protocol is out, and the machine says what that means for the others.
"""

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
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
from aggregator.logs import journal
from aggregator.model import RoundMembers
from aggregator.runtime import Runtime
from aggregator.secure.cohorts import CallKey
from aggregator.windows import due_ms
from hushsum.errors import Reason, SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.messages import HASH_BYTES, ID_BYTES_MAX, KEYS_BYTES, SEALED_BYTES, Kind, pack
from hushsum.secure_sum.parameters import RoundParameters
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
from hushsum.signatures import SIGNATURE_BYTES
from hushsum_proto.answers import Refusal
from hushsum_proto.rounds import Message, RoundOutcome, RoundReply, RoundResult, VectorChunk


class RoundEnd(NamedTuple):
    """How it ended.

    Attributes:
        sum: What the clients' vectors come to; None where the round failed.
        why: What failed, in one sentence.
        again: Whether those that are still there may begin another one at once.
        result: What clients are told where there is no sum.
        suspects: Clients because of whom it may have failed.
    """

    sum: Sum | None
    why: str = ""
    again: bool = False
    result: RoundResult = RoundResult.ABORTED
    suspects: tuple[str, ...] = ()


class Timers:
    """The alarms of one round.

    Args:
        runtime: Time and tasks.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._tasks

    def set(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        """Does something later, in place of what was to be done under this name."""
        self.hush(name)
        self._tasks[name] = self._runtime.spawn(self._ring(name, seconds, act), "round-alarm")

    def hush(self, name: Hashable) -> None:
        """Nothing is done under this name."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def hush_all(self) -> None:
        """Nothing is done any more."""
        for name in list(self._tasks):
            self.hush(name)

    async def _ring(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        await self._runtime.sleep(seconds)
        del self._tasks[name]
        act()


_STEPS_LEFT: Final = 3  # signatures, shares, and the sum's way into the log


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

        Devices come within the first quarter of what lateness leaves beside the wait for a cohort.

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


@dataclass(frozen=True)
class RoundLimits:
    """The limits of one round.

    Attributes:
        settings: How long it waits.
        survivors_min: Vectors that are enough.
        message_bytes_max: What no message of a client is longer than; its vector is none.
        due_ms: When its window is sealed, by the wall clock; None: by hand.
    """

    settings: RoundSettings
    survivors_min: int
    message_bytes_max: int
    due_ms: int | None

    def allow_vectors(self, now_ms: int) -> bool:
        """Whether it is open for so long."""
        return self.due_ms is None or self.due_ms - now_ms >= 1000 * self.settings.least_left_s


def limits_of(plan: Plan, settings: RoundSettings, parameters: RoundParameters) -> RoundLimits:
    """The limits of a round of a plan."""
    advertisement = 2 + ID_BYTES_MAX + KEYS_BYTES + SIGNATURE_BYTES
    shares = HASH_BYTES + parameters.degree * SEALED_BYTES
    size = len(pack(parameters, Kind.SHARES)) + max(advertisement, shares)  # all other messages are shorter
    due = None if settings.manual else due_ms(plan.window, parameters.window)
    return RoundLimits(settings, parameters.members_min, size, due)


CHUNK_BYTES_MAX: Final = 256 * 1024


class VectorUploads:
    """The vectors of one round that are under way.

    Args:
        total_bytes: Of a packed vector.
        at_once: How many clients may be sending: so many vectors are held here at most.

    Attributes:
        granted: Clients that were ever allowed to send: it may be spent for them.
        begun: Those of whose vector anything came: it is spent for them.
    """

    def __init__(self, total_bytes: int, at_once: int) -> None:
        self._total = total_bytes
        self._at_once = at_once
        self._held: dict[str, bytearray] = {}
        self.granted: set[str] = set()
        self.begun: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """What is held of vectors that are not whole."""
        return sum(map(len, self._held.values()))

    def grant(self, client_id: str) -> None:
        """From here on this client may send its vector."""
        assert len(self._held) < self._at_once, "more uploads granted than this server holds"
        assert client_id not in self.granted, "a vector is granted once"
        self.granted.add(client_id)
        self._held[client_id] = bytearray()

    def drop(self, client_id: str) -> None:
        """It sends nothing more; what came of it is let go."""
        self._held.pop(client_id, None)

    def add(self, client_id: str, offset: int, data: bytes) -> bytes | None:
        """Takes the next chunk.

        Args:
            client_id: Whose.
            offset: Where it stands in the vector: where the last one ended.
            data: 1 to ``CHUNK_BYTES_MAX`` bytes.

        Returns:
            The vector, once it is whole.

        Raises:
            SecureSumError: It was not granted, does not follow the last one, or is too long.
        """
        held = self._held.get(client_id)
        if held is None:
            raise SecureSumError("a chunk of a vector that was not granted, expected none")
        if offset != len(held):
            raise SecureSumError(f"a chunk at {offset}, expected the next one, at {len(held)}")
        if not 1 <= len(data) <= CHUNK_BYTES_MAX:
            raise SecureSumError(f"a chunk of {len(data)} bytes, expected 1 to {CHUNK_BYTES_MAX}")
        if offset + len(data) > self._total:
            raise SecureSumError(f"a vector beyond {self._total} bytes, expected exactly so many")
        self.begun.add(client_id)
        held += data
        if len(held) < self._total:
            return None
        del self._held[client_id]
        return bytes(held)


# A round has fewer messages for one client: whoever has so many unread does not read, and is let go.
UNREAD_MAX: Final = 16
_ROUND: Final = slice(42, 74)  # of the protocol's messages: behind format, kind, plan and window


class Participant:
    """What is said to one call, until its end.

    Args:
        caller: Whose call.
        window: In which it takes part.

    Attributes:
        past_rounds: Ids of those that it was in, and that ended before anything was spent: what it still says in them
            was on its way, and is no fault of its own.
        is_there: Whether its call goes on, as far as is known.
    """

    def __init__(self, caller: CallKey, window: int) -> None:
        self.caller = caller
        self.window = window
        self.past_rounds: set[bytes] = set()
        self.is_there = True
        self._unread: deque[RoundReply] = deque()
        self._ending: RoundOutcome | RefusedError | None = None
        self._wake = asyncio.Event()

    def is_of_past_round(self, data: bytes) -> bool:
        """Whether a message is of a round that it was in, and that is over."""
        return data[_ROUND] in self.past_rounds

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be said."""
        return self._ending is not None

    def tell(self, reply: RoundReply) -> bool:
        """Says something; False where too much is unread already, and the call has been ended for that."""
        if self._ending is not None:
            return True
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            self.end(overloaded(f"more than {UNREAD_MAX} messages unread"))
            return False
        self._unread.append(reply)
        self._wake.set()
        return True

    def end(self, ending: RoundOutcome | RefusedError) -> None:
        """Says the last thing; only the first end counts."""
        if self._ending is None:
            self._ending = ending
            self.is_there = False
            self._wake.set()

    async def replies(self) -> AsyncIterator[RoundReply]:
        """All that is said, in order; read by one.

        Raises:
            RefusedError: That was the end.
        """
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


PROGRESS_S: Final = 0.2  # how often, at most, it is looked who is in which step

_LATE: Final = "the vector did not come in its time"
AGAIN_MS: Final = 1000
_ALL_NEEDED: Final = frozenset({Step.ADVERTISE, Step.OPEN, Step.SHARE})

_journal = journal("secure sums")


class _Alarm(enum.Enum):
    """Alarms beside those of clients."""

    STEP = "step"
    UPLOADS = "uploads"


class RoundDriver:
    """One round.

    Args:
        id: 32 bytes.
        parts: Its clients.
        machine: The protocol's, for these clients; it has not begun.
        uploads: Where vectors come together.
        runtime: Time, tasks and threads.
        limits: How long it waits, and what it reads.
        charge: Has the ledger pay for the window and fixes that the members' vectors belong to this round: see
            :meth:`aggregator.secure.claims.RoundClaims.charge`. It is called once, before the first grant.

    Attributes:
        ended: Its end, once it is there.
        dropped: Clients that are out.
        elsewhere: Those of them that the store did not let into it.
        is_charged: Whether the window may have been charged for it.
        spoilers: Clients because of whom it ended while all of them were needed.
        progress: Clients by step.
        tell_step: Called with each step that begins, and how many clients are in it.
    """

    def __init__(
        self,
        id: bytes,
        parts: Sequence[Participant],
        *,
        machine: ServerRound,
        uploads: VectorUploads,
        runtime: Runtime,
        limits: RoundLimits,
        charge: Callable[[RoundMembers], Awaitable[None]],
    ) -> None:
        self.id = id
        self.window = parts[0].window
        self.parts = {part.caller.client_id: part for part in parts}
        self.ended: RoundEnd | None = None
        self.dropped: set[str] = set()
        self.elsewhere: set[str] = set()
        self.is_charged = False
        self.spoilers: frozenset[str] = frozenset()
        self.progress: Mapping[Step, int] = {}
        self.tell_step: Callable[[Step, int], None] = lambda _, __: None
        self._machine = machine
        self._uploads = uploads
        self._runtime = runtime
        self._limits = limits
        self._charge = charge
        self._settings = limits.settings
        self._whole: set[str] = set()  # clients whose vector is here
        self._events: asyncio.Queue[tuple[Event | None, asyncio.Future[None]]] = asyncio.Queue()
        self._alarms = Timers(runtime)
        self._heard: set[str] = set()
        self._looked_s = -PROGRESS_S

    @property
    def present(self) -> tuple[Participant, ...]:
        """Its clients that are still there."""
        return tuple(part for client_id, part in self.parts.items() if client_id not in self.dropped)

    @property
    def granted(self) -> frozenset[str]:
        """Clients that were allowed to send their vector: it may be spent for them."""
        return frozenset(self._uploads.granted)

    @property
    def spent(self) -> frozenset[str]:
        """Clients of whose vector anything came."""
        return frozenset(self._uploads.begun)

    async def run(self) -> RoundEnd:
        """Runs it to its end; every client still there waits for what becomes of it."""
        try:
            if self.ended is None:
                self._apply(await self._runtime.blocking(self._machine.begin))
            while self.ended is None:
                event, handled = await self._events.get()
                try:
                    if event is not None:
                        await self._handle(event)
                finally:
                    if not handled.done():  # whoever waited for it may be gone
                        handled.set_result(None)
        except Exception as error:  # noqa: BLE001  whatever went wrong here, the clients are told that it did
            _journal.error("a round failed", window=self.window, exc_info=error)
            self._end(RoundEnd(None, FAILED))
        finally:
            self._alarms.hush_all()
            self._let_go()
        assert self.ended is not None
        return self.ended

    def abort(self, why: str, result: RoundResult = RoundResult.ABORTED) -> None:
        """Ends it as it stands, if it has not ended."""
        self._end(RoundEnd(None, why, result=result))
        self._put(None)

    def exclude(self, client_id: str) -> None:
        """Leaves out a client that the store did not let in."""
        self.elsewhere.add(client_id)
        taken = f"a vector of this client may have been taken in this window, or it was in {ATTEMPTS_MAX} cohorts of it"
        self.parts[client_id].end(RoundOutcome(b"", RoundResult.UNKNOWN, taken))
        self._drop(client_id)

    async def message(self, part: Participant, message: Message) -> None:
        """Takes a client's message, and returns once it is handled: no more than one of a client waits."""
        client_id, size = part.caller.client_id, len(message.data)
        if size <= self._limits.message_bytes_max:
            await self._put(ClientMessage(client_id, message.data), part)
        elif self._is_in(part):
            self._refuse(client_id, f"a message of {size} bytes, expected at most {self._limits.message_bytes_max}")

    async def chunk(self, part: Participant, chunk: VectorChunk) -> None:
        """Takes a chunk of a client's vector."""
        client_id = part.caller.client_id
        if not self._is_in(part):
            return
        try:
            vector = self._uploads.add(client_id, chunk.offset, chunk.data)
        except SecureSumError as error:
            self._refuse(client_id, str(error))
            return
        if vector is not None:
            self._alarms.hush(client_id)
            self._whole.add(client_id)
            if len(self._whole) >= self._limits.survivors_min and _Alarm.UPLOADS not in self._alarms:
                self._alarms.set(_Alarm.UPLOADS, self._settings.upload_s, self._drop_late)
            await self._put(Uploaded(client_id, vector), part)

    def left(self, part: Participant) -> None:
        """A client's call has ended."""
        if self._is_in(part):
            self._drop(part.caller.client_id)

    # ------------------------------------------------------------------------------------------------- the machine

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
            self.spoilers = frozenset(guilty | self.dropped - self.elsewhere if step is Step.ADVERTISE else guilty)
            if step not in _ALL_NEEDED:
                self.spoilers = frozenset()
        is_first = not self.granted and any(isinstance(effect, Grant) for effect in effects)
        if is_first and not await self._may_grant():
            return
        self._apply(effects)

    async def _may_grant(self) -> bool:
        """Has the window charged before anybody is asked for a vector; where it is not, the round ends unspent."""
        if self._is_in_time():
            self.is_charged = True
            try:
                await self._charge(RoundMembers(self.id, tuple(part.caller.client_id for part in self.present)))
            except ClaimLostError as error:
                for client_id in error.clients:
                    self.parts[client_id].end(overloaded("a round of this client began at another gateway"))
                    self._forget(client_id)
                self.spoilers = error.clients
                self._end(RoundEnd(None, str(error), again=True))
            except RefusedError as error:
                for part in self.present:
                    part.end(error)
                self._end(RoundEnd(None, error.refusal.detail))
            except WindowOrderError as error:
                self._end(RoundEnd(None, str(error), result=RoundResult.LATE))
            except StoreUnavailableError as error:
                self._end(RoundEnd(None, f"the window may not have been charged: {error}"))
        return self.ended is None and self._is_in_time()

    def _is_in_time(self) -> bool:
        """Whether the window stays open for long enough; else the round ends."""
        is_in_time = self._limits.allow_vectors(self._runtime.now_ms())
        if not is_in_time:
            why = f"nobody was asked for a vector: the seal is less than {self._settings.least_left_s:g} s away"
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
                    self._let_go_of(client_id, RefusedError(Refusal.of(Reason.MALFORMED, text)))
                case Await(step):
                    self._heard.clear()
                    self.tell_step(step, len(self.present))
                    self._alarms.set(_Alarm.STEP, self._settings.step_s, partial(self._put, Expired(step)))
                case Done(sum):
                    self._end(RoundEnd(sum))
                case Failed():
                    self._end(RoundEnd(None, effect.reason, effect.again, suspects=effect.suspects))
        now_s = self._runtime.monotonic()
        if now_s - self._looked_s >= PROGRESS_S or self.ended is not None:
            self._looked_s = now_s
            self.progress = dict(self._machine.progress)

    def _put(self, event: Event | None, part: Participant | None = None) -> asyncio.Future[None]:
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (self.ended is not None and event is not None) or (part is not None and not self._is_in(part)):
            handled.set_result(None)
        else:
            self._events.put_nowait((event, handled))
        return handled

    def _end(self, end: RoundEnd) -> None:
        if self.ended is None:
            self.ended = end

    def _let_go(self) -> None:
        """Nothing is handled any more: whoever waits for that goes on."""
        while not self._events.empty():
            _, handled = self._events.get_nowait()
            if not handled.done():
                handled.set_result(None)

    # ------------------------------------------------------------------------------------------------- the clients

    def _is_in(self, part: Participant) -> bool:
        client_id = part.caller.client_id
        return self.ended is None and client_id not in self.dropped and self.parts.get(client_id) is part

    def _tell(self, client_id: str, data: bytes) -> None:
        if client_id not in self.dropped and not self.parts[client_id].tell(Message(data)):
            self._drop(client_id)

    def _grant(self, client_id: str) -> None:
        if client_id in self.dropped:  # the machine hears of it with the next event
            return
        self._uploads.grant(client_id)
        self._alarms.set(client_id, self._settings.upload_s, partial(self._leave_out, client_id, _LATE))

    def _refuse(self, client_id: str, detail: str) -> None:
        self.parts[client_id].end(RefusedError(Refusal.of(Reason.MALFORMED, detail)))
        self._drop(client_id)

    def _drop(self, client_id: str) -> None:
        """It is out; the machine is told."""
        if client_id not in self.dropped:
            self._forget(client_id)
            self._put(Vanished(client_id))

    def _let_go_of(self, client_id: str, why: RefusedError) -> None:
        """It is out, as the machine says."""
        self._whole.discard(client_id)  # where it was its vector that does not fit
        self.parts[client_id].end(why)
        self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        self.dropped.add(client_id)
        self._uploads.drop(client_id)
        self._alarms.hush(client_id)

    # --------------------------------------------------------------------------------------------------------- time

    def _drop_silent(self) -> set[str]:
        """Those who have said nothing in a step that failed for it are not taken along into the next round."""
        silent = {part.caller.client_id for part in self.present} - self._heard
        for client_id in silent:
            self.parts[client_id].end(overloaded("nothing came in the time of a step of the round"))
            self._forget(client_id)
        return silent

    def _drop_late(self) -> None:
        """Enough vectors are whole, and all others have had their time: those whose turn has not come go first."""
        if len(self._whole) >= self._limits.survivors_min:
            late = [part.caller.client_id for part in self.present if part.caller.client_id not in self._whole]
            for client_id in sorted(late, key=lambda client_id: client_id in self.granted):
                is_granted = client_id in self.granted
                self._leave_out(client_id, _LATE if is_granted else "the others were slow", again=not is_granted)

    def _leave_out(self, client_id: str, why: str, *, again: bool = False) -> None:
        after_ms = AGAIN_MS if again else 0
        self.parts[client_id].end(RoundOutcome(self.id, RoundResult.LEFT_OUT, why, again, after_ms))
        self._drop(client_id)
