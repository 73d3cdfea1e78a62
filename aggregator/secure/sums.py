"""Secure sums of one plan in one process: who may take part, which cohort each is in, and until when.

A cohort lives here and nowhere else: if this process dies its rounds are over, and nothing of them is ever sent again.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from aggregator import refusals
from aggregator.charges import Charges
from aggregator.errors import UnauthenticatedError
from aggregator.openings import Openings
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, overloaded
from aggregator.secure.cohorts import (
    Caller,
    Closed,
    CohortRules,
    Cohorts,
    DrawnTooOften,
    Effect,
    Entered,
    InRound,
    Left,
    Replaced,
    Starts,
    TookPart,
    TooSoon,
    Waits,
    WindowOver,
    Woke,
)
from aggregator.secure.memory import outcome_of
from aggregator.secure.parts import Part
from aggregator.secure.running import ROUNDS_MAX, Running, milliseconds
from aggregator.windows import WindowState
from hushsum.directory import Directory, Role
from hushsum.entropy import Entropy
from hushsum.errors import Reason
from hushsum.labels import ENTRY
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.rounds import Enter, Fate, Message, RoundOutcome, RoundRequest, VectorChunk, Waiting, entry_parts

_LOOK_S: Final = 1.0  # how late it is noticed, at most, that a window is over


@dataclass(frozen=True)
class SumsPorts:
    """What secure sums stand on.

    Attributes:
        openings: Which windows are open.
        charges: Whether the ledger could pay for a window; its rounds have it charged.
        runtime: Time and tasks.
        entropy: Of the draws of cohorts.
    """

    openings: Openings
    charges: Charges
    runtime: Runtime
    entropy: Entropy


class SecureSums:
    """The secure sums of one plan.

    Args:
        plan: Of mode ``secure``.
        ports: What they stand on.
        running: Its rounds; from here on this is told when one is over.
        directory: Of clients; None where the plan names none.
    """

    def __init__(self, plan: Plan, ports: SumsPorts, running: Running, directory: Directory | None) -> None:
        cohort = plan.privacy.cohort
        assert cohort is not None, "a secure plan has cohorts"
        self.plan = plan
        self._size = cohort.size
        self._openings = ports.openings
        self._charges = ports.charges
        self._runtime = ports.runtime
        self._directory = directory
        rules = CohortRules(cohort.size, cohort.survivors_min, cohort.wait_ms, ROUNDS_MAX, cohort.pool)
        self._cohorts = Cohorts(rules, ports.entropy)
        self._running = running
        running.tell_over = lambda over: self._handle(self._cohorts.handle(over))
        self._numbers = count()
        self._parts: dict[Caller, Part] = {}
        self._wake = asyncio.Event()
        self._stopping = False

    # --------------------------------------------------------------------------------------------------- the clients

    async def enter(self, client_id: str, enter: Enter) -> Part:
        """Lets a client take part in a window.

        Args:
            client_id: From the authenticator.
            enter: What it opened with; it names no spent round.

        Raises:
            RefusedError: Another plan, a window that was never open or has not begun, a ledger that could not pay for
                it, or a service that stops.
            UnauthenticatedError: The plan's directory does not know the client, or its key did not sign this.
        """
        self._check_running()
        self._check(client_id, enter)
        part = Part(Caller(client_id, next(self._numbers)), enter.window)
        if await self._is_open(enter.window) and await self._charges.covered(enter.window):
            self._check_running()  # that took time
            self._parts[part.caller] = part
            self._handle(self._cohorts.handle(Entered(part.caller, enter.window, self._now_ms())))
            self._wake.set()
        else:
            part.end(outcome_of(b"", Fate.LATE))
        return part

    async def what_became(self, client_id: str, enter: Enter) -> RoundOutcome:
        """What is known here of a client's part in a round: if it is under way, once that is known.

        Raises:
            RefusedError: Another plan.
            UnauthenticatedError: As for :meth:`enter`.
        """
        self._check(client_id, enter)
        fate = await self._running.fate_of(client_id, enter.spent_round, enter.window)
        return outcome_of(enter.spent_round, fate)

    def check_plan(self, plan_id: bytes) -> None:
        """Refuses another plan.

        Raises:
            RefusedError: It is.
        """
        if plan_id != self.plan.id:
            raise RefusedError(refusals.wrong_plan(plan_id, self.plan))

    async def received(self, part: Part, request: RoundRequest) -> None:
        """Takes what a client says after it has entered, and returns once it is handled."""
        if isinstance(request, Message) and part.is_of_past_round(request.data):
            return  # it was on its way when that round ended
        ongoing = self._running.round_of(part)
        if isinstance(request, Enter):
            part.end(RefusedError(Refusal.of(Reason.MALFORMED, "entered twice in one call, expected once")))
            self.left(part)
        elif ongoing is None:
            if not part.has_ended:
                detail = "a message of a round, expected none before one has begun"
                part.end(RefusedError(Refusal.of(Reason.MALFORMED, detail)))
                self.left(part)
        elif isinstance(request, Message):
            await ongoing.message(part, request)
        elif isinstance(request, VectorChunk):
            await ongoing.chunk(part, request)

    def left(self, part: Part) -> None:
        """A client's call has ended."""
        part.is_there = False
        if self._parts.pop(part.caller, None) is not None:
            ongoing = self._running.round_of(part)
            if ongoing is not None:
                ongoing.left(part)
            self._handle(self._cohorts.handle(Left(part.caller, part.window)))

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Starts cohorts when their time has come, and closes windows, until cancelled."""
        while True:
            wakes_ms = self._cohorts.wakes_ms
            wait_s = _LOOK_S if wakes_ms is None else min(max((wakes_ms - self._now_ms()) / 1000, 0.001), _LOOK_S)
            if not self._cohorts.windows:
                self._wake.clear()
                await self._wake.wait()
            await self._runtime.sleep(wait_s)
            self._handle(self._cohorts.handle(Woke(self._now_ms())))
            await self._look_at_windows()

    def stop_accepting(self) -> None:
        """Takes nobody more, and ends the rounds in which nobody was asked for a vector yet; the others go on."""
        self._stopping = True
        for part in list(self._parts.values()):
            if self._running.round_of(part) is None:
                part.end(RefusedError(refusals.shutting_down()))
        self._running.stop()

    async def finish(self) -> None:
        """Returns once every round is over, and its clients are told."""
        await self._running.finish()

    async def _look_at_windows(self) -> None:
        windows = self._cohorts.windows
        if not windows:
            return
        await self._openings.refresh(windows)
        for window in windows:
            if self._openings.state(window) is not WindowState.OPEN:
                self._running.abort(window, "the window was sealed", Fate.LATE)
                self._handle(self._cohorts.handle(WindowOver(window)))
        oldest = self._openings.accepted().start - 1
        self._running.forget_before(oldest)
        self._charges.forget_before(oldest)
        self._running.show_progress()
        self._running.show_waiting(self._cohorts.waiting)

    def _check(self, client_id: str, enter: Enter) -> None:
        self.check_plan(enter.plan_id)
        if self._directory is not None:
            key = self._directory.keys.get(client_id)
            if key is None or key.role is not Role.CLIENT:
                raise UnauthenticatedError("this client is not in the directory that the plan names")
            # Before anything changes for the client's other calls: nobody else takes its place, or learns its fate.
            if not key.public_key.verifies(enter.signature, ENTRY, *entry_parts(enter, client_id)):
                raise UnauthenticatedError(
                    "this is not signed by the client's key in the directory that the plan names"
                )

    def _check_running(self) -> None:
        if self._stopping:
            raise RefusedError(refusals.shutting_down())
        self._openings.check_store()

    async def _is_open(self, window: int) -> bool:
        """Whether sums of it may still be counted, as far as is known; one that is not is noticed soon after.

        Raises:
            RefusedError: No gateway had it open, or its time has not come.
        """
        self._openings.check(window)
        wait_ms = self.plan.window.start_ms(window) - self._runtime.now_ms()
        if wait_ms > 0:
            raise RefusedError(refusals.not_begun(wait_ms))
        await self._openings.ensure([window])
        return self._openings.state(window) is WindowState.OPEN

    def _now_ms(self) -> int:
        return milliseconds(self._runtime)

    # ------------------------------------------------------------------------------------------------- the cohorts

    def _handle(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Starts):
                if not self._stopping:
                    self._start(effect)
            elif (part := self._parts.get(effect.caller)) is not None:
                self._say(part, effect)

    def _start(self, effect: Starts) -> None:
        """Begins a round; who has gone in this very moment is out of it at once."""
        parts = [self._parts.get(caller) or Part(caller, effect.window) for caller in effect.callers]
        self._running.start(effect.window, parts, is_drawn=effect.is_drawn)
        for part in parts:
            if part.caller not in self._parts:
                part.is_there = False
                ongoing = self._running.round_of(part)
                if ongoing is not None:
                    ongoing.left(part)

    def _say(
        self, part: Part, effect: Waits | Replaced | InRound | TookPart | TooSoon | DrawnTooOften | Closed
    ) -> None:
        match effect:
            case Waits():
                if not part.tell(Waiting(self._size)):
                    self.left(part)
                return
            case Replaced():
                part.end(overloaded("a newer call of this client has taken its place"))
            case InRound():
                part.end(overloaded("a round of this client is under way, in another call"))
            case TookPart():
                part.end(RoundOutcome(b"", Fate.UNKNOWN, "a vector of this client was taken in this window already"))
            case TooSoon():
                detail = "a round ended because of this client, expected it to come in again later"
                part.end(RefusedError(Refusal.of(ServiceReason.OVERLOADED, detail, effect.wait_ms)))
            case DrawnTooOften():
                part.end(RoundOutcome(b"", Fate.ABORTED, f"this client was in {ATTEMPTS_MAX} cohorts of the window"))
            case Closed():
                part.end(outcome_of(b"", Fate.LATE))
        self._parts.pop(part.caller, None)
