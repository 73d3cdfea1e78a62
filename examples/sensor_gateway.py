r"""A gateway that speaks for many sensors: one client each, in one process, all on one event loop and its threads.

Each line that it reads is a sensor's name and its numbers. A sensor has an id and a spool of its own, so that a bound
of records for each client, or its part in a secure sum, is the sensor's and not the gateway's.

hushsum serve --plan examples/plan.toml --data hushsum-data                   (in another terminal)
printf 'kitchen 1.5 2.5\ncellar 3 4\n' | python examples/sensor_gateway.py localhost:7443 spools
"""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

from edge_client import EdgeClient, Event, EventKind, Policy, SystemRuntime
from edge_client.transport.interface import Transport

POLICY = Policy(max_epsilon=1.0)


class SensorGateway:
    """The clients of all sensors that have been heard of."""

    def __init__(self, target: str | Transport, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._runtime = SystemRuntime(threads=4)
        self._clients: dict[str, EdgeClient] = {}
        self._stack = AsyncExitStack()

    async def run(self, lines: AsyncIterable[str]) -> dict[str, int]:
        """Contributes lines until there are no more; returns how many records of each sensor were acknowledged."""
        async with self._stack:
            async for line in lines:
                name, *numbers = line.split()
                client = await self._client_of(name)
                await client.add([float(number) for number in numbers])
            await asyncio.gather(*(client.flush(60) for client in self._clients.values()))
            counts = {name: client.status().acknowledged for name, client in self._clients.items()}
        self._runtime.close()
        return counts

    async def _client_of(self, name: str) -> EdgeClient:
        if name not in self._clients:
            client = EdgeClient(
                self._target,
                spool=self._folder / f"{name}.db",
                client_id=name,
                policy=POLICY,
                runtime=self._runtime,
                on_event=lambda event: _report(name, event),
            )
            self._clients[name] = await self._stack.enter_async_context(client)
        return self._clients[name]


def _report(name: str, event: Event) -> None:
    if event.kind not in (EventKind.CONNECTED, EventKind.ACKNOWLEDGED):
        print(f"{name}: {event.kind}: {event.detail}", file=sys.stderr)


async def _input() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line


if __name__ == "__main__":
    target, folder = sys.argv[1:3] or ["localhost:7443", "spools"]
    Path(folder).mkdir(exist_ok=True)
    print(asyncio.run(SensorGateway(target, Path(folder)).run(_input())))
