"""What is asked of a PostgreSQL server, and of the files that its address names, before anything is entrusted to it."""

import os
import socket
import ssl
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from aggregator.errors import StoreError, StoreUnavailableError

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 9_000))
_LOST: Final = "what is released, charged or folded may not survive the loss of the database's machine or its disk"


async def check_server(connection: Any, *, known: bool) -> None:  # asyncpg ships no types
    """Refuses a server that would lose what it has committed, whenever a connection is made.

    Args:
        connection: To the server.
        known: Whether this process has used the database before.

    Raises:
        StoreUnavailableError: It only reads, and it may be that another server has just become the primary.
        StoreError: It only reads, or does not wait for its disk.
    """
    fsync, commit, replica = await connection.fetchrow(
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), pg_is_in_recovery()"
    )
    if replica:
        kind = StoreUnavailableError if known else StoreError
        raise kind("store: this PostgreSQL is a replica, which only reads; name the primary")
    for name, value in (("fsync", fsync), ("synchronous_commit", commit)):
        if value == "off":
            raise StoreError(
                f"store: {name} is off in PostgreSQL: outcomes, charges and checkpoints would not survive power "
                "loss; turn it on"
            )


async def promises_lost(connection: Any) -> tuple[str, ...]:  # asyncpg ships no types
    """Which promises the server cannot keep, a sentence each.

    ``remote_write`` keeps this one: what one machine loses, the other one holds, as do the brokers of a log.
    """
    standbys, commit = await connection.fetchrow(
        "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
    )
    if not standbys.strip():
        return (f"PostgreSQL waits for no standby (synchronous_standby_names is empty): {_LOST}",)
    if commit == "local":
        return (f"PostgreSQL waits for no standby (synchronous_commit is local; set it on): {_LOST}",)
    return ()


def check_files(dsn: str) -> None:
    """Reads the certificates and keys that an address names: later on they would look like a server that is not there.

    Raises:
        StoreError: One of them cannot be used.
    """
    try:
        options = parse_qs(urlsplit(dsn).query)
    except ValueError:
        return  # asyncpg refuses it

    def named(key: str) -> str:
        return options.get(key, [os.environ.get(f"PG{key.upper()}", "")])[-1]

    key, context = "", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for key in ("sslrootcert", "sslcrl"):
            if named(key):
                context.load_verify_locations(cafile=named(key))
        key = "sslcert"
        if named(key):
            context.load_cert_chain(named(key), named("sslkey") or None, lambda: options.get("sslpassword", [""])[-1])
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise StoreError(f"store: postgres_dsn: {key}: {named(key)} cannot be used: {why}") from None


def keep_alive(connection: Any) -> None:  # asyncpg ships no types
    """Ends a connection in seconds whose other end is gone without a word."""
    found = connection._transport.get_extra_info("socket")  # noqa: SLF001  asyncpg has no setting for it
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # macOS has not all of them
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
