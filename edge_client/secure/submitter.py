"""Takes part in secure sums, window by window, as long as its client runs.

A vector leaves once for a window, if at all: the spool alone says whether it may (:mod:`edge_client.secure.rounds`).
What the service says afterwards is kept as news, and changes nothing of that.
"""

import logging
from collections.abc import Coroutine
from typing import Final

from edge_client.backoff import BackOff
from edge_client.config import Config
from edge_client.errors import SpoolError
from edge_client.ports import ConnectionLostError, RoundCall, RoundTransport
from edge_client.secure.attempt import Attempt, Parts
from edge_client.secure.endings import Ended, ending_of
from edge_client.tallies import Sends
from edge_client.turns.taker import Owner, Taker
from edge_client.turns.turns import Look
from hushsum.entropy import Entropy
from hushsum_proto.rounds import Fate, RoundOutcome

_LOG: Final = logging.getLogger("edge_client")


class Submitter(Taker):
    """Takes part in a round for every window in which its client runs, whatever records there are.

    Args:
        parts: What an attempt works with.
        transport: Where calls come from.
        config: Waits.
        entropy: Of moments and back-off: public.
        owner: Of its tasks.
    """

    def __init__(self, parts: Parts, transport: RoundTransport, config: Config, entropy: Entropy, owner: Owner) -> None:
        cohort = parts.plan.privacy.cohort
        assert cohort is not None, "a plan with a secure sum"
        super().__init__(
            parts.rounds,
            schedule=parts.plan.window,
            wait_ms=cohort.wait_ms,
            runtime=parts.runtime,
            config=config,
            entropy=entropy,
            owner=owner,
        )
        self.sends = Sends()
        self.attempt: Attempt | None = None  # under way, to be shown
        self._parts = parts
        self._transport = transport
        self._untold: dict[int, bytes] = {}  # spent windows of which nobody has said what became of them

    def _hear(self, look: Look) -> None:
        untold = dict(look.untold)
        for window in self._untold.keys() - untold.keys():
            self._note(window, "nobody has said what became of it")
        self._untold = untold

    def _asked(self) -> frozenset[int]:
        return frozenset(self._untold)

    def _ask_for(self, window: int) -> Coroutine[object, object, None]:
        return self._ask(window, self._untold[window])

    async def _take_part(self, window: int) -> None:
        call = self._transport.take_part(self._parts.message_bytes_max)
        attempt = self.attempt = Attempt(window, self._parts, call)
        try:
            ended = await ending_of(attempt.run())
        finally:
            self.attempt = None  # with whatever secrets it has left
            self._close(call)
            self.sends = Sends(bytes=self.sends.bytes + attempt.sends.bytes)
        # The spool knows, whatever came in between: it may hold a spend that could not be told any more.
        if await self._runtime.blocking(self._parts.rounds.is_spent, window):
            await self._spent(window, attempt.spent, ended)
        elif ended.again:
            _LOG.info("window %d is tried again: %s", window, ended.why)
            self._participation.failed(window, self._runtime.now_ms(), ended.least_ms)
        else:
            self._give_up(window, ended.why)

    async def _spent(self, window: int, round_id: bytes | None, ended: Ended) -> None:
        self._participation.leave(window)
        await self._runtime.blocking(self._parts.rounds.erase)
        if round_id is not None and ended.outcome is not None and ended.outcome.round == round_id:
            await self._settle(window, ended.outcome)
            return
        _LOG.info("window %d is spent, and it is asked what became of it: %s", window, ended.why)
        await self._look(anew=True)  # it is among the untold now

    async def _ask(self, window: int, round_id: bytes) -> None:
        """Asks what became of a vector, until somebody says so or the window is over."""
        backoff = BackOff(self._config.backoff_first_s, self._config.backoff_longest_s, self._entropy)
        while window in self._untold:
            call = self._transport.take_part(self._parts.message_bytes_max)
            try:
                await call.send(self._parts.member.enter(self._parts.plan.id, window, round_id))
                while not isinstance(reply := await call.receive(), RoundOutcome):
                    pass  # its round is still under way
                if reply.round in (round_id, b""):
                    await self._settle(window, reply)
            except ConnectionLostError as error:
                _LOG.info("what became of window %d is asked again: %s", window, error)
            finally:
                self._close(call)
            await self._runtime.sleep(backoff.next_s())

    async def _settle(self, window: int, outcome: RoundOutcome) -> None:
        async with self._looking:  # which would find it untold
            try:
                await self._runtime.blocking(self._parts.rounds.settle, window, outcome.fate)
            except SpoolError as error:
                _LOG.warning("what became of window %d cannot be kept: %s", window, error)
                self._seen = range(0)  # it is asked again
                return
            self._untold.pop(window, None)
        if outcome.fate is not Fate.COUNTED:
            self._give_up(window, f"{outcome.fate.value}: {outcome.detail}")

    def _close(self, call: RoundCall) -> None:
        # A task of its own: this one may be cancelled already, and the call must be closed all the same.
        self._owner.spawn_whole(call.close(), "round-close")
