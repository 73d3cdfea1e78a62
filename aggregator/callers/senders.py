"""Who sent something, while its answer is waited for: under whose name it goes on, and what it took of whom."""

from typing import Final, NamedTuple, Protocol

from aggregator.callers.client_limits import SendLimits
from aggregator.callers.rate_limits import RateLimits
from aggregator.fold.sums import NOBODY
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, rate_limited
from hushsum_proto.answers import Answer, ServiceReason

#: What refuses a delta that its sender could not have sent better. Of one that is ``unavailable`` it is not known
#: whether the log has it: the same again is found there, and counts once.
NOT_ITS_SENDERS: Final = frozenset(
    {ServiceReason.OVERLOADED, ServiceReason.UNAVAILABLE, ServiceReason.BUDGET, ServiceReason.SHUTTING_DOWN}
)


class Taking(Protocol):
    """What a delta has taken of a limit of its client."""

    def let_go(self) -> None:
        """It is answered."""

    def give_back(self) -> None:
        """It costs nothing after all."""


class _Reports(NamedTuple):
    """So many reports of a client's rate."""

    limits: RateLimits
    client_id: str
    reports: int

    def let_go(self) -> None:
        """Nothing is held."""

    def give_back(self) -> None:
        """They cost nothing."""
        self.limits.give_back(self.client_id, self.reports)


class Sender:
    """Under whose name something goes on, and what it took of the one who sent it.

    Args:
        name: A client's id, or nobody's.
        taken: What it has taken; that lives no longer than the answer is waited for.

    Attributes:
        name: As it came.
    """

    __slots__ = ("_taken", "name")

    def __init__(self, name: str, *taken: Taking) -> None:
        self.name = name
        self._taken = taken

    def costs_nothing(self) -> None:
        """It is not looked at, or the same is on its way already: that was paid for, and is held."""
        taken, self._taken = self._taken, ()
        for each in taken:
            each.let_go()
            each.give_back()

    def answered(self, answer: Answer) -> None:
        """Lets go of what was held, and gives back what is refused for the service's own reasons."""
        refusal, taken, self._taken = answer.refusal, self._taken, ()
        for each in taken:
            each.let_go()
            if refusal is not None and refusal.reason in NOT_ITS_SENDERS:
                each.give_back()


def anonymous(
    client_id: str, size: int, reports: int, *, rates: RateLimits, sends: SendLimits | None, runtime: Runtime
) -> Sender:
    """Nobody, once a batch is paid for by the one who sent it.

    Args:
        client_id: Who sent it.
        size: Its bytes.
        reports: What it costs of the rate of reports.
        rates: That rate.
        sends: How many bytes each client may send; None: any.
        runtime: The clock.

    Raises:
        RefusedError: Its sender has to wait; then it has cost nothing.
    """
    taken: tuple[Taking, ...] = () if sends is None else (sends.take(client_id, size),)
    wait_ms = rates.wait_ms(client_id, reports, runtime.monotonic())
    if wait_ms != 0:
        Sender(NOBODY, *taken).costs_nothing()
        raise RefusedError(rate_limited(wait_ms))
    return Sender(NOBODY, *taken, _Reports(rates, client_id, reports))
