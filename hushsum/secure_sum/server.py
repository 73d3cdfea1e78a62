"""The server of a round: it passes messages on, adds masked vectors, and takes off what masks the clients let it.

    step       ends when                                             and then everybody there is told
    ADVERTISE  all have advertised, or the time is over              the roster
    OPEN       all of the roster have opened                         all contributions
    SHARE      all of the roster have sent shares                    the shares that are for it
    UPLOAD     each vector is whole, or its client gone              (survivors alone) who survives
    CONSENT    a quorum of survivors has signed                      (survivors alone) the signatures
    UNMASK     every seed that is needed has come out                -

Until all have sent shares, a member that is lost ends the round, and nothing is spent: whoever could leave members out
here could choose among graphs, or part the sum. From then on it goes on while enough survive. The machine trusts no
client: what does not fit is refused with its sender, who counts as lost. It holds the sum and the vector that is being
added, and a few hundred bytes for each client and neighbour.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server_events import (
    Await,
    ClientMessage,
    Done,
    Drop,
    Effect,
    Event,
    Expired,
    Failed,
    Grant,
    Step,
    Sum,
    Tell,
    Uploaded,
    Vanished,
)
from hushsum.secure_sum.server_state import ASKED, Assembly, Told
from hushsum.signing import Directory

__all__ = [
    "Await",
    "ClientMessage",
    "Done",
    "Drop",
    "Effect",
    "Event",
    "Expired",
    "Failed",
    "Grant",
    "ServerRound",
    "Step",
    "Sum",
    "Tell",
    "Uploaded",
    "Vanished",
]


class ServerRound:
    """One round for clients that are there.

    Args:
        parameters: Of the round.
        members: Ids of those who are invited, at most N.
        directory: Everybody's identity keys; None only where the plan names none.
        uploads_max: How many may upload at a time.

    Attributes:
        step: What the members are asked for.

    Raises:
        ValueError: Members beyond N, or one twice.
    """

    def __init__(
        self,
        parameters: RoundParameters,
        members: tuple[str, ...],
        directory: Directory | None,
        *,
        uploads_max: int = 2,
    ) -> None:
        if len(set(members)) != len(members) or len(members) > parameters.members_max or uploads_max < 1:
            raise ValueError(f"{len(members)} members, expected up to {parameters.members_max}, each once")
        self.step = Step.ADVERTISE
        self._parameters = parameters
        self._assembly: Assembly | None = Assembly(parameters, directory)
        self._uploads_max = uploads_max
        self._at: dict[str, Step] = dict.fromkeys(members, Step.ADVERTISE)  # of those who are there
        self._owing: set[str] = set(members)  # whose message of their step has not come
        self._queue: list[str] = []  # whose upload is yet to be granted, last first
        self._granted = 0  # ever
        self._sum: npt.NDArray[Any] | None = None
        self._out: list[Effect] = []

    @property
    def progress(self) -> Counter[Step]:
        """How many of those who are there are in which step."""
        return Counter(self._at.values())

    def begin(self) -> list[Effect]:
        """Invites the members."""
        self._out.extend(Tell(member, messages.pack(self._parameters, Kind.INVITATION)) for member in self._at)
        self._out.append(Await(Step.ADVERTISE))
        self._need(len(self._at), self._parameters.members_min, "clients")
        return self._flush()

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about an event, in this order; nothing, once the round is over."""
        if self.step is not Step.ENDED:
            match event:
                case ClientMessage(client_id, data):
                    self._take(client_id, lambda: self._on_message(client_id, data))
                case Uploaded(client_id, data):
                    self._take(client_id, lambda: self._on_vector(client_id, data))
                case Vanished(client_id):
                    self._lose(client_id)
                case Expired(step):
                    self._on_expired(step)
        return self._flush()

    def _take(self, client_id: str, act: Callable[[], None]) -> None:
        if client_id not in self._at:
            return  # it is out, and its last words were on their way
        try:
            act()
        except SecureSumError as error:
            self._out.append(Drop(client_id, str(error)))
            self._lose(client_id)
        else:
            self._go_on()

    def _on_message(self, client_id: str, data: bytes) -> None:
        kind, body = messages.unpack(self._parameters, data)
        if client_id not in self._owing or ASKED.get(self._at[client_id]) is not kind:
            raise SecureSumError(f"an unexpected message {kind.name} of a client")
        self._members.take(kind, client_id, body)
        self._owing.discard(client_id)
        if kind is Kind.CONSENT and self.step is Step.UNMASK:  # it has been told the quorum that others made
            self._ask(client_id, Step.UNMASK)

    def _on_vector(self, client_id: str, data: bytes) -> None:
        if self._at[client_id] is not Step.UPLOAD or client_id not in self._owing:
            raise SecureSumError("an unexpected vector of a client")
        vector = self._parameters.words.unpack(data)
        if self._sum is None:
            self._sum = vector
        else:
            np.add(self._sum, vector, out=self._sum)
        self._members.upload(client_id)
        self._owing.discard(client_id)

    def _on_expired(self, step: Step) -> None:
        if step is not self.step:
            return
        if step is Step.ADVERTISE:
            for client_id in sorted(self._owing):
                self._out.append(Drop(client_id, "its advertisement did not come in time"))
                del self._at[client_id]
            self._owing.clear()
            self._go_on()
        else:
            self._fail(f"{len(self._owing)} clients were silent: {step.value}")

    def _lose(self, client_id: str) -> None:
        if self._at.pop(client_id, None) is None or self.step is Step.ENDED:
            return
        self._owing.discard(client_id)
        if self.step in (Step.OPEN, Step.SHARE):
            self._fail(f"a client was lost before all had answered: {self.step.value}")
            return
        if self.step is Step.UNMASK and not self._members.may_unmask(self._owing):
            self._fail("too few clients are left to reveal their shares")
            return
        if client_id in self._queue:
            self._queue.remove(client_id)
        self._go_on()

    def _go_on(self) -> None:
        """Ends the step if it is over, or fails if it cannot end well any more."""
        if self.step is not Step.ENDED:
            self._AFTER[self.step](self)

    def _after_advertisements(self) -> None:
        if self._need(len(self._at), self._parameters.members_min, "clients") and not self._owing:
            self._tell(Step.OPEN, self._members.close(self._at))
            self._out.append(Await(Step.OPEN))

    def _after_openings(self) -> None:
        if not self._owing:
            self._tell(Step.SHARE, self._members.draw())
            self._out.append(Await(Step.SHARE))

    def _after_shares(self) -> None:
        if self._owing:
            return
        self._tell(Step.UPLOAD, self._members.inboxes())
        self._owing.clear()  # each owes its vector from its grant on
        self._queue = list(reversed(self._at))
        self._go_on()

    def _after_uploads(self) -> None:
        possible = len(self._members.uploaded) + len(self._owing) + len(self._queue)
        if not self._need(possible, self._parameters.members_min, "survivors"):
            return
        while self._queue and len(self._owing) < self._uploads_max:
            client_id = self._queue.pop()
            self._owing.add(client_id)
            self._granted += 1
            self._out += [Grant(client_id), Tell(client_id, messages.pack(self._parameters, Kind.GRANT))]
        if self._owing:
            return
        try:
            self._tell(Step.CONSENT, self._members.survivors(self._at))
        except SecureSumError as error:
            self._fail(str(error))
            return
        self._out.append(Await(Step.CONSENT))
        self._go_on()

    def _after_consents(self) -> None:
        quorum, consents = self._parameters.quorum(len(self._members.roster)), self._members.consents
        if not self._need(len(consents) + len(self._owing), quorum, "signatures") or len(consents) < quorum:
            return
        self.step = Step.UNMASK
        for client_id, data in self._members.quorum(self._at):
            self._out.append(Tell(client_id, data))
            if client_id not in self._owing:
                self._ask(client_id, Step.UNMASK)
        self._out.append(Await(Step.UNMASK))

    def _after_unmasking(self) -> None:
        assert self._sum is not None, "survivors have uploaded"
        if self._members.unmasked(self._sum):
            sum_ = self._members.sum_of(self._sum, self._granted)
            self._out.append(Done(sum_))
            self._end()
        elif not self._owing:
            self._fail("too few right shares were revealed")

    def _tell(self, step: Step, told: Told) -> None:
        """Begins a step: each of these is told something, and owes its answer."""
        self.step = step
        for client_id, data in told:
            self._out.append(Tell(client_id, data))
            self._ask(client_id, step)

    def _ask(self, client_id: str, step: Step) -> None:
        self._at[client_id] = step
        self._owing.add(client_id)

    def _need(self, there: int, needed: int, what: str) -> bool:
        if there < needed:
            self._fail(f"{there} {what} are left, expected at least {needed}")
        return there >= needed

    def _fail(self, reason: str) -> None:
        suspects = self._members.suspects
        self._out.append(Failed(reason, spent=self._granted, again=self._granted == 0, suspects=suspects))
        self._end()

    def _end(self) -> None:
        self.step = Step.ENDED
        self._at = dict.fromkeys(self._at, Step.ENDED)
        self._owing.clear()
        self._assembly = self._sum = None

    def _flush(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    @property
    def _members(self) -> Assembly:
        assert self._assembly is not None, "a machine that is over moves no more"
        return self._assembly

    def __repr__(self) -> str:
        return f"ServerRound({len(self._at)} clients, {self.step.value})"

    _AFTER: ClassVar[Mapping[Step, Callable[["ServerRound"], None]]] = MappingProxyType(
        {
            Step.ADVERTISE: _after_advertisements,
            Step.OPEN: _after_openings,
            Step.SHARE: _after_shares,
            Step.UPLOAD: _after_uploads,
            Step.CONSENT: _after_consents,
            Step.UNMASK: _after_unmasking,
        }
    )
