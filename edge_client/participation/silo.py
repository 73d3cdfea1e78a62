"""A silo's submissions: one noised sum for every window in which its client runs, after the window's end.

Whether that happens, and when, depends on a clock, not on records. The sum is read, noised and packed in a time that
does depend on them; so all of it is done ahead, and the submission is stored, charged and handed to the session at a
moment that was fixed before: once the client was connected, so that no time of the network adds to it. Where it takes
longer than the time ahead, it is late by the rest.

It is stored only while the client is connected, and the service takes the window by its clock: else this device's
budget would be spent for a window that the service takes no more, or not yet.

There is one submission for a window, ever: the transaction that stores its bytes spends the window. The session then
treats it as any delta: it sends the same bytes until they have an answer.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Self

from edge_client.config import LARGE_BYTES, Config
from edge_client.encoding import counters_of
from edge_client.errors import NoPartError, SpoolError
from edge_client.participation.mode import ClientContext
from edge_client.participation.scheduler import WindowMode
from edge_client.session.driver import SessionDriver
from edge_client.spool.changes import NO_ID, StoredDelta, Submit
from edge_client.spool.window_submissions import PendingRecords, SiloSubmissions, WindowStatus
from edge_client.status import COUNTED, submission_count_of
from edge_client.transport.grpc import large_s
from hushsum.delta import renumbered
from hushsum.entropy import Entropy, OsEntropy
from hushsum.local import silo
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status

_LOG: Final = logging.getLogger("edge_client")
_AHEAD_MS: Final = 2_000  # in which a sum is read and noised
_AHEAD_PART: Final = 4  # at most one part in so many of the lateness


def prepared(plan: Plan, window: int, pending: PendingRecords, entropy: Entropy) -> Submit:
    """The change that submits for a window: the pending records, added up and noised, all counters and counts.

    It is drawn anew at each call, with private entropy: one alone may ever leave, which the spool ensures.
    """
    counters, counts = counters_of(plan, pending.deltas)
    shaped = counters.reshape(plan.counters_shape)
    data = silo.submission(plan, shaped, counts, window=window, id=NO_ID, entropy=entropy)
    return Submit(window, partial(renumbered, data), pending.upto)


class SiloMode(WindowMode):
    """Submits a noised sum for every window in which its client runs, once, whatever records there are."""

    submissions: SiloSubmissions

    def __init__(
        self, context: ClientContext, driver: SessionDriver, submissions: SiloSubmissions, numbers: dict[int, int]
    ) -> None:
        super().__init__(context, driver, submissions, wait_ms=0)
        self._secrets = OsEntropy()  # of noise, whatever the jitter is drawn from
        self._ahead_ms = min(_AHEAD_MS, self.plan.window.lateness_ms // _AHEAD_PART)
        self._numbers = numbers  # windows of what is unanswered
        self._unpaid: set[int] = set()

    @classmethod
    async def open(cls, context: ClientContext) -> Self:
        blocking = context.retry.runtime.blocking
        submissions = await blocking(SiloSubmissions, context.spool, context.plan)
        driver = await context.driver(config=_sending(context.retry.config, context.plan))
        return cls(context, driver, submissions, await blocking(submissions.numbers))

    @property
    def earlier(self) -> Mapping[str, int]:
        answers = Counter(self.driver.earlier)
        for name, count in self.driver.earlier.items():
            answers[submission_count_of(name)] += count
        return answers

    def on_answer(self, answer: Answer) -> None:
        window = self._numbers.pop(answer.id.sequence, None) if answer.id is not None else None
        if window is None or answer.status in COUNTED or answer.status is Status.REFUSED:
            return  # the client raises a refusal as that
        self._give_up(window, f"its submission is {answer.status.value} and is not counted")

    def _on_status(self, status: WindowStatus) -> None:
        for window in status.unpaid:
            if window not in self._unpaid:
                self._keep_reason(window, "this device's ledger has no budget for it")
                _LOG.warning("window %d: not participating, this device's ledger has no budget for it", window)
        self._unpaid = set(status.unpaid)

    @property
    def _oldest_taken(self) -> int:
        """The oldest window that the service takes now: as its last welcome said, and by its clock since then."""
        schedule = self.plan.window
        return max(self.driver.oldest_window, schedule.index_at(self.driver.service_ms - schedule.lateness_ms))

    @property
    def _newest_taken(self) -> int:
        """The newest one, likewise."""
        return max(self.driver.newest_window, self.plan.window.index_at(self.driver.service_ms))

    async def begin(self, *, connect: bool) -> None:  # noqa: ARG002  a silo connects in any case
        await super().begin(connect=True)  # no window is spent before this client is connected

    async def _submit(self, window: int) -> None:
        # A submission for a window that the service does not take would spend this device's budget for nothing.
        async with self.driver.connected():
            if window < self._oldest_taken:
                why = f"the service takes window {self._oldest_taken} and later ones"
            elif window > self._newest_taken:
                why = f"the service takes window {self._newest_taken} and earlier ones: this device's clock is fast"
            else:
                await self._submit_connected(window)
                return
            pending = await self.runtime.blocking(self.submissions.pending, window)
            self._schedule.leave(window)
            if pending.deltas:
                self._keep_reason(window, why)

    async def _submit_connected(self, window: int) -> None:
        moment = self.runtime.monotonic() + self._ahead_ms / 1000
        try:
            pending = await self.runtime.blocking(self.submissions.begin, window)
            change = await self.runtime.computing(prepared, self.plan, window, pending, self._secrets)
            await self.runtime.sleep(max(0.0, moment - self.runtime.monotonic()))
            if not self.driver.is_connected or window < self._oldest_taken:
                self._schedule.failed(window, self.runtime.now_ms())
                return
            stored = self.driver.submit(change)
            stored.add_done_callback(lambda done: self._keep_number(window, done))
            await asyncio.shield(stored)
            await self.runtime.blocking(self.submissions.submitted, window)
        except NoPartError as error:
            self._give_up(window, str(error))
        except SpoolError as error:
            _LOG.warning("window %d: submission failed, retrying: %s", window, error)
            self._schedule.failed(window, self.runtime.now_ms())
        else:
            self._schedule.leave(window)
        finally:
            self.submissions.end(window)

    def _keep_number(self, window: int, done: "asyncio.Future[tuple[StoredDelta, ...]]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._numbers.update({delta.sequence: window for delta in done.result()})


def _sending(config: Config, plan: Plan) -> Config:
    """A submission that is too large for a stream's message goes in a call of its own, and takes longer."""
    if plan.upload_bytes_max <= LARGE_BYTES:
        return config
    longest_s = config.call_timeout_s + large_s(plan.upload_bytes_max)
    return replace(config, unary=True, answer_wait_s=max(config.answer_wait_s, 2 * longest_s))
