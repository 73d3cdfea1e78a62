"""Connections of one gRPC server: how many there may be, and which are closed because they only take room.

gRPC bounds connections that are open, and ends those that do not finish their handshake in time. What it does not know
is whether anybody on a connection was ever admitted. So each call tells here how it went; a connection is known by its
peer's address and port. Closed are

- a connection whose calls fail without end (refused, or reset by the peer), faster than :data:`FAILURES_RATE`;
- while more than three quarters of all places are taken: connections on which nobody was admitted in
  :data:`STRANGER_S_MAX`, and those of a name that has more than its share, the oldest first, until half of the places
  are free. Of strangers, while more than seven eighths are taken, however new they are.

gRPC for Python has no call that closes a connection. Here its socket is found by its peer's address among the files of
the process and shut down, which gRPC takes for a peer that went away.
"""

import ipaddress
import os
import socket
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import prometheus_client

from aggregator.callers.client_limits import share_of
from aggregator.callers.rate_limits import RateLimits
from aggregator.journal import journal
from aggregator.ports import Runtime

CHECK_S: Final = 1.0
FAILURES_RATE: Final = 20.0  # calls of one connection that may fail, a second,
FAILURES_BURST: Final = 1000  # and so many ahead of that
STRANGER_S_MAX: Final = 10.0  # to be admitted, while places are few
HANDSHAKE_S_MAX: Final = 20.0  # TLS and the first frame of HTTP/2
IDLE_S_MAX: Final = 600.0  # a connection without calls is closed then; clients connect again at their next call
_FILES: Final = Path("/dev/fd")

_journal = journal("connections")


@dataclass(frozen=True)
class ConnectionSettings:
    """What a server does with connections.

    Attributes:
        most: How many may be open; None: as many as calls.
        options: What gRPC is to do with them beside what it does anywhere.
    """

    most: int | None = None
    options: Sequence[tuple[str, int]] = ()


class Address(NamedTuple):
    """Of a peer: its IP address and its port."""

    ip: str
    port: int


def connection_limits(most: int) -> list[tuple[str, int]]:
    """What gRPC itself is to do about connections.

    Args:
        most: How many may be open on one address of the server.
    """
    return [
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_S_MAX)),
        ("grpc.http2.settings_timeout", round(1000 * HANDSHAKE_S_MAX)),
        ("grpc.max_connection_idle_ms", round(1000 * IDLE_S_MAX)),
    ]


