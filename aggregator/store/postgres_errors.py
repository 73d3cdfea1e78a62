"""What PostgreSQL and the network say, as errors of the store: those that pass by themselves, and those that do not."""

import asyncio
import ssl
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from aggregator.errors import StoreError, StoreUnavailableError

#: Classes of SQLSTATE, and single ones, after which the same may be tried again.
_PASSING: Final = (
    "08",  # the connection
    "40",  # a deadlock, or a transaction that others overtook
    "53",  # no room: of disk, memory or connections
    "57P01",  # it is shut down
    "57P02",  # it has crashed
    "57P03",  # it is starting
    "57P05",  # it was idle for too long
    "57014",  # a statement took too long
    "55P03",  # a lock did
    "25P03",  # a transaction did
    "25006",  # this server only reads: another one has become the primary
)
_REFUSED: Final = ("28", "3D000", "42501")  # who we are, the database, what we may do
_VALUE: Final = "22"  # its text shows the value


def translated(error: Exception) -> StoreError:
    """An error of asyncpg, or of the network below it, as the store's own.

    Its text never shows the address, for that may hold the password, nor values of rows.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _of_the_server(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(f"store: PostgreSQL's certificate is refused: {error}; see sslrootcert")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError("store: PostgreSQL has not answered in time")
    assert isinstance(error, DATABASE_ERRORS), "an error of something else"
    why = f" ({error.reason})" if isinstance(error, ssl.SSLError) and error.reason else ""
    return StoreUnavailableError(f"store: PostgreSQL cannot be reached: {type(error).__name__}{why}")


def address_error(error: Exception, dsn: str) -> StoreError | None:
    """What asyncpg has against the address, without anything of it that may be secret; None for any other error."""
    if isinstance(error, OSError) or not isinstance(error, ValueError):
        return None
    # What is no error of its own may be about any piece of the address.
    known = isinstance(error, asyncpg.exceptions.ClientConfigurationError)
    said = str(error).partition("\n")[0] if known else "a port, or an option after the ?, cannot be read"
    if any(secret in said for secret in _secrets(dsn)):
        said = "it is not the address of a PostgreSQL database"
    return StoreError(f"store: postgres_dsn: {said}")


def _secrets(dsn: str) -> set[str]:
    """Whatever could be a password, or a piece of one that has signs in it which end it."""
    try:
        parts = urlsplit(dsn)
        options = parse_qs(parts.query)
    except ValueError:
        return {""}  # which is in every text
    found = {dsn, parts.netloc, *(parts.netloc.rpartition("@")[0] or parts.netloc).split(":")[1:]}
    found.update(value for key in ("password", "sslpassword") for value in options.get(key, []))
    return {each for secret in found for each in (secret, unquote(secret)) if each}


def _of_the_server(error: asyncpg.PostgresError) -> StoreError:
    said, state = str(error.args[0]), error.sqlstate or ""
    if state.startswith(_PASSING):
        return StoreUnavailableError(f"store: PostgreSQL: {said}")
    if state.startswith(_REFUSED):
        return StoreError(f"store: PostgreSQL refuses: {said}; see user, password, database and rights")
    if state.startswith(_VALUE):
        return StoreError("store: a value that PostgreSQL cannot hold")
    return StoreError(f"store: PostgreSQL: {said}")


#: What :func:`translated` takes.
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
