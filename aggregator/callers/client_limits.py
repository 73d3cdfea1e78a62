"""What one client may send, ask for and hold here, by the name that its authenticator gives it.

Everybody shares the log's queue, the memory of deltas that come in, and the calls that one process can answer. A client
has a rate of each and a share of what is held, so that no single one fills what all share. What decides about a client
is its own doing alone. Who has no name (a reader, or the operator, where names are only declared) is not limited here.
"""

from collections import Counter
from types import TracebackType
from typing import Final, Protocol, Self

from aggregator.callers.rate_limits import RateLimits
from aggregator.config import Config
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, rate_limited, share_taken
from hushsum.plan import Plan

#: What a delta costs at least, in bytes: whatever its size, it takes an entry of the log, a row of the store and its id
#: in the fold's memory.
DELTA_COST_MIN: Final = 1024
_SHARES: Final = 4  # of what all may hold together one client gets such a part


def share_of(most: int, least: int = 1) -> int:
    """How much of what all share one client may hold.

    Args:
        most: What all may hold.
        least: One thing of the largest size: that always fits.
    """
    return max(most // _SHARES, least)


class Prepaid(Protocol):
    """What a delta has paid before it was whole."""

    def give_back(self) -> None:
        """All of it."""


class Taken:
    """What one delta has taken of its client's limits.

    It lives no longer than the answer to the delta is waited for.
    """

    __slots__ = ("_client_id", "_cost", "_limits", "_paid", "_size")

    def __init__(self, limits: "SendLimits", client_id: str, size: int, cost: int, paid: "Prepaid | None") -> None:
        self._limits = limits
        self._client_id = client_id
        self._size = size
        self._cost = cost
        self._paid = paid

    def let_go(self) -> None:
        """It is answered, and holds nothing any more; called once."""
        self._limits.let_go(self._client_id, self._size)

    def give_back(self) -> None:
        """Nothing was done with it, and that was not its client's doing; called once at most."""
        if self._paid is None:
            self._limits.give_back(self._client_id, self._cost)
        else:
            self._paid.give_back()


class SendLimits:
    """How many bytes of deltas each client may send, and hold while they are unanswered.

    Args:
        rate: Bytes a second; a delta costs ``DELTA_COST_MIN`` at least.
        burst: Bytes that a client may be ahead of that.
        held_bytes_max: Bytes of its deltas that may be unanswered: the largest fits.
        runtime: The clock.
        delta_bytes_max: Of the largest delta; by default all that may be unanswered.

    Attributes:
        prepaid: What was taken as it came, by the client that sends it now: it is not taken again.
    """

    def __init__(
        self, rate: float, burst: int, held_bytes_max: int, runtime: Runtime, delta_bytes_max: int | None = None
    ) -> None:
        self._delta_bytes_max = held_bytes_max if delta_bytes_max is None else delta_bytes_max
        self.prepaid: dict[str, Prepaid] = {}
        self._rates = RateLimits(rate, burst)
        self._held_bytes_max = held_bytes_max
        self._runtime = runtime
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        """Clients that hold something."""
        return len(self._held)

    def take(self, client_id: str, size: int) -> Taken:
        """Takes what came as a delta of so many bytes, of which nothing was looked at yet; all of them are paid for.

        Raises:
            RefusedError: Its client has to wait.
        """
        holds = min(size, self._delta_bytes_max)  # what is larger is refused for that, and not for what it would hold
        held = self._held[client_id] + holds if client_id in self._held else holds
        if held > self._held_bytes_max:
            raise RefusedError(share_taken(f"{self._held_bytes_max} bytes of deltas of one client may be unanswered"))
        paid, cost = self.prepaid.pop(client_id, None), max(DELTA_COST_MIN, size)
        if paid is None:
            self.pay(client_id, cost)
        self._held[client_id] = held
        return Taken(self, client_id, holds, cost, paid)

    def pay(self, client_id: str, size: int) -> None:
        """Takes so many bytes of the rate, which hold nothing: of what is no delta, too.

        Raises:
            RefusedError: Its client has to wait.
        """
        wait_ms = self._rates.wait_ms(client_id, max(DELTA_COST_MIN, size), self._runtime.monotonic())
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "bytes"))

    def charge(self, client_id: str, cost: int) -> None:
        """Takes so many bytes, however much is owed.

        Raises:
            RefusedError: Nobody new is remembered now.
        """
        if not self._rates.charge(client_id, cost, self._runtime.monotonic()):
            raise RefusedError(rate_limited(None))

    def check(self, client_id: str) -> None:
        """Refuses what would have to wait, before anything of it is read.

        Raises:
            RefusedError: Its client has to wait.
        """
        if wait_ms := self._rates.owed_ms(client_id, self._runtime.monotonic()):
            raise RefusedError(rate_limited(wait_ms, "bytes"))

    async def pace(self, client_id: str, size: int) -> None:
        """Takes so many bytes of who must not be refused, and returns when they may go on.

        Where nobody new is remembered they go on at once: that others are ahead must not end a client's round.
        """
        while wait_ms := self._rates.wait_ms(client_id, max(1, size), self._runtime.monotonic()):
            await self._runtime.sleep(wait_ms / 1000)

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""
        self._rates.forget_paid(now_s)

    def let_go(self, client_id: str, size: int) -> None:
        """What was held is answered."""
        self._held[client_id] -= size
        if self._held[client_id] <= 0:
            del self._held[client_id]

    def give_back(self, client_id: str, cost: int) -> None:
        """What was taken of the rate costs nothing after all."""
        self._rates.give_back(client_id, cost)


