"""A wire in memory that joins the clients of a round with its server, and lets a test do to it what networks do.

:class:`Network` carries what the machines say, in order on each line and in any order between lines. A test may alter,
drop, repeat or add to whatever passes (``meddle``), kill clients before or after they do what they were about to
(``kills``), replace a machine by its own, and read everything that was said (``passed``).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hushsum.errors import SecureSumError
from hushsum.secure_sum import client as of_client
from hushsum.secure_sum import server as of_server
from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.messages import Kind, unpack
from hushsum.secure_sum.server import Done, Failed, Step
from tests.hushsum.secure_sum.fleets import Fleet


@dataclass(frozen=True)
class Passing:
    """Something on its way.

    Attributes:
        client_id: To whom, or of whom.
        to_server: Which way.
        data: The bytes.
        kind: Of the message; None of a vector, or where it is none.
    """

    client_id: str
    to_server: bool
    data: bytes
    kind: Kind | None


@dataclass(frozen=True)
class Kill:
    """A client that dies as it reaches a step: before what it was about to do is done, or right after."""

    step: ClientStep
    before: bool


Meddle = Callable[[Passing], list[Passing]]
_Event = of_server.Event | of_client.Event


class Network:
    """Joins a fleet's clients with its server.

    Args:
        fleet: Whose machines.
        rng: Chooses which line moves next; None: whoever spoke first.
        meddle: What becomes of whatever passes: nothing, itself, or several things.
        kills: Clients that die.

    Attributes:
        passed: All that arrived, as it arrived.
        refused: What each client that refused something said of it.
        dropped: What the server said of each client that it dropped.
        attempts, spent, revealed: Clients that asked for an attempt, for a spend, and that have done their part.
        uploads: Clients that may upload at this time; ``uploads_most`` were the most at any time.
        end: How it ended; None while it has not.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        rng: np.random.Generator | None = None,
        meddle: Meddle | None = None,
        kills: Mapping[str, Kill] | None = None,
    ) -> None:
        self.fleet = fleet
        self.passed: list[Passing] = []
        self.refused: dict[str, SecureSumError] = {}
        self.dropped: dict[str, str] = {}
        self.attempts: list[str] = []
        self.spent: list[str] = []
        self.revealed: list[str] = []
        self.uploads: set[str] = set()
        self.uploads_most = 0
        self.end: Done | Failed | None = None
        self._rng = rng
        self._meddle = meddle or (lambda passing: [passing])
        self._kills = dict(kills or {})
        self._dead: set[str] = set()
        self._lines: dict[tuple[str, bool], deque[tuple[int, _Event]]] = {}
        self._sent = 0

    def run(self) -> Done | Failed:
        """Runs the round to its end; where all is silent, the server's time is over."""
        self.begin()
        while self.end is None:
            if not self.move():
                self.expire()
        return self.end

    def begin(self) -> None:
        """The server invites, and the clients begin."""
        self._apply_server(self.fleet.server.begin())
        for client_id, client in self.fleet.clients.items():
            self._apply_client(client_id, client.begin())

    def run_until_silent(self) -> None:
        """What is on its way arrives, and what follows from it."""
        while self.move():
            pass

    def move(self) -> bool:
        """Lets the next thing arrive; whether there was one."""
        ready = [key for key, line in self._lines.items() if line]
        if not ready:
            return False
        key = ready[self._rng.integers(len(ready))] if self._rng else min(ready, key=lambda key: self._lines[key][0][0])
        _, event = self._lines[key].popleft()
        client_id, to_server = key
        if to_server:
            self._to_server(event)  # type: ignore[arg-type]  # lines to the server carry its events alone
        elif client_id not in self._dead:
            self._to_client(client_id, event)  # type: ignore[arg-type]  # and the others a client's
        return True

    def expire(self) -> None:
        """The time of the server's step is over."""
        step = self.fleet.server.step
        if step is not Step.UPLOAD:
            self._to_server(of_server.Expired(step))
            return
        assert self.uploads, "nothing moves, and nobody is waited for"
        for client_id in sorted(self.uploads):
            self.uploads.discard(client_id)
            self._to_server(of_server.Vanished(client_id))

    def kill(self, client_id: str) -> None:
        """A client is gone; the server hears of it after what it had sent."""
        if client_id not in self._dead:
            self._dead.add(client_id)
            self._put(client_id, of_server.Vanished(client_id), to_server=True)

    def send(self, passing: Passing) -> None:
        """Puts something on its way, past whoever meddles."""
        event: _Event
        if not passing.to_server:
            event = of_client.ServerMessage(passing.data)
        elif passing.kind is None:
            event = of_server.Uploaded(passing.client_id, passing.data)
        else:
            event = of_server.ClientMessage(passing.client_id, passing.data)
        self._put(passing.client_id, event, to_server=passing.to_server)

    def said(self, client_id: str, kind: Kind | None, *, to_server: bool = True) -> list[bytes]:
        """All messages of a kind (None: vectors) that passed between a client and the server in one direction."""
        wanted = (client_id, to_server, kind)
        return [each.data for each in self.passed if (each.client_id, each.to_server, each.kind) == wanted]

    def _to_server(self, event: of_server.Event) -> None:
        if isinstance(event, of_server.ClientMessage | of_server.Uploaded):
            is_vector = isinstance(event, of_server.Uploaded)
            kind = None if is_vector else self._kind(event.data)
            self.passed.append(Passing(event.client_id, True, event.data, kind))
        if isinstance(event, of_server.Uploaded | of_server.Vanished):
            self.uploads.discard(event.client_id)
        self._apply_server(self.fleet.server.handle(event))

    def _apply_server(self, effects: list[of_server.Effect]) -> None:
        for effect in effects:
            match effect:
                case of_server.Tell(client_id, data):
                    kind = self._kind(data)
                    if kind is not Kind.INVITATION:  # it was what the machines were made from
                        self._pass(Passing(client_id, False, data, kind))
                case of_server.Grant(client_id):
                    self.uploads.add(client_id)
                    self.uploads_most = max(self.uploads_most, len(self.uploads))
                case of_server.Drop(client_id, text):
                    self.dropped[client_id] = text
                    self.uploads.discard(client_id)
                    self._dead.add(client_id)
                case of_server.Done() | of_server.Failed():
                    assert self.end is None, "a round ends once"
                    self.end = effect
                case of_server.Await():
                    pass

    def _to_client(self, client_id: str, event: of_client.Event) -> None:
        if isinstance(event, of_client.ServerMessage):
            self.passed.append(Passing(client_id, False, event.data, self._kind(event.data)))
        try:
            effects = self.fleet.clients[client_id].handle(event)
        except SecureSumError as error:
            self.refused[client_id] = error
            self.kill(client_id)
            return
        self._apply_client(client_id, effects)

    def _apply_client(self, client_id: str, effects: list[of_client.Effect]) -> None:
        kill = self._kills.get(client_id)
        dies = kill is not None and self.fleet.clients[client_id].step is kill.step
        if not (kill and dies and kill.before):
            for effect in effects:
                self._do(client_id, effect)
        if dies:
            self.kill(client_id)

    def _do(self, client_id: str, effect: of_client.Effect) -> None:
        match effect:
            case of_client.Send(data):
                self._pass(Passing(client_id, True, data, self._kind(data)))
            case of_client.SendVector(data):
                assert client_id in self.spent, "a vector leaves after it is paid for"
                self._pass(Passing(client_id, True, data, None))
            case of_client.CountAttempt():
                self.attempts.append(client_id)
                self._put(client_id, of_client.Opened(), to_server=False)
            case of_client.SpendWindow():
                self.spent.append(client_id)
                self._put(client_id, of_client.Spent(), to_server=False)
            case of_client.Revealed():
                self.revealed.append(client_id)

    def _pass(self, passing: Passing) -> None:
        for each in self._meddle(passing):
            self.send(each)

    def _put(self, client_id: str, event: _Event, *, to_server: bool) -> None:
        self._sent += 1
        self._lines.setdefault((client_id, to_server), deque()).append((self._sent, event))

    def _kind(self, data: bytes) -> Kind | None:
        try:
            return unpack(self.fleet.parameters, data)[0]
        except SecureSumError:
            return Kind(data[1]) if len(data) > 1 and data[1] in set(Kind) else Kind.INVITATION
