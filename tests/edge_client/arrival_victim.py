"""A device that is killed as it sends its first delta, or as it writes that delta's window; tells what it sends."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from unittest.mock import patch

from typing_extensions import override

from edge_client import EdgeClient
from edge_client.spool.changes import Bind, Change, Result
from edge_client.spool.spool import Spool
from edge_client.testing import MemoryService
from hushsum import Plan
from hushsum_proto.answers import Answer
from tests.edge_client.clocks import START
from tests.plans import small_plan

PLAN = small_plan(window={"time": "arrival"})
SENDING, WRITING = "sending", "writing"


class Service(MemoryService):
    """One that the first byte never reaches: the device is dead before."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, now_ms=lambda: START)

    @override
    def _take(self, data: bytes) -> Answer:
        sys.stdout.write(data.hex())
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


_HONEST = Spool.commit


def dying(spool: Spool, changes: Sequence[Change]) -> list[Result]:
    """A commit that dies as it is to write a window."""
    if any(isinstance(each, Bind) for each in changes):
        os.kill(os.getpid(), signal.SIGKILL)
    return _HONEST(spool, changes)


async def main(path: str, moment: str) -> None:
    commit = dying if moment == WRITING else _HONEST
    with patch.object(Spool, "commit", commit):
        await contribute(path)


async def contribute(path: str) -> None:
    async with EdgeClient(Service(PLAN), spool=path) as client:
        await client.add([[1.0, 2.0], [3.0, 4.0]])
        await client.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
