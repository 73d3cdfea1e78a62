"""Hostile connections of strangers, of seven kinds, from one process: they reconnect for ever, at a bounded rate.

    python -m benchmarks.soak.attackers HOST:PORT --connections 2000

Sends to the named address alone; it is refused off loopback.
"""

import argparse
import asyncio
import resource
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from aggregator.config import host_and_port, is_loopback

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RESET, _SETTINGS, _PING, _ACK, _END_HEADERS = 1, 3, 4, 6, 1, 4
_AGAIN_S: Final = 1.0  # between two connections of one attacker
_HELLO, _CHECK, _WATCH = (
    "/hushsum.v1.Collection/Hello",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call, without compression."""
    pairs = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    pairs |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


class Connection:
    """One hostile connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._stream = 1

    async def begin(self) -> None:
        """Begins HTTP/2 as everybody does."""
        self.writer.write(PREFACE + frame(_SETTINGS, 0, 0, b""))
        await self.writer.drain()

    async def call(self, path: str, *, reset: bool = False) -> None:
        """Opens a call without a token, and without a message."""
        opened = frame(_HEADERS, _END_HEADERS, self._stream, headers(path))
        self.writer.write(opened + (frame(_RESET, 0, self._stream, b"\0\0\0\x08") if reset else b""))
        self._stream += 2
        await self.writer.drain()

    async def listen(self) -> None:
        """Answers what keeps a connection alive, until it is closed."""
        while True:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in (_SETTINGS, _PING) and not head[4] & _ACK:
                self.writer.write(frame(head[3], _ACK, 0, payload if head[3] == _PING else b""))


async def silent(connection: Connection) -> None:
    """Says nothing at all."""
    await connection.reader.read()


async def slow(connection: Connection) -> None:
    """Sends its first line a byte a second."""
    for byte in PREFACE * 100:
        connection.writer.write(bytes([byte]))
        await connection.writer.drain()
        await asyncio.sleep(1)


async def idle(connection: Connection) -> None:
    """Finishes its handshake, and calls nothing."""
    await connection.begin()
    await asyncio.sleep(3600)


def calling(path: str, pause_s: float, *, reset: bool = False) -> Callable[[Connection], Awaitable[None]]:
    """Calls again and again, with a pause after each ten calls."""

    async def behave(connection: Connection) -> None:
        await connection.begin()
        while True:
            for _ in range(10):
                await connection.call(path, reset=reset)
            await asyncio.sleep(pause_s)

    return behave


#: With how many of twenty connections each has.
KINDS: Final[tuple[tuple[str, int, Callable[[Connection], Awaitable[None]]], ...]] = (
    ("silent", 5, silent),
    ("slow", 3, slow),
    ("idle", 5, idle),
    ("calls that are refused", 2, calling(_HELLO, 30.0)),
    ("calls that are opened and reset", 1, calling(_HELLO, 5.0, reset=True)),
    ("health checks without a question", 2, calling(_CHECK, 30.0)),
    ("watchers of health", 2, calling(_WATCH, 60.0)),
)


async def attack(address: str, behave: Callable[[Connection], Awaitable[None]], delay_s: float) -> None:
    """Connects for ever."""
    host, port = host_and_port(address)
    await asyncio.sleep(delay_s)
    while True:
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection(host, port)
            connection = Connection(reader, writer)
            acting = asyncio.ensure_future(behave(connection))
            try:
                if behave not in (silent, slow):
                    await connection.listen()
                else:
                    await acting
            finally:
                acting.cancel()
                writer.close()
        await asyncio.sleep(_AGAIN_S)


async def _attack_all(address: str, connections: int) -> None:
    behaviours = [behave for _, share, behave in KINDS for _ in range(share)]
    await asyncio.gather(
        *(attack(address, behaviours[n % len(behaviours)], 10 * n / connections) for n in range(connections))
    )


def main() -> None:
    """Attacks until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.attackers", description=__doc__)
    parser.add_argument("address", help="host:port, on this machine")
    parser.add_argument("--connections", type=int, default=2000)
    options = parser.parse_args()
    if not is_loopback(host_and_port(options.address)[0]):
        parser.error("the address is another machine's, expected one of this machine")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(KeyboardInterrupt):
        asyncio.run(_attack_all(options.address, options.connections))


if __name__ == "__main__":
    main()
