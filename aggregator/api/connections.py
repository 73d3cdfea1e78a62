"""Connections of one gRPC server: how many there may be, and which ones are closed.

gRPC bounds open connections, and ends those that do not finish their handshake in time. It does not know whether a
caller was ever admitted on a connection. So each call reports its admission or failure here; a connection is identified
by its peer's address and port. Closed are

- a connection whose calls keep failing by their caller's doing (refused, reset), faster than :data:`FAILURES_RATE`; ten
  times as fast where a caller was admitted, which may be a proxy of many;
- a connection on which a call that must make room for others cannot be ended, because it does not read its reply;
- while more than three quarters of all places are taken: connections without an admitted caller after
  :data:`STRANGER_S_MAX`, and those of a name that has more than its share, the oldest first, until half of the places
  are free. While more than seven eighths are taken, also new connections without an admitted caller.

gRPC for Python has no call that closes a connection. Here its socket is found by its peer's address among the files of
the process and shut down, which gRPC takes for a peer that went away.
"""

import ipaddress
import os
import socket
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import prometheus_client

from aggregator.logs import journal
from aggregator.process import file_limit
from aggregator.rate_limits import KEY_BYTES, RateLimits, hashed_name, share_of
from aggregator.runtime import Runtime
from hushsum.entropy import OsEntropy

CHECK_S: Final = 0.25
FORGET_S: Final = 5.0  # about how long an admission is remembered after its connection has ended
FAILURES_RATE: Final = 20.0  # calls of one connection that may fail, a second,
FAILURES_BURST: Final = 1000  # and so many ahead of that;
_ADMITTED_TIMES: Final = 10  # so many times as many where a caller was admitted
STRANGER_S_MAX: Final = 10.0  # to be admitted, while places are few
HANDSHAKE_S_MAX: Final = 20.0  # TLS and the first frame of HTTP/2
IDLE_S_MAX: Final = 600.0  # a connection without calls is closed then; clients connect again at their next call
_FILES: Final = Path("/dev/fd")
_FILES_TRIED_MAX: Final = 1 << 16  # where they cannot be listed
_NETWORK_BITS: Final = 64  # of an IPv6 address: who has one has all addresses of its network

_journal = journal("connections")


class Address(NamedTuple):
    """IP address and port."""

    ip: str
    port: int


class Connection(NamedTuple):
    """An open connection: its peer, and the local address that it came to."""

    peer: Address
    local: Address


#: By file: the system's number of its socket, which no other open socket has, and the connection, to whatever port.
Seen = dict[int, tuple[int, Connection]]


def connection_limits(most: int) -> list[tuple[str, int]]:
    """gRPC's own limits, for ``most`` connections on one address of the server."""
    return [
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_S_MAX)),
        ("grpc.http2.settings_timeout", round(1000 * HANDSHAKE_S_MAX)),
        ("grpc.max_connection_idle_ms", round(1000 * IDLE_S_MAX)),
    ]


