"""What PostgreSQL and the network say, as errors of the store: those that pass by themselves, and those that do not."""

import asyncio
import ssl
from typing import Final

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
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return StoreError("store: postgres_dsn is not the address of a PostgreSQL database")
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(f"store: PostgreSQL's certificate is refused: {error}; see sslrootcert")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError("store: PostgreSQL has not answered in time")
    assert isinstance(error, DATABASE_ERRORS), "an error of something else"
    return StoreUnavailableError(f"store: PostgreSQL cannot be reached: {type(error).__name__}")


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
