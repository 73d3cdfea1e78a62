"""The session: a state machine without sockets, clocks or tasks. Events in, effects out.

::

    IDLE ──something to send──▶ GREETING ──welcome──▶ OPEN
     ▲                             │                   │
     ├──────── WAITING ◀── lost ──┴─────── lost ──────┤         any ── another plan, no common version … ──▶ STOPPED
     └──────────────── nothing to send for long ──────┘

It resends what a lost connection left unanswered, waits longer after each failure, keeps within the window of sequence
numbers and the service's limit, and lets go of a delta at a definitive answer alone. The first deltas of a connection
may go with its Hello; their answers are heard once the welcome has come.
"""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_client.config import ASKED_WAIT_MAX_MS, SEQUENCE_WINDOW, Config
from edge_client.errors import AuthenticationError, PlanChangedError, SessionRefusedError
from edge_client.runtime import BackOff
from edge_client.transport.interface import Disconnect
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy
from hushsum.errors import Reason
from hushsum.schedule import ARRIVAL, NEXT, Schedule
from hushsum_proto.answers import IDENTITY_REASONS, Answer, Refusal, ServiceReason, Status
from hushsum_proto.messages import PROTOCOL_VERSIONS, Welcome

#: These say that no delta of this client is welcome: none of them is given up for it.
ENDS_SESSION: Final = frozenset(
    {Reason.WRONG_PLAN, ServiceReason.UNAUTHENTICATED, ServiceReason.FORBIDDEN, ServiceReason.PROTOCOL_VERSION}
)


# ------------------------------------------------------------------------------- events; ``now`` in monotonic seconds


@dataclass(frozen=True)
class Begun:
    """The client is running."""

    now: float


@dataclass(frozen=True)
class ConnectionNeeded:
    """From now on a connection is needed with nothing to send, too; or it is no longer."""

    now: float
    is_needed: bool


@dataclass(frozen=True)
class Spooled:
    """New deltas are durable under these numbers, ascending and above all earlier ones.

    Attributes:
        streams: (number, stream) of those that have a stream of their own.
    """

    now: float
    sequences: tuple[int, ...]
    streams: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Connected:
    """The service replied to Hello on this connection, when this device's clock said ``device_ms``."""

    now: float
    connection: int
    welcome: Welcome
    device_ms: int


@dataclass(frozen=True)
class Answered:
    """An answer came on this connection.

    It is reported after the connection's Connected, even if the service answers in another order.

    Attributes:
        window: Of the delta that it answers; None where late deltas stay in their windows.
    """

    now: float
    connection: int
    answer: Answer
    window: int | None = None


@dataclass(frozen=True)
class Disconnected:
    """This connection is over, or never came about."""

    now: float
    connection: int
    loss: Disconnect


@dataclass(frozen=True)
class Deferred:
    """A delta that was to be sent on this connection has to wait so long: its window has not begun, or has no room."""

    now: float
    connection: int
    sequence: int
    wait_s: float


@dataclass(frozen=True)
class Settled:
    """The answer of the delta with this number is durable in the spool, and the delta is gone from it."""

    now: float
    sequence: int


@dataclass(frozen=True)
class TimerFired:
    """The time of a SetTimer has come."""

    now: float


Event = Begun | ConnectionNeeded | Spooled | Connected | Answered | Deferred | Disconnected | Settled | TimerFired


# ----------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class Connect:
    """Make the connection of this number and say Hello on it; then report Connected or Disconnected."""

    connection: int


@dataclass(frozen=True)
class Open:
    """Make the connection ready to send, as one stream or as a call for each delta; then report Answered events.

    It may come before the reply to Hello: then deltas are sent at once, and answers are reported after Connected.
    """

    connection: int
    unary: bool


