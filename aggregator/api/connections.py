"""Connections of one gRPC server: how many there may be, and which are closed because they only take room.

gRPC bounds connections that are open, and ends those that do not finish their handshake in time. What it does not know
is whether anybody on a connection was ever admitted. So each call tells here how it went; a connection is known by its
peer's address and port. Closed are

- a connection whose calls fail without end by their caller's doing (refused, reset), faster than
  :data:`FAILURES_RATE`; ten times as fast where somebody was admitted, who may be a proxy of many;
- a connection on which a call that must make room for others cannot be ended, because it does not read its reply;
- while more than three quarters of all places are taken: connections on which nobody was admitted in
  :data:`STRANGER_S_MAX`, and those of a name that has more than its share, the oldest first, until half of the places
  are free. Of strangers, while more than seven eighths are taken, however new they are.

gRPC for Python has no call that closes a connection. Here its socket is found by its peer's address among the files of
the process and shut down, which gRPC takes for a peer that went away.
"""

import hashlib
import ipaddress
import os
import socket
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import prometheus_client

from aggregator.logs import journal
from aggregator.process import file_limit
from aggregator.rate_limits import RateLimits, share_of
from aggregator.runtime import Runtime
from hushsum.entropy import OsEntropy

CHECK_S: Final = 0.25
FORGET_S: Final = 5.0  # how long who was admitted is remembered after its connection has ended, about
FAILURES_RATE: Final = 20.0  # calls of one connection that may fail, a second,
FAILURES_BURST: Final = 1000  # and so many ahead of that;
_ADMITTED_TIMES: Final = 10  # of a connection on which somebody was admitted so many times as many
STRANGER_S_MAX: Final = 10.0  # to be admitted, while places are few
HANDSHAKE_S_MAX: Final = 20.0  # TLS and the first frame of HTTP/2
IDLE_S_MAX: Final = 600.0  # a connection without calls is closed then; clients connect again at their next call
_FILES: Final = Path("/dev/fd")
_FILES_TRIED_MAX: Final = 1 << 16  # where they cannot be listed
_NETWORK_BITS: Final = 64  # of an IPv6 address: who has one has all addresses of its network
_KEY_BYTES: Final = 32
_NAME_BYTES: Final = 16

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


