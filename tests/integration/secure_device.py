"""A device of a secure plan that adds its records and takes part; it tells each step, and halts at one to be killed.

Arguments: where the service listens, the spool, the client id, its records as JSON ("" adds none), the step to halt at.
"""

import asyncio
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from typing_extensions import override

from edge_client import Config, EdgeClient, EdgeWarning, SystemRuntime
from edge_client.errors import FlushTimeoutError, NotCountedError
from hushsum.secure_sum.client import ClientRound, ClientStep, ServerMessage

T = TypeVar("T")
CONFIG = Config(backoff_first_s=0.05, backoff_longest_s=0.2, close_flush_s=0.0)
#: The server has told who survived, so it holds this client's vector; nothing is signed yet.
SURVIVORS = "survivors"
FLUSH_S = 3.0  # of a device that was started again and has spent nothing: nobody may be there for another cohort


def tell(what: object) -> None:
    """One line to whoever started this."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


class HaltingRuntime(SystemRuntime):
    """Tells each step of the machine of a round, and goes no further than one of them."""

    def __init__(self, halt: str) -> None:
        super().__init__()
        self._halt = halt

    @override
    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        machine = getattr(function, "__self__", None)
        if not isinstance(machine, ClientRound):
            return await super().computing(function, *arguments)
        if machine.step is ClientStep.SENT and arguments and isinstance(arguments[0], ServerMessage):
            await self._reached(SURVIVORS)
        result = await super().computing(function, *arguments)
        await self._reached(machine.step.value)
        return result

    async def _reached(self, step: str) -> None:
        tell(step)
        if step == self._halt:
            await asyncio.Event().wait()  # for ever: what comes next is a SIGKILL


async def main(target: str, spool: str, client_id: str, records: str, halt: str) -> None:
    """One life of the device; its last line is what it knows of its submissions."""
    warnings.simplefilter("ignore", EdgeWarning)
    async with EdgeClient(
        target, spool=spool, client_id=client_id, config=CONFIG, runtime=HaltingRuntime(halt)
    ) as client:
        if records:
            await client.add(json.loads(records))
        is_told = records or client.status().submissions_spent  # what became of them, however long that takes
        with suppress(NotCountedError, FlushTimeoutError):
            await client.flush(None if is_told else FLUSH_S)
    tallies = client.status()
    told = {"spent": tallies.submissions_spent, "counted": tallies.submissions_counted}
    tell(json.dumps({**told, "lost": tallies.submissions_lost}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
