"""A silo's submissions: one noised sum for every window in which its client runs, after the window's end.

Whether that happens, and when, is for a clock to say, not for records. The sum is read, noised and packed in a time
that does depend on them; so all of it is done ahead, and the submission is bound, charged and handed to the session at
a moment that was fixed before. Where it takes longer than the time ahead, it is late by the rest.

There is one submission for a window, ever: the transaction that binds its bytes spends the window. What the session
does with them is what it does with any delta: it sends the same bytes until they have an answer.
"""

import asyncio
import logging
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from edge_client.encoding import counters_of
from edge_client.errors import NoPartError, SpoolError
from edge_client.participation.scheduler import WindowScheduler
from edge_client.plan_fetch import RetryPolicy
from edge_client.session.driver import SessionDriver
from edge_client.spool.changes import NO_ID, StoredDelta, Submit
from edge_client.spool.transaction import number_in
from edge_client.spool.window_submissions import PendingRecords, WindowStatus, WindowSubmissions
from edge_client.spool.window_tables import bytes_of, integer
from edge_client.spool.writer import SpoolWriter
from edge_client.stats import COUNTED
from hushsum.delta import renumbered
from hushsum.entropy import Entropy, OsEntropy
from hushsum.local import silo
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status

_Int64s = npt.NDArray[np.int64]


def prepared(plan: Plan, window: int, pending: PendingRecords, entropy: Entropy) -> Submit:
    """The change that submits for a window: what waits, added up and noised, all counters and counts.

    It is drawn anew at each call: one alone may ever leave, which the spool sees to.

    Args:
        plan: Of silos.
        window: Its index.
        pending: What waits, maybe nothing.
        entropy: Private.
    """
    counters, counts = counters_of(plan, pending.deltas)
    shaped = counters.reshape(plan.counters_shape)
    data = silo.submission(plan, shaped, counts, window=window, id=NO_ID, entropy=entropy)
    return Submit(window, partial(renumbered, data), pending.upto)


class SiloSubmissions(WindowSubmissions):
    """The turns of a spool of a silo: a turn is one submission."""

    def submitted(self, window: int) -> None:
        """The window is spent; its records may be erased (:meth:`erase`)."""
        with self._lock:
            self._entered.pop(window, None)
            self._unerased = True

    def numbers(self) -> dict[int, int]:
        """The window of each submission that has no answer yet, by the number of its delta."""
        rows = self._spool.rows("SELECT round, window FROM rounds WHERE fate IS NULL")
        return {number_in(bytes_of(name)): integer(window) for name, window in rows}


_LOG: Final = logging.getLogger("edge_client")
_AHEAD_MS: Final = 2_000  # in which a sum is read and noised
_AHEAD_PART: Final = 4  # at most one part in so many of the lateness


class SiloSubmitter(WindowScheduler):
    """Submits for every window in which its client runs, once, whatever records there are.

    Args:
        plan: Of silos.
        submissions: What the spool knows of them.
        writer: Through which the spool is changed.
        driver: What sends them.
        waits: Time, tasks and threads; and of moments and back-off, which are public. Noise is the operating system's.
    """

    def __init__(
        self,
        plan: Plan,
        submissions: SiloSubmissions,
        writer: SpoolWriter,
        driver: SessionDriver,
        waits: RetryPolicy,
    ) -> None:
        super().__init__(
            submissions,
            schedule=plan.window,
            wait_ms=0,
            runtime=waits.runtime,
            config=waits.config,
            entropy=waits.entropy,
            owner=driver,
        )
        self._plan = plan
        self._submissions = submissions
        self._writer = writer
        self._driver = driver
        self._secrets = OsEntropy()
        self._ahead_ms = min(_AHEAD_MS, plan.window.lateness_ms // _AHEAD_PART)
        self._numbers = submissions.numbers()  # windows of what is unanswered
        self._unpaid: set[int] = set()

    async def flush(self, timeout_s: float | None) -> None:
        """Submits now for every window of this moment, and returns once each submission has its answer.

        Raises:
            NotCountedError: Some windows are in no sum.
            FlushTimeoutError: Not within the time.
            Exception: What has ended the session.
        """
        await self._take_all(timeout_s)
        await self._driver.answered(timeout_s)
        self._tell_reasons()

    def told(self, answer: Answer) -> None:
        """Hears each definitive answer, once it is durable."""
        window = self._numbers.pop(answer.id.sequence, None) if answer.id is not None else None
        if window is None or answer.status in COUNTED or answer.status is Status.REFUSED:
            return  # a refusal is told as that
        self._give_up(window, f"its submission came {answer.status.value}: it counts nowhere, and there is no other")

    def _hear(self, look: WindowStatus) -> None:
        for window in look.unpaid:
            if window not in self._unpaid:
                self._note(window, "this device's own account does not pay for it")
                _LOG.warning("this device takes no part in window %d: its own account does not pay for it", window)
        self._unpaid = set(look.unpaid)

    async def _take_part(self, window: int) -> None:
        moment = self._runtime.monotonic() + self._ahead_ms / 1000
        try:
            await self._submit(window, moment)
        except NoPartError as error:
            self._give_up(window, str(error))
        except SpoolError as error:
            _LOG.warning("window %d cannot be submitted for, it is tried again: %s", window, error)
            self._participation.failed(window, self._runtime.now_ms())
        else:
            self._participation.leave(window)
        finally:
            self._submissions.leave(window)

    async def _submit(self, window: int, moment: float) -> None:
        pending = await self._runtime.blocking(self._submissions.enter, window)
        change = await self._runtime.computing(prepared, self._plan, window, pending, self._secrets)
        await self._runtime.sleep(max(0.0, moment - self._runtime.monotonic()))
        bound = self._writer.put(change)
        bound.add_done_callback(lambda done: self._note_number(window, done))
        self._driver.expect(bound)
        await asyncio.shield(bound)
        await self._runtime.blocking(self._submissions.submitted, window)

    def _note_number(self, window: int, done: "asyncio.Future[tuple[StoredDelta, ...]]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._numbers.update({delta.sequence: window for delta in done.result()})
