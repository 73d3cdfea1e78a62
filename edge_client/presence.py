"""Shows that a running client takes part, window by window, whether or not it has records (public participation).

Under public participation the promise is about what a client submits, and that it takes part is visible to everybody
(PRIVACY: relations). So whether it does must not depend on its records: a running client sends one delta of 0 runs for
each window of its clock, and records of a window in which it has not shown itself are left out.

What this module looks at is the plan, a clock, and whether the spool's disk works: never a record. No queue of records
stands before a presence: not in the threads (hashing has others), not in the spool (presences are written first, and
alone), not among what may be in flight (``lanes``). Records can still delay it: by the one transaction that is under
way, by what is on the network already, and by the processor's time. A delay is no absence while it is shorter than a
window, which lasts a minute at least, and its lateness. A disk that records have filled, or a network that needs longer
than that for what is on it, does keep a presence away.

Only a running client shows itself. Whoever runs one only when there are records tells by that that there are some.

What remains visible to the service, and to whoever watches the network, is that a client is running, and when; and the
number, the sizes and the times of its deltas with records, as of all traffic. None of it is in a release.
"""

import asyncio
import logging
from typing import Final

from edge_client.changes import Attend
from edge_client.errors import SpoolError
from edge_client.ports import Runtime
from edge_client.spool_writer import SpoolWriter
from edge_client.turns.participation import windows_at
from edge_client.uplink import Uplink
from hushsum.delta import DeltaId, presence
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer

_LOG: Final = logging.getLogger("edge_client")
_LOOKS_APART_S: Final = 5.0  # a wall clock may be set; this is how late it may be noticed


class Presence:
    """Binds a presence to each window that a client runs in, and hands it to the uplink.

    Args:
        plan: With public participation.
        stream: Of presences.
        writer: Through which the spool is changed.
        uplink: What sends them.
        runtime: The clock.
    """

    def __init__(self, plan: Plan, stream: int, writer: SpoolWriter, uplink: Uplink, runtime: Runtime) -> None:
        self._schedule = plan.window
        self._plan = plan
        self._stream = stream
        self._writer = writer
        self._uplink = uplink
        self._runtime = runtime
        self._tried = range(0)  # at the latest look
        self._seen = range(0)  # likewise; empty where it failed
        self._bound = range(0)  # empty: the spool is asked again
        self._looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # anew for each look
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Shows the client in the windows of this moment, durably, and goes on at each turn of a window.

        Raises:
            SpoolError: The spool cannot be written.
        """
        await self._look()
        self._task = self._uplink.spawn(self._run(), "presence")

    async def caught_up(self) -> None:
        """Returns once a window that has just begun was looked at: at most a few seconds after a clock was set.

        It waits, and never hurries the look: when a client shows itself is its clock's to say, not its records'.
        """
        if self._windows() != self._seen and self._task is not None:
            await asyncio.wait([self._looked, self._task], return_when=asyncio.FIRST_COMPLETED)

    def took(self, answer: Answer) -> bool:
        """Hears each definitive answer, and says whether it was a presence's.

        A refusal of a presence itself needs no telling, only that of the records that went with it. A presence that
        came too early by the service's clock is bound anew at a later look.
        """
        if answer.id is None or answer.id.stream != self._stream:
            return False
        if answer.refusal is not None:
            _LOG.info("the service does not count that this client takes part: %s", answer.refusal.detail)
            if answer.refusal.reason is Reason.WINDOW_IN_FUTURE:
                self._bound = range(0)
        return True

    async def _run(self) -> None:
        while True:
            await self._runtime.sleep(self._wait_s())
            try:
                await self._look()
            except SpoolError as error:
                _LOG.warning("this client cannot show that it takes part, it is tried again: %s", error)

    async def _look(self) -> None:
        self._tried = self._seen = windows = self._windows()
        try:
            if windows != self._bound:
                bound = self._writer.put(Attend(windows, self._pack))
                self._uplink.expect(bound)
                self._bound = windows
                await asyncio.shield(bound)
        except BaseException:
            self._seen = self._bound = range(0)
            raise
        finally:
            self._looked.set_result(None)
            self._looked = asyncio.get_running_loop().create_future()

    def _windows(self) -> range:
        return windows_at(self._schedule, self._runtime.now_ms())

    def _wait_s(self) -> float:
        now_ms = self._runtime.now_ms()
        if windows_at(self._schedule, now_ms) != self._tried:  # it turned during the look
            return 0.0
        turn_ms = self._schedule.start_ms(self._schedule.index_at(now_ms) + 1)
        return min((turn_ms - now_ms) / 1000, _LOOKS_APART_S)

    def _pack(self, window: int, id: DeltaId) -> bytes:
        return presence(self._plan, window=window, id=id).pack(self._plan)
