"""Addresses that settings name, and whether they stay on this machine."""

import ipaddress
import os
from typing import Final
from urllib.parse import parse_qs, urlsplit

LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:7443 or [::1]:7443; port 0 takes any free one")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Database:
    """What may be said of the address of a database: where it is, never the password that stands in it.

    Args:
        dsn: ``postgresql://user:password@host:port/name?option=value``; without a host it is that of ``PGHOST``.

    Raises:
        ValueError: It is no such address.
    """

    def __init__(self, dsn: str) -> None:
        try:
            parts = urlsplit(dsn)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"postgresql", "postgres"}:
            raise ValueError("expected postgresql://user:password@host:port/name")
        options = parse_qs(parts.query)
        before, _, netloc = parts.netloc.rpartition("@")
        if "@" in before:
            raise ValueError("an @ in user or password is written %40")
        # As asyncpg looks for it: what stands earlier hides what stands later.
        for place in (netloc, ",".join(options.get("host", [])), _of_a_service(options), os.environ.get("PGHOST", "")):
            self.hosts = tuple(_host_of(each) for each in place.split(",") if each)
            if self.hosts:
                break
        self.name = parts.path.lstrip("/")
        self._ssl = options.get("sslmode", ["prefer"])[-1]

    @property
    def is_private(self) -> bool:
        """Whether nobody between can read what passes: one machine's sockets, or TLS that is demanded."""
        here = all(host.startswith("/") or is_loopback(host) for host in self.hosts)
        return here or self._ssl in {"require", "verify-ca", "verify-full"}

    def __str__(self) -> str:
        return f"{','.join(self.hosts) or 'the local socket'}/{self.name}"


def _of_a_service(options: dict[str, list[str]]) -> str:
    """A host that a file names, which is not read here: it may be any."""
    return f"service {options['service'][-1]}" if "service" in options else ""


def _host_of(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address