@dataclass(frozen=True)
class Send:
    """Write these deltas to the connection, in this order."""

    connection: int
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Settle:
    """Make a definitive answer durable and remove its delta from the spool; then report Settled.

    Attributes:
        service_ms: The service's clock now, as far as this device knows it: ms since 1970 UTC.
    """

    answer: Answer
    sequence: int
    service_ms: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Close:
    """End this connection; no Disconnected is needed for it any more.

    Attributes:
        is_idle: It ends for want of anything to send, not for a failure.
    """

    connection: int
    is_idle: bool = False


@dataclass(frozen=True)
class SetTimer:
    """Report TimerFired at this time; an earlier timer is void."""

    at: float


@dataclass(frozen=True)
class WarnOfClock:
    """Warn that the clocks are this many milliseconds apart (the device's less the service's)."""

    ahead_ms: int


@dataclass(frozen=True)
class Stop:
    """The session is over for good; what is unanswered stays in the spool."""

    error: SessionRefusedError


Effect = Connect | Open | Send | Settle | Close | SetTimer | WarnOfClock | Stop

EARLY_MAX: Final = 8  # deltas that go with a Hello, before its reply
_SILENT_STREAMS_MAX: Final = 3  # streams without a single answer, before deltas are sent as calls of their own
_CLOCK_SLACK_MS: Final = 1_000  # what a slow network may add to Hello
_SERVICE_MS_MAX: Final = 2**50  # of no clock that is right: windows of times beyond it could stand for none in a spool
_WINDOWS_AHEAD_MAX: Final = 2  # that a delta may be moved: a gateway may open one early, and it may be sealed early


class Stage(enum.Enum):
    """The state of a delta within the window."""

    READY = enum.auto()
    IN_FLIGHT = enum.auto()
    HELD = enum.auto()  # refused for now: not before its time
    SETTLING = enum.auto()  # answered, but not durably so yet


@dataclass
class _Place:
    stage: Stage = Stage.READY
    ready_at: float = 0.0
    refusals: int = 0
    is_deferred: bool = False  # it waits for its window, not for the service


class SendWindow:
    """The unanswered deltas, by sequence number.

    A number 64 or more above the lowest unanswered one is never picked: the service remembers only so many. A delta
    counts as unanswered until its answer is durable, so that the rule holds across a crash as well.
    """

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        self._beyond: deque[int] = deque()  # never picked, ascending, all above those in _places
        self._places: dict[int, _Place] = {}  # picked at least once; ascending
        self._in_flight = 0
        self.end = 0  # one above the highest number ever seen
        self.append(sequences)

    def __len__(self) -> int:
        return len(self._places) + len(self._beyond)

    @property
    def in_flight(self) -> int:
        """How many are sent and not answered on this connection."""
        return self._in_flight

    @property
    def lowest(self) -> int | None:
        """The lowest unanswered number."""
        return next(iter(self._places), self._beyond[0] if self._beyond else None)

    def is_answered(self, end: int) -> bool:
        """Whether everything below a number has its durable answer."""
        return self.lowest is None or self.lowest >= end

    def append(self, sequences: Iterable[int]) -> None:
        """New deltas, ascending and above all earlier ones."""
        for sequence in sequences:
            assert sequence >= self.end, f"{sequence} follows {self.end - 1}"
            self._beyond.append(sequence)
            self.end = sequence + 1

    def pick(self, now: float, in_flight_max: int) -> tuple[int, ...]:
        """The numbers to send now, in this order; they are in flight from here on."""
        room = in_flight_max - self._in_flight
        picked: list[int] = []
        for sequence, place in self._places.items():
            if len(picked) >= room:
                break
            if place.stage is Stage.READY or (place.stage is Stage.HELD and place.ready_at <= now):
                place.stage = Stage.IN_FLIGHT
                picked.append(sequence)
        lowest = self.lowest
        while lowest is not None and len(picked) < room and self._beyond and self._beyond[0] < lowest + SEQUENCE_WINDOW:
            sequence = self._beyond.popleft()
            self._places[sequence] = _Place(Stage.IN_FLIGHT)
            picked.append(sequence)
        self._in_flight += len(picked)
        return tuple(picked)

    def has_room(self, in_flight_max: int) -> bool:
        return self._in_flight < in_flight_max

    @property
    def deferred(self) -> int:
        """How many wait for their windows."""
        return sum(place.stage is Stage.HELD and place.is_deferred for place in self._places.values())

    def is_in_flight(self, sequence: int) -> bool:
        place = self._places.get(sequence)
        return place is not None and place.stage is Stage.IN_FLIGHT

    def hold(self, sequence: int, ready_at: float) -> None:
        """Holds one in flight that was refused for now."""
        place = self._out_of_flight(sequence, Stage.HELD)
        place.ready_at, place.is_deferred = ready_at, False
        place.refusals += 1

    def defer(self, sequence: int, ready_at: float) -> None:
        """Holds one that was picked, and not sent: its window has not begun, or has no room."""
        place = self._out_of_flight(sequence, Stage.HELD)
        place.ready_at, place.is_deferred = ready_at, True

    def refusals(self, sequence: int) -> int:
        return self._places[sequence].refusals

    def settle(self, sequence: int) -> None:
        """Takes one out of flight that has its definitive answer."""
        self._out_of_flight(sequence, Stage.SETTLING)

    def settled(self, sequence: int) -> None:
        """Removes a number whose answer is durable."""
        assert self._places[sequence].stage is Stage.SETTLING
        del self._places[sequence]

    def lose_connection(self) -> None:
        """Makes what was in flight ready to be sent again."""
        for place in self._places.values():
            if place.stage is Stage.IN_FLIGHT:
                place.stage = Stage.READY
        self._in_flight = 0

    @property
    def next_ready_at(self) -> float | None:
        """When the first held delta may be sent again."""
        return min((place.ready_at for place in self._places.values() if place.stage is Stage.HELD), default=None)

    def _out_of_flight(self, sequence: int, stage: Stage) -> _Place:
        place = self._places[sequence]
        assert place.stage is Stage.IN_FLIGHT
        place.stage = stage
        self._in_flight -= 1
        return place