class ConnectionGuard:
    """Closes connections that take places without use, and counts them by reason; ``most`` may be open."""

    def __init__(self, most: int, registry: prometheus_client.CollectorRegistry) -> None:
        self._most = most  # on one address of the server
        self._failures = RateLimits(FAILURES_RATE, FAILURES_BURST)
        self._admitted_failures = RateLimits(_ADMITTED_TIMES * FAILURES_RATE, _ADMITTED_TIMES * FAILURES_BURST)
        self._failing: set[str] = set()  # peers, as gRPC spells them
        self._unread: set[str] = set()
        self._key = OsEntropy().read(KEY_BYTES)
        self._names: dict[str, bytes] = {}  # by peer, the hash of who was admitted there last
        self._since_s: dict[Connection, float] = {}  # when each was first seen
        self._seen: Seen = {}
        self._now_s = 0.0
        self._looked_s = 0.0
        self._port = 0
        self._addresses = 1
        closed = prometheus_client.Counter(
            "hushsum_connections_closed", "Connections closed by the server, by reason", ["reason"], registry=registry
        )
        reasons = ("failing_calls", "unread_replies", "never_admitted", "share")
        self._closed = {reason: closed.labels(reason) for reason in reasons}

    def begin(self, addresses: int) -> list[tuple[str, int]]:
        """gRPC's own limits on so many addresses: it bounds the connections of each."""
        self._addresses = addresses
        self._most = max(1, self._most // addresses)
        return connection_limits(self._most)

    def listens(self, port: int) -> None:
        self._port = port

    def admitted(self, peer: str, name: str) -> None:
        """Records a caller; its name is empty for a reader, where names are only declared."""
        self._names[peer] = hashed_name(name, self._key) if name else b""

    def failed(self, peer: str) -> None:
        """Records a call that failed by its caller's doing: it was refused, or reset."""
        failures = self._admitted_failures if peer in self._names else self._failures
        if failures.wait_ms(peer, 1, self._now_s):
            self._failing.add(peer)

    def does_not_read(self, peer: str) -> None:
        """Records a peer whose call has to end, and does not read its reply."""
        self._unread.add(peer)

    async def run(self, runtime: Runtime) -> None:
        """Checks all connections periodically; never returns."""
        while True:
            self._now_s = runtime.monotonic()
            for failures in (self._failures, self._admitted_failures):
                failures.forget_paid(self._now_s)
            await self.look(runtime)
            await runtime.sleep(CHECK_S)

    async def look(self, runtime: Runtime) -> None:
        known = [*self._names]
        files = await runtime.blocking(_files)
        is_calm = (
            not self._failing and not self._unread and len(files) <= 3 * self._most // 4
        )  # no place has to be made
        if is_calm and self._now_s - self._looked_s < FORGET_S:
            return
        self._looked_s = self._now_s
        connections, self._seen = await runtime.blocking(_connections, files, self._port, self._seen)
        self._since_s = {each: self._since_s.get(each, self._now_s) for each in connections}
        peers = {each.peer for each in connections}
        for peer in known:  # not those that were admitted since: their connections may not be among these
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


def address_of(peer: str) -> Address:
    """The address in gRPC's name of a peer (``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``)."""
    ip, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    try:
        return Address(_plain(ip.strip("[]")), int(port))
    except ValueError:
        return Address(peer, 0)  # it has no address, and is the peer of no connection


def network_of(peer: str) -> str:
    """The addresses of one caller: an IPv4 address, or the network of an IPv6 address."""
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
    """The numbers of this process's open files; where they cannot be listed, all that may be open."""
    try:
        return [int(name) for name in os.listdir(_FILES)]  # noqa: PTH208  numbers, thousands of them
    except OSError:  # the folder itself cannot be opened: as many files are open as may be
        return [*range(min(file_limit(), _FILES_TRIED_MAX))]


def _connections(files: Iterable[int], port: int, seen: Seen) -> tuple[dict[Connection, int], Seen]:
    """The connections to this port among files, each with its file; and all of them, to be ``seen`` the next time.

    To ask for both addresses of a socket takes 50 times as long as to ask whether a file is still the same socket.
    """
    found: dict[Connection, int] = {}
    still: Seen = {}
    for file in files:
        with suppress(OSError, ValueError):  # closed meanwhile, or no socket
            number = os.fstat(file).st_ino
            each = seen[file][1] if file in seen and seen[file][0] == number else _connection_in(file)
            if each is None:
                continue
            if number:
                still[file] = number, each
            if each.local.port == port:
                found[each] = file
    return found, still


def _shut_down(connections: Mapping[Connection, int]) -> int:
    """Ends connections whose file is still theirs; returns how many."""
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


def _connection_in(file: int) -> Connection | None:
    """None: it is no connection over IP. An OSError: it is no socket, or was closed."""
    with _socket_of(file) as opened:
        return _connection_of(opened)


def _connection_of(opened: socket.socket) -> Connection | None:
    """None: it is no connection over IP."""
    if opened.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    peer, local = opened.getpeername(), opened.getsockname()
    return Connection(Address(_plain(peer[0]), peer[1]), Address(_plain(local[0]), local[1]))
