"""Servers in processes of their own, and the client that is the same for all of them."""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from hushsum.plan import Plan
from hushsum_proto import metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.testbed.process import ServerProcess, free_port, is_listening

IN_FLIGHT = 60  # of a session; the protocol allows 63 numbers above the lowest unanswered one
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


class Endpoint:
    """One server."""

    def __init__(self, port: int, process: ServerProcess) -> None:
        self.address, self._process = f"127.0.0.1:{port}", process
        process.start()

    def cpu_s(self) -> float:
        """CPU seconds of its process so far; Linux tells."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def memory(self) -> int:
        """Bytes of its process that are in memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]) * 4096

    def close(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def start(self) -> None:
        """The same command again, after :meth:`close`; returns once it listens."""
        self._process.start()


# One client here stands for many: what a single one may send is not what is measured.
_UNLIMITED: Final = {
    "client_bytes_rate": 1e12,
    "client_bytes_burst": 10**15,
    "client_calls_rate": 1e6,
    "client_sessions_max": 1024,
    "client_rate": 1e9,
    "client_burst": 10**12,
    "pending_entries_max": 4 * 65_536,
    "pending_bytes_max": 4 * 64 * 2**20,
}


@contextmanager
def service(plan: Plan, folder: Path, **settings: object) -> Iterator[Endpoint]:
    """``python -m aggregator`` on SQLite: durable on the disk before it acknowledges."""
    folder.mkdir()
    (folder / "plan.json").write_bytes(plan.bundle)
    port = free_port()
    given = {
        "plan": str(folder / "plan.json"),
        "data": str(folder / "data"),
        "listen": f"127.0.0.1:{port}",
        "metrics_listen": "",
        "manual": True,
        **_UNLIMITED,
        **settings,
    }
    file = folder / "aggregator.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()), encoding="utf-8")
    yield from served("the service", port, ["-m", "aggregator", "--config", str(file)], folder)


@contextmanager
def bare(folder: Path) -> Iterator[Endpoint]:
    """A bidirectional stream of grpc.aio that answers each message at once, and keeps nothing."""
    folder.mkdir()
    port = free_port()
    yield from served("the bare stream", port, ["-m", "benchmarks.service.bare_stream", str(port)], folder)


def served(name: str, port: int, command: Sequence[str], folder: Path) -> Iterator[Endpoint]:
    """A server of this interpreter, until it is killed."""
    environment = {"PYTHONPATH": ":".join([str(Path.cwd()), *(entry for entry in sys.path if entry)])}
    output, words = folder / "output.log", [sys.executable, *command]
    process = ServerProcess(name, words, output, lambda: is_listening(port), environment=environment)
    try:
        yield Endpoint(port, process)
    finally:
        process.kill()


async def stream(
    address: str, client_id: str, requests: Sequence[pb.SubmitRequest], pause_s: float = 0.0
) -> list[float]:
    """Sends requests on one stream, and returns how long each answer took, in seconds."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call = stubs.CollectionStub(channel).Submit(metadata=((metadata.CLIENT_ID, client_id),))
        sent: deque[float] = deque()
        room, took = asyncio.Semaphore(IN_FLIGHT), list[float]()

        async def read() -> None:
            while len(took) < len(requests):
                reply = await call.read()
                assert isinstance(reply, pb.SubmitReply), reply
                for answer in (reply, *reply.more):
                    assert not answer.HasField("refusal"), answer
                    took.append(time.perf_counter() - sent.popleft())
                    room.release()

        reading = asyncio.create_task(read())
        for request in requests:
            await room.acquire()
            sent.append(time.perf_counter())
            await call.write(request)
            if pause_s:
                await asyncio.sleep(pause_s)
        await reading
        await call.done_writing()
        return took