class State(enum.Enum):
    """The state of a session."""

    IDLE = enum.auto()
    GREETING = enum.auto()
    OPEN = enum.auto()
    WAITING = enum.auto()
    STOPPED = enum.auto()


class Session:
    """One client's conversation with its service, over as many connections as it takes.

    Args:
        schedule: The plan's windows. Clocks that differ by more than its lateness are reported once, where the device's
            dates records. Where late deltas move to later windows, a delta whose window has not begun is held until
            then.
        unanswered: Numbers of the deltas that the spool holds, ascending.
        batches: Where each delta is a batch with a stream of its own: the streams of unanswered ones, by number.

    Attributes:
        sends_early: Whether the first deltas go with a Hello: set before the first event. They need their windows, and
            a plan under which their order among other messages means nothing.
    """

    def __init__(
        self,
        *,
        config: Config,
        plan_id: bytes,
        stream: int,
        schedule: Schedule,
        unanswered: Iterable[int],
        entropy: Entropy,
        batches: Mapping[int, int] | None = None,
    ) -> None:
        self.plan_id = plan_id
        self.state = State.IDLE
        self.sends_early = False
        self.send_window = SendWindow(unanswered)
        self.last_loss: Disconnect | None = None
        self._config = config
        self._stream = stream if batches is None else None
        self._batches = {stream: number for number, stream in (batches or {}).items()}  # unanswered
        self._schedule = schedule
        self._clock_limit_ms: int | None = None  # once it was told, or where the device's clock dates no records
        if schedule.time != ARRIVAL:
            self._clock_limit_ms = max(schedule.lateness_ms, _CLOCK_SLACK_MS)
        self._backoff = BackOff(config.backoff_first_s, config.backoff_longest_s, entropy)
        self._connection = 0
        self._service_began_ms = 0  # the service's clock at 0 of the events' clock
        self._never_connected = True  # it connects even with nothing to send: a wrong plan is reported early
        self._is_needed = False  # it connects, and stays connected, with nothing to send
        self._in_flight_max = config.in_flight_max
        self._unary = config.unary
        self._is_opened = False  # this connection takes deltas
        self._idle_since: float | None = None  # open, and nothing unanswered
        self._silent_streams = 0
        self._has_answer = False  # an answer came on this connection
        self._progress_at = 0.0
        self._resume_at = 0.0
        self._wake_at: float | None = None

    @property
    def failures(self) -> int:
        """Connections and attempts that have ended since the last answer."""
        return self._backoff.failures

    @property
    def next_attempt_at(self) -> float | None:
        """When the next connection is made, by the clock of the events; None where none is due."""
        return self._resume_at if self.state is State.WAITING and self._has_use else None

    @property
    def _has_use(self) -> bool:
        """Whether there is something to use a connection for."""
        return self._is_needed or len(self.send_window) > 0

    def handle(self, event: Event) -> list[Effect]:
        """The effects of an event, in this order."""
        effects = self._react(event)
        if self.state is not State.STOPPED:
            effects += self._due(event.now)
            effects += self._next_timer()
        return effects

    def _react(self, event: Event) -> list[Effect]:
        match event:
            case ConnectionNeeded():
                return self._need(is_needed=event.is_needed)
            case Spooled():
                self.send_window.append(event.sequences)
                self._batches.update((stream, number) for number, stream in event.streams)
            case Settled():
                self.send_window.settled(event.sequence)
            case TimerFired():
                self._wake_at = None
            case Connected() if self._is_current(event.connection, State.GREETING):
                return self._greeted(event)
            case Answered() if self._is_current(event.connection, State.OPEN):
                return self._answered(event)
            case Deferred() if self._is_current(event.connection, State.OPEN):
                self._deferred(event)
            case Disconnected() if self._is_current(event.connection, State.GREETING, State.OPEN):
                return self._lost(event.now, event.loss)
            case Begun() | Connected() | Answered() | Deferred() | Disconnected():
                pass  # the start needs nothing more, and what an old connection says late is void
        return []

    def _is_current(self, connection: int, *states: State) -> bool:
        return connection == self._connection and self.state in states

    def _greeted(self, event: Connected) -> list[Effect]:
        welcome = event.welcome
        if welcome.plan_id != self.plan_id:
            return self._stop(_plan_changed(f"plan {welcome.plan_id.hex()[:12]}", self.plan_id))
        if welcome.protocol_version not in PROTOCOL_VERSIONS:
            spoken = ", ".join(map(str, PROTOCOL_VERSIONS))
            came = f"protocol version {welcome.protocol_version}, this client supports {spoken}"
            return self._stop(SessionRefusedError(f"the service uses {came}: update this software"))
        self.state = State.OPEN
        self._service_began_ms = min(max(welcome.now_ms, 0), _SERVICE_MS_MAX) - round(1000 * event.now)
        self._never_connected = False
        self._has_answer = False
        self._progress_at = event.now
        self._idle_since = None
        self._in_flight_max = max(1, min(self._config.in_flight_max, welcome.in_flight_max))
        effects: list[Effect] = [] if self._is_opened else [Open(self._connection, self._unary)]
        ahead_ms = event.device_ms - welcome.now_ms
        if self._clock_limit_ms is not None and abs(ahead_ms) > self._clock_limit_ms:
            self._clock_limit_ms = None
            effects.append(WarnOfClock(ahead_ms))
        return effects

    def _answered(self, event: Answered) -> list[Effect]:
        answer = event.answer
        if answer.id is None:
            detail = answer.refusal.detail if answer.refusal else "no reason given"
            return self._break(event.now, Disconnect(f"the service could not read the id of a delta: {detail}"))
        sequence = self._number_of(answer.id)
        if sequence is None or not self.send_window.is_in_flight(sequence):
            return []  # another copy of an answer that was heard already
        refusal = answer.refusal
        if refusal is not None and refusal.reason in ENDS_SESSION:
            return self._stop(_refused(refusal, self.plan_id))
        self._has_answer = True
        self._progress_at = event.now
        wait_s = self._wait_s(event)
        if wait_s is not None:
            jitter_s = self._backoff.jitter_s(self.send_window.refusals(sequence))
            self.send_window.hold(sequence, event.now + wait_s + jitter_s)
            return []
        self._silent_streams = 0
        self._backoff.reset()
        self.send_window.settle(sequence)
        self._batches.pop(answer.id.stream, None)
        return [Settle(answer, sequence, self.service_ms(event.now))]

    def service_ms(self, now: float) -> int:
        """The service's clock, as its latest welcome told it, in ms since 1970 UTC."""
        return self._service_began_ms + round(1000 * now)

    def until_begun_s(self, window: int, now: float) -> float:
        """How long until a window begins, by the service's clock; not positive once it has begun."""
        return (self._schedule.start_ms(window) - self.service_ms(now)) / 1000

    def _wait_s(self, event: Answered) -> float | None:
        """How long to wait before the delta is sent again, at least; None after a definitive answer."""
        refusal, schedule = event.answer.refusal, self._schedule
        if event.answer.status is not Status.REFUSED or refusal is None:
            return None
        if refusal.retry:
            return _asked_wait_s(refusal)
        if refusal.reason is not Reason.WINDOW_IN_FUTURE or schedule.late != NEXT or event.window is None:
            return None
        # After an early seal the window that a late delta moved to may not have begun. Nothing was counted of it.
        service_ms = self.service_ms(event.now)
        if event.window > schedule.index_at(service_ms) + _WINDOWS_AHEAD_MAX:
            return None
        return limited_s(schedule.start_ms(event.window) - service_ms)

    def _need(self, *, is_needed: bool) -> list[Effect]:
        """Where calls are unary, no stream tells whether the service is still there: it is greeted anew."""
        is_unheard = is_needed and self._unary and self.state is State.OPEN and not self._has_use
        self._is_needed = is_needed
        if not is_unheard:
            return []
        self.state, self._idle_since = State.IDLE, None
        return [Close(self._connection, is_idle=True)]

    def _deferred(self, event: Deferred) -> None:
        if self.send_window.is_in_flight(event.sequence):
            self.send_window.defer(event.sequence, event.now + event.wait_s)

    def _number_of(self, id: DeltaId) -> int | None:
        """The spool's number of an id; None for another spool's, and for a batch that is unknown or answered."""
        if id.stream == self._stream:
            return id.sequence
        return None if id.sequence else self._batches.get(id.stream)

    def _lost(self, now: float, loss: Disconnect) -> list[Effect]:
        refusal = loss.refusal
        if refusal is not None and refusal.reason in ENDS_SESSION:
            return self._stop(_refused(refusal, self.plan_id))
        self._choose_calls(loss)
        self.last_loss = loss
        self.send_window.lose_connection()
        self.state = State.WAITING
        self._never_connected = False
        least_s = _asked_wait_s(refusal) if refusal else 0.0
        self._resume_at = now + least_s + self._backoff.next_s()
        return []

    def _choose_calls(self, loss: Disconnect) -> None:
        """Falls back to unary calls if streams break repeatedly without an answer: a network may let none through."""
        expects_some = self.send_window.in_flight or self._is_needed
        if self.state is State.OPEN and not self._has_answer and expects_some:
            self._silent_streams = 0 if self._unary else self._silent_streams + 1
        self._unary = self._config.unary or loss.no_stream or self._silent_streams >= _SILENT_STREAMS_MAX

    def _break(self, now: float, loss: Disconnect) -> list[Effect]:
        """Gives a connection up from this side."""
        return [Close(self._connection), *self._lost(now, loss)]

    def _stop(self, error: SessionRefusedError) -> list[Effect]:
        self.state = State.STOPPED
        return [Close(self._connection), Stop(error)]

    def _due(self, now: float) -> list[Effect]:
        """What is due now, whatever the event was."""
        effects: list[Effect] = []
        if self.state is State.OPEN and self.send_window.in_flight:
            quiet_s = now - self._progress_at
            if quiet_s >= self._config.answer_wait_s:
                effects += self._break(now, Disconnect(f"no answer within {quiet_s:.0f} s"))
        effects += self._rest_when_idle(now)
        if self.state is State.WAITING and now >= self._resume_at:
            self.state = State.IDLE
        if self.state is State.IDLE and (self._has_use or self._never_connected):
            self.state = State.GREETING
            self._connection += 1
            self._is_opened = False
            effects.append(Connect(self._connection))
        if self.state is State.GREETING:
            effects += self._send_early(now)
        if self.state is State.OPEN:
            effects += self._send(now)
        return effects

    def _rest_when_idle(self, now: float) -> list[Effect]:
        """Ends a connection on which nothing has been unanswered for long: it costs the service memory."""
        if self.state is not State.OPEN or self._has_use:
            self._idle_since = None
            return []
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + self._config.idle_s:
            return []
        self.state, self._idle_since = State.IDLE, None
        return [Close(self._connection, is_idle=True)]

    def _send_early(self, now: float) -> list[Effect]:
        """The first deltas go with the Hello, unless something has failed since the last answer.

        A service that refuses the Hello, or a network that lets no stream through, is sent them once.
        """
        if not self.sends_early or self._unary or self.failures:
            return []
        picked = self.send_window.pick(now, min(EARLY_MAX, self._config.in_flight_max))
        if not picked:
            return []
        effects: list[Effect] = [] if self._is_opened else [Open(self._connection, unary=False)]
        self._is_opened = True
        return [*effects, Send(self._connection, picked)]

    def _send(self, now: float) -> list[Effect]:
        if not self.send_window.in_flight:
            self._progress_at = now
        picked = self.send_window.pick(now, self._in_flight_max)
        return [Send(self._connection, picked)] if picked else []

    def _next_timer(self) -> list[Effect]:
        """The next time at which something is due by itself."""
        times: list[float] = []
        if self.state is State.WAITING and self._has_use:
            times.append(self._resume_at)
        if self.state is State.OPEN:
            held = self.send_window.next_ready_at
            if held is not None and self.send_window.has_room(self._in_flight_max):
                times.append(held)
            if self.send_window.in_flight:
                times.append(self._progress_at + self._config.answer_wait_s)
            if self._idle_since is not None:
                times.append(self._idle_since + self._config.idle_s)
        # A wake that comes too early finds nothing to do and asks again: no need to void it for each answer.
        if not times or (self._wake_at is not None and self._wake_at <= min(times)):
            return []
        self._wake_at = min(times)
        return [SetTimer(self._wake_at)]


def _asked_wait_s(refusal: Refusal) -> float:
    """How long the service asks to wait, up to a limit."""
    return limited_s(refusal.retry_after_ms)


def limited_s(wait_ms: int) -> float:
    """A wait in seconds, up to the longest that a service may ask for."""
    return min(max(wait_ms, 0), ASKED_WAIT_MAX_MS) / 1000


def _refused(refusal: Refusal, plan_id: bytes) -> SessionRefusedError:
    if refusal.reason is Reason.WRONG_PLAN:
        return _plan_changed(f"another plan ({refusal.detail})", plan_id)
    if refusal.reason in IDENTITY_REASONS:
        return AuthenticationError(f"the service does not accept this client: {refusal.detail}")
    name = "unknown" if refusal.reason is None else refusal.reason.value
    return SessionRefusedError(f"the service refused the session: {name}: {refusal.detail}")


def _plan_changed(came: str, plan_id: bytes) -> PlanChangedError:
    return PlanChangedError(
        f"the service collects {came}, this spool belongs to plan {plan_id.hex()[:12]}, and unsent deltas remain in "
        "it: set new_plan_after_s of the policy and start again to begin the new plan, or use another spool for it"
    )
