"""A world for one session: a fake wire that loses, repeats and reorders, a service by the rules, a spool, a clock.

The world keeps its own books, and asserts on every send what must hold: numbers within 64 of the lowest one that has no
durable answer, no more in flight than the service allows, and the same bytes under an id for ever.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from edge_client.config import Config
from edge_client.session.session import (
    EARLY_MAX,
    Answered,
    Begun,
    Close,
    Connect,
    Connected,
    Disconnected,
    Event,
    Open,
    Send,
    Session,
    SetTimer,
    Settle,
    Settled,
    Spooled,
    State,
    Stop,
    TimerFired,
    WarnOfClock,
)
from edge_client.transport.interface import Disconnect
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import Reason
from hushsum.schedule import Schedule
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.messages import Welcome

PLAN_ID = bytes(range(32))
STREAM = 0xFEED
START_MS = 1_750_000_000_000

MINUTES = Schedule(60_000, 0, 60_000)

FINAL = {
    Status.ACKNOWLEDGED: 0.7,
    Status.COUNTED: 0.1,
    Status.LATE: 0.08,
    Status.UNKNOWN: 0.04,
    Status.REFUSED: 0.08,
}


def welcome(in_flight_max: int = 64, plan_id: bytes = PLAN_ID, now_ms: int = START_MS, version: int = 1) -> Welcome:
    return Welcome(version, plan_id, 0, now_ms, -1, 1, in_flight_max, 10_000)


def answer(sequence: int, status: Status = Status.ACKNOWLEDGED, refusal: Refusal | None = None) -> Answer:
    return Answer(DeltaId(STREAM, sequence), status, refusal)


@dataclass
class Service:
    """Answers by the rules: one definitive answer an id for ever, after any number of refusals for the moment."""

    rng: np.random.Generator
    trouble: float = 0.3  # the chance that a delta is refused for the moment
    bytes_of: dict[int, bytes] = field(default_factory=dict)
    final: dict[int, Answer] = field(default_factory=dict)
    highest: int = -1
    received: Counter[int] = field(default_factory=Counter)

    def receive(self, sequence: int, data: bytes) -> Answer:
        self.received[sequence] += 1
        assert self.bytes_of.setdefault(sequence, data) == data, f"{sequence} came with other bytes"
        if sequence not in self.final:
            if self.rng.random() < self.trouble:
                reason = ServiceReason.OVERLOADED if self.rng.random() < 0.5 else ServiceReason.UNAVAILABLE
                refusal = Refusal.of(reason, "not now", int(self.rng.integers(0, 300)))
                return answer(sequence, Status.REFUSED, refusal)
            # A number below the mask counts as a duplicate: a delta that is new there would be lost.
            assert sequence > self.highest - 64, f"{sequence} is new, but {self.highest} came before"
            self.highest = max(self.highest, sequence)
            status = Status(str(self.rng.choice([status.value for status in FINAL], p=list(FINAL.values()))))
            refused = Refusal.of(Reason.TOO_MANY_RECORDS, "too many") if status is Status.REFUSED else None
            self.final[sequence] = answer(sequence, status, refused)
        return self.final[sequence]


@dataclass
class Wire:
    """One connection: what is under way in each direction."""

    number: int
    open: bool = False
    greeted: bool = False
    silent: bool = False  # takes everything and answers nothing
    to_service: list[tuple[int, bytes]] = field(default_factory=list)
    to_client: list[Answer] = field(default_factory=list)


class World:
    """Everything around a session, moved one random step at a time."""

    def __init__(
        self,
        rng: np.random.Generator,
        in_flight_max: int = 64,
        config: Config | None = None,
        schedule: Schedule = MINUTES,
        *,
        sends_early: bool = False,
    ) -> None:
        self.rng = rng
        self.sends_early = sends_early
        self.early = 0  # deltas that were sent before a welcome
        self.config = config or Config()
        self.schedule = schedule
        self.service = Service(rng)
        self.in_flight_max = in_flight_max
        self.now = 1000.0
        self.spool: dict[int, bytes] = {}  # unanswered
        self.settling: dict[int, Answer] = {}  # answered, not durably so
        self.settled: dict[int, Answer] = {}
        self.end = 0
        self.wire: Wire | None = None
        self.wake_at: float | None = None
        self.in_flight: set[int] = set()
        self.opened: list[bool] = []
        self.warned = 0
        self.stopped: Exception | None = None
        self.session = self.new_session()

    def new_session(self) -> Session:
        session = Session(
            config=self.config,
            plan_id=PLAN_ID,
            stream=STREAM,
            unanswered=sorted(self.spool),
            entropy=ReplayableEntropy(self.rng.bytes(8)),
            schedule=self.schedule,
        )
        session.sends_early = self.sends_early
        return session

    # ------------------------------------------------------------------------------------- the shell, in a few lines

    def tell(self, event: Event) -> None:
        for effect in self.session.handle(event):
            match effect:
                case Connect(number):
                    assert self.wire is None, "one connection at a time"
                    self.wire, self.in_flight = Wire(number), set()
                case Open(number, unary):
                    assert self.wire is not None
                    assert self.wire.number == number
                    self.wire.open = True
                    self.opened.append(unary)
                case Send(number, sequences):
                    assert self.wire is not None
                    assert self.wire.number == number
                    self.send(sequences)
                case Settle(given, sequence):
                    assert given.id == DeltaId(STREAM, sequence)
                    assert sequence not in self.settling
                    self.settling[sequence] = given
                    self.in_flight.discard(sequence)
                case Close():
                    self.wire = None
                case SetTimer(at):
                    self.wake_at = at
                case WarnOfClock():
                    self.warned += 1
                case Stop(error):
                    self.stopped = error

    def send(self, sequences: Iterable[int]) -> None:
        assert self.wire is not None
        assert self.wire.open
        lowest = min(self.spool)
        for sequence in sequences:
            assert sequence in self.spool, f"{sequence} is not outstanding"
            assert sequence not in self.settling, f"{sequence} has its answer"
            assert sequence < lowest + 64, f"{sequence} is sent while {lowest} has no durable answer"
            assert sequence not in self.in_flight
            self.in_flight.add(sequence)
            assert len(self.in_flight) <= (self.in_flight_max if self.wire.greeted else EARLY_MAX)
            self.early += not self.wire.greeted
            self.wire.to_service.append((sequence, self.spool[sequence]))

    # ------------------------------------------------------------------------------------------------- what happens

    def begin(self) -> None:
        self.tell(Begun(self.now))

    def spool_some(self, count: int) -> None:
        new = range(self.end, self.end + count)
        self.end += count
        for sequence in new:
            self.spool[sequence] = self.rng.bytes(8)
        self.tell(Spooled(self.now, tuple(new)))

    def greet(self, reply: Welcome | None = None) -> None:
        assert self.wire is not None
        device_ms = START_MS + int((self.now - 1000.0) * 1000)
        reply = reply or welcome(self.in_flight_max, now_ms=device_ms)
        self.wire.greeted = True
        self.tell(Connected(self.now, self.wire.number, reply, device_ms))

    def lose(self, loss: Disconnect | None = None) -> None:
        assert self.wire is not None
        number, self.wire, self.in_flight = self.wire.number, None, set()
        self.tell(Disconnected(self.now, number, loss or Disconnect("the network is gone")))

    def deliver_to_service(self) -> None:
        assert self.wire is not None
        sequence, data = self.wire.to_service.pop(0)
        given = self.service.receive(sequence, data)
        if not self.wire.silent:
            self.wire.to_client.append(given)

    def deliver_to_client(self, index: int, *, again: bool = False) -> None:
        assert self.wire is not None
        given = self.wire.to_client[index] if again else self.wire.to_client.pop(index)
        if given.id is not None and given.status is Status.REFUSED and given.refusal and given.refusal.retry:
            self.in_flight.discard(given.id.sequence)
        self.tell(Answered(self.now, self.wire.number, given))

    def settle_durably(self, sequence: int) -> None:
        assert sequence not in self.settled
        self.settled[sequence] = self.settling.pop(sequence)
        del self.spool[sequence]
        self.tell(Settled(self.now, sequence))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.wake_at is not None and self.wake_at <= self.now:
            self.wake_at = None
            self.tell(TimerFired(self.now))

    def until_connected(self) -> None:
        """Time passes until the session makes a connection by itself."""
        while self.wire is None:
            assert self.wake_at is not None
            self.pass_time(max(0.0, self.wake_at - self.now))

    def crash(self) -> None:
        """The device is switched off: what is not durable is forgotten, and it starts again from its spool."""
        self.settling.clear()
        self.wire, self.wake_at, self.in_flight = None, None, set()
        self.session = self.new_session()
        self.begin()

    def step(self) -> None:
        """One thing that can happen now, at random."""
        draw = self.rng.random()
        if draw < 0.02:
            self.crash()
        elif draw < 0.08:
            self.spool_some(int(self.rng.integers(1, 20)))
        elif draw < 0.30 and self.settling:
            self.settle_durably(int(self.rng.choice(list(self.settling))))
        elif draw < 0.36:
            self.pass_time(float(self.rng.exponential(0.5 if self.rng.random() < 0.9 else 60.0)))
        elif self.wire is None:
            self.pass_time(float(self.rng.exponential(1.0)))
        elif not self.wire.greeted:
            if self.wire.to_service and self.rng.random() < 0.5:
                self.deliver_to_service()  # its answer is heard after the welcome, if that ever comes
            elif self.rng.random() < 0.3:
                self.lose()
            else:
                self.wire.silent = self.rng.random() < 0.1
                self.greet()
        elif draw < 0.40:
            self.lose()
        elif self.wire.to_service and draw < 0.7:
            self.deliver_to_service()
        elif self.wire.to_client:
            self.deliver_to_client(int(self.rng.integers(len(self.wire.to_client))), again=self.rng.random() < 0.2)

    def calm_down(self) -> None:
        """From here on everything works; moves the world until nothing is left to do.

        Raises:
            AssertionError: It waits for something that never comes.
        """
        self.service.trouble = 0.0
        for _ in range(100_000):
            wire = self.wire
            if wire is not None and wire.silent:
                self.lose()
            elif wire is not None and not wire.greeted:
                self.greet()
            elif wire is not None and wire.to_service:
                self.deliver_to_service()
            elif wire is not None and wire.to_client:
                self.deliver_to_client(0)
            elif self.settling:
                self.settle_durably(min(self.settling))
            elif not self.spool:
                return
            else:
                assert self.wake_at is not None, f"{len(self.spool)} deltas wait for nothing in {self.session.state}"
                self.pass_time(max(0.0, self.wake_at - self.now))
        raise AssertionError(f"{len(self.spool)} deltas are still there, the session is {self.session.state}")

    @property
    def state(self) -> State:
        return self.session.state