class ConnectionGuard:
    """Closes connections that only take room.

    Args:
        most: How many may be open.
        registry: Where what is closed is counted, by reason.
    """

    def __init__(self, most: int, registry: prometheus_client.CollectorRegistry) -> None:
        self._most = most
        self._failures = RateLimits(FAILURES_RATE, FAILURES_BURST)
        self._failing: set[str] = set()  # peers, as gRPC spells them
        self._names: dict[str, str] = {}  # by peer, who was admitted there last
        self._since_s: dict[Address, float] = {}  # when each was first seen, while connections are looked at
        self._now_s = 0.0
        self._port = 0
        closed = prometheus_client.Counter(
            "hushsum_connections_closed", "Connections that were closed, by reason", ["reason"], registry=registry
        )
        self._closed = {reason: closed.labels(reason) for reason in ("failing_calls", "never_admitted", "share")}

    def listens(self, port: int) -> None:
        """On which port connections come in."""
        self._port = port

    def admitted(self, peer: str, name: str) -> None:
        """Somebody was admitted on the connection of this peer."""
        self._names[peer] = name

    def failed(self, peer: str) -> None:
        """A call of this peer was refused, or reset."""
        if self._failures.wait_ms(peer, 1, self._now_s):
            self._failing.add(peer)

    async def run(self, runtime: Runtime) -> None:
        """Looks at all connections again and again, for ever."""
        while True:
            self._now_s = runtime.monotonic()
            self._failures.forget_paid(self._now_s)
            await self.look(runtime)
            await runtime.sleep(CHECK_S)

    async def look(self, runtime: Runtime) -> None:
        """Closes what is to be closed now; costs nothing while there are few connections, and all of them work."""
        files = await runtime.blocking(_files)
        if not self._failing and len(files) < self._most // 2 and len(self._names) < self._most:
            self._since_s.clear()
            return
        known = [*self._names]  # whoever is admitted from here on is not in `connections` yet
        connections = await runtime.blocking(_connections, files, self._port)
        self._since_s = {address: self._since_s.get(address, self._now_s) for address in connections}
        names = {}
        for peer in known:
            address = address_of(peer)
            if address in connections:
                names[address] = self._names[peer]
            else:
                del self._names[peer]
        failing, self._failing = self._failing, set()
        await self._close("failing_calls", map(address_of, failing), connections, runtime)
        if len(connections) > 3 * self._most // 4:
            oldest = sorted(connections, key=self._since_s.__getitem__)
            excess = len(connections) - self._most // 2
            until_s = self._now_s - (STRANGER_S_MAX if len(connections) <= 7 * self._most // 8 else 0.0)
            strangers = [each for each in oldest if each not in names and self._since_s[each] <= until_s]
            await self._close("never_admitted", strangers[:excess], connections, runtime)
            beyond = _beyond_share(oldest, names, share_of(self._most))
            await self._close("share", beyond, connections, runtime)

    async def _close(
        self,
        reason: str,
        addresses: Iterable[Address],
        connections: dict[Address, int],
        runtime: Runtime,
    ) -> None:
        chosen = {address: connections[address] for address in addresses if address in connections}
        if chosen:
            closed = await runtime.blocking(_shut_down, chosen)
            self._closed[reason].inc(closed)
            _journal.warning("connections closed", reason=reason, number=closed)  # whose they were is not written


def address_of(peer: str) -> Address:
    """The address in gRPC's name of a peer (``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``)."""
    ip, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    try:
        return Address(_plain(ip.strip("[]")), int(port))
    except ValueError:
        return Address(peer, 0)  # it has no address, and is the peer of no connection


def _plain(ip: str) -> str:
    """One spelling for each address: an IPv4 address that came in over IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _beyond_share(oldest: list[Address], names: dict[Address, str], share: int) -> list[Address]:
    """Connections of names with more of them than their share: as many of the oldest as are too many."""
    too_many = Counter(names.values())
    for name in too_many:
        too_many[name] -= share
    beyond = []
    for address in oldest:
        if address in names and too_many[names[address]] > 0:
            too_many[names[address]] -= 1
            beyond.append(address)
    return beyond


def _files() -> list[int]:
    """The files that this process has open."""
    try:
        return [int(name) for name in os.listdir(_FILES)]  # noqa: PTH208  numbers, thousands of them
    except OSError:  # not even this one can be opened: as many as there may be
        return []


def _connections(files: Iterable[int], port: int) -> dict[Address, int]:
    """Those of them that are connections to this port, by their peer."""
    found: dict[Address, int] = {}
    for file in files:
        with suppress(OSError, ValueError), _socket_of(file) as connection:  # closed meanwhile, or no socket
            if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.getsockname()[1] == port:
                found[_peer_of(connection)] = file
    return found


def _shut_down(connections: dict[Address, int]) -> int:
    """Ends connections, where a file is still that one; returns how many."""
    closed = 0
    for address, file in connections.items():
        with suppress(OSError, ValueError), _socket_of(file) as connection:
            if _peer_of(connection) == address:
                connection.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed


@contextmanager
def _socket_of(file: int) -> Iterator[socket.socket]:
    """A socket over a file that is gRPC's: it is not closed at the end.

    Raises:
        OSError: It is no socket, or was closed.
    """
    connection = socket.socket(fileno=file)
    try:
        yield connection
    finally:
        connection.detach()


def _peer_of(connection: socket.socket) -> Address:
    ip, port, *_ = connection.getpeername()
    return Address(_plain(ip), port)