class Connection(NamedTuple):
    """An open connection: its peer, and the local address that it came to."""

    peer: Address
    local: Address


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
        self._most = most  # on one address of the server
        self._failures = RateLimits(FAILURES_RATE, FAILURES_BURST)
        self._admitted_failures = RateLimits(_ADMITTED_TIMES * FAILURES_RATE, _ADMITTED_TIMES * FAILURES_BURST)
        self._failing: set[str] = set()  # peers, as gRPC spells them
        self._unread: set[str] = set()
        self._key = OsEntropy().read(_KEY_BYTES)
        self._names: dict[str, bytes] = {}  # by peer, the hash of who was admitted there last
        self._since_s: dict[Connection, float] = {}  # when each was first seen
        self._now_s = self._looked_s = 0.0
        self._port, self._addresses = 0, 1
        closed = prometheus_client.Counter(
            "hushsum_connections_closed", "Connections that were closed, by reason", ["reason"], registry=registry
        )
        reasons = ("failing_calls", "unread_replies", "never_admitted", "share")
        self._closed = {reason: closed.labels(reason) for reason in reasons}

    def begin(self, addresses: int) -> list[tuple[str, int]]:
        """What gRPC itself is to do about connections, on so many addresses: it bounds those of each."""
        self._addresses, self._most = addresses, max(1, self._most // addresses)
        return connection_limits(self._most)

    def listens(self, port: int) -> None:
        """On which port connections come in."""
        self._port = port

    def admitted(self, peer: str, name: str) -> None:
        """Somebody was admitted on the connection of this peer; without a name: a reader, where names are declared."""
        self._names[peer] = self._hashed(name) if name else b""

    def failed(self, peer: str) -> None:
        """A call of this peer failed by its own doing: it was refused, or reset."""
        failures = self._admitted_failures if peer in self._names else self._failures
        if failures.wait_ms(peer, 1, self._now_s):
            self._failing.add(peer)

    def does_not_read(self, peer: str) -> None:
        """A call of this peer has to end, and its reply waits to be read."""
        self._unread.add(peer)

    async def run(self, runtime: Runtime) -> None:
        """Looks at all connections again and again, for ever."""
        while True:
            self._now_s = runtime.monotonic()
            for failures in (self._failures, self._admitted_failures):
                failures.forget_paid(self._now_s)
            await self.look(runtime)
            await runtime.sleep(CHECK_S)

    async def look(self, runtime: Runtime) -> None:
        """Closes what is to be closed now."""
        known = [*self._names]
        files = await runtime.blocking(_files)
        is_calm = not self._failing and not self._unread and len(files) < self._most // 2
        if is_calm and self._now_s - self._looked_s < FORGET_S:
            return
        self._looked_s = self._now_s
        connections = await runtime.blocking(_connections, files, self._port)
        self._since_s = {each: self._since_s.get(each, self._now_s) for each in connections}
        peers = {each.peer for each in connections}
        for peer in known:  # and nobody who was admitted since: its connection may not be among these
            if address_of(peer) not in peers:
                self._names.pop(peer, None)
        for reason, wanted in (("failing_calls", self._failing), ("unread_replies", self._unread)):
            condemned = {address_of(peer) for peer in wanted}
            wanted.clear()
            await self._close(reason, [each for each in connections if each.peer in condemned], connections, runtime)
        by_address: defaultdict[str, list[Connection]] = defaultdict(list)
        for each in sorted(connections, key=self._since_s.__getitem__):
            by_address[each.local.ip if self._addresses > 1 else ""].append(each)
        for oldest in by_address.values():
            if len(oldest) > 3 * self._most // 4:
                await self._make_room(oldest, connections, runtime)

    async def _make_room(
        self, oldest: Sequence[Connection], connections: Mapping[Connection, int], runtime: Runtime
    ) -> None:
        """Closes connections of one address, given the oldest first, until half of its places are free."""
        names = {address_of(peer): name for peer, name in self._names.items()}
        excess = len(oldest) - self._most // 2
        until_s = self._now_s - (STRANGER_S_MAX if len(oldest) <= 7 * self._most // 8 else 0.0)
        strangers = [each for each in oldest if each.peer not in names and self._since_s[each] <= until_s][:excess]
        await self._close("never_admitted", strangers, connections, runtime)
        beyond = _beyond_share(oldest, names, share_of(self._most))
        await self._close("share", beyond[: excess - len(strangers)], connections, runtime)

    async def _close(
        self, reason: str, chosen: Iterable[Connection], connections: Mapping[Connection, int], runtime: Runtime
    ) -> None:
        files = {each: connections[each] for each in chosen}
        if files:
            closed = await runtime.blocking(_shut_down, files)
            self._closed[reason].inc(closed)
            _journal.warning("connections closed", reason=reason, number=closed)  # whose they were is not written

    def _hashed(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=_NAME_BYTES, key=self._key).digest()


def address_of(peer: str) -> Address:
    """The address in gRPC's name of a peer (``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``)."""
    ip, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    try:
        return Address(_plain(ip.strip("[]")), int(port))
    except ValueError:
        return Address(peer, 0)  # it has no address, and is the peer of no connection


def network_of(peer: str) -> str:
    """Whose addresses are one caller's: an IPv4 address, or the network of an IPv6 address."""
    ip = address_of(peer).ip
    return str(ipaddress.ip_network(f"{ip}/{_NETWORK_BITS}", strict=False)) if ":" in ip and ip != peer else ip


def _plain(ip: str) -> str:
    """One spelling for each address: an IPv4 address that came in over IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _beyond_share(oldest: Iterable[Connection], names: Mapping[Address, bytes], share: int) -> list[Connection]:
    """Connections of names with more of them than their share: as many of the oldest as are too many."""
    named = [(each, names[each.peer]) for each in oldest if names.get(each.peer)]
    too_many = Counter(name for _, name in named)
    for name in too_many:
        too_many[name] -= share
    beyond = []
    for each, name in named:
        if too_many[name] > 0:
            too_many[name] -= 1
            beyond.append(each)
    return beyond


def _files() -> list[int]:
    """The files that this process has open; where they cannot be listed, all that may be."""
    try:
        return [int(name) for name in os.listdir(_FILES)]  # noqa: PTH208  numbers, thousands of them
    except OSError:  # not even this one can be opened: as many are open as may be
        return [*range(min(file_limit(), _FILES_TRIED_MAX))]


def _connections(files: Iterable[int], port: int) -> dict[Connection, int]:
    """Those of them that are connections to this port."""
    found: dict[Connection, int] = {}
    for file in files:
        with suppress(OSError, ValueError), _socket_of(file) as opened:  # closed meanwhile, or no socket
            if (each := _connection_of(opened)) is not None and each.local.port == port:
                found[each] = file
    return found


def _shut_down(connections: Mapping[Connection, int]) -> int:
    """Ends connections, where a file is still that one; returns how many."""
    closed = 0
    for each, file in connections.items():
        with suppress(OSError, ValueError), _socket_of(file) as opened:
            if _connection_of(opened) == each:
                opened.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed


@contextmanager
def _socket_of(file: int) -> Iterator[socket.socket]:
    """A socket over a file that is gRPC's: it is not closed at the end.

    Raises:
        OSError: It is no socket, or was closed.
    """
    opened = socket.socket(fileno=file)
    try:
        yield opened
    finally:
        opened.detach()


def _connection_of(opened: socket.socket) -> Connection | None:
    """None: it is no connection over IP."""
    if opened.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    peer, local = opened.getpeername(), opened.getsockname()
    return Connection(Address(_plain(peer[0]), peer[1]), Address(_plain(local[0]), local[1]))