class CallLimits:
    """How many calls each client may make, and how many that last it may have open.

    Args:
        rate: Calls a second.
        burst: Calls that a client may be ahead of that.
        open_max: Calls that last, of one client.
        runtime: The clock.
    """

    def __init__(self, rate: float, burst: int, open_max: int, runtime: Runtime) -> None:
        self._rates = RateLimits(rate, burst)
        self._open_max = open_max
        self._runtime = runtime
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Clients with a call that lasts."""
        return len(self._open)

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""
        self._rates.forget_paid(now_s)

    def call(self, name: str) -> None:
        """Takes one call.

        Raises:
            RefusedError: This caller has to wait.
        """
        wait_ms = self._rates.wait_ms(name, 1, self._runtime.monotonic()) if name else 0
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "calls"))

    def begin(self, name: str) -> None:
        """Takes one call that lasts, until :meth:`end`.

        Raises:
            RefusedError: This caller has to wait, or has as many as it may.
        """
        if not name:
            return
        if name in self._open and self._open[name] >= self._open_max:
            raise RefusedError(share_taken(f"{self._open_max} streams of one client may be open"))
        self.call(name)
        self._open[name] += 1

    def end(self, name: str) -> None:
        """A call that lasted is over."""
        if name:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


class Turn:
    """What one call takes of its caller's limits, from when that is known; a context, for one that lasts.

    Args:
        limits: Those of all callers; None: none.
        lasts: Whether it is a stream, of which one caller may have few open.
    """

    def __init__(self, limits: CallLimits | None, *, lasts: bool = False) -> None:
        self._limits = limits
        self._lasts = lasts
        self._name = ""  # who has one more open
        self._taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """It holds no place any more; once it is over, nothing happens."""
        if self._limits is not None:
            self._limits.end(self._name)
        self._name = ""

    def take(self, name: str) -> None:
        """Takes it, once, however often it is asked who it is.

        Raises:
            RefusedError: This caller has to wait, or has as many streams open as it may.
        """
        if self._limits is None or self._taken:
            return
        if self._lasts:
            self._limits.begin(name)
            self._name = name
        else:
            self._limits.call(name)
        self._taken = True


def send_limits_of(config: Config, plan: Plan, runtime: Runtime) -> SendLimits:
    """What a process takes of one client's bytes."""
    held = share_of(config.pending_bytes_max, plan.upload_bytes_max)
    largest = plan.upload_bytes_max
    return SendLimits(config.client_bytes_rate, config.client_bytes_burst, held, runtime, largest)


def call_limits_of(config: Config, runtime: Runtime) -> CallLimits:
    """How much one caller may call here."""
    return CallLimits(config.client_calls_rate, config.client_calls_burst, config.client_sessions_max, runtime)
