"""The store's tables and their migrations, for an SQLite file and for PostgreSQL.

In PostgreSQL migrations are numbered steps, each applied once under an advisory lock, so that only one of several
starting processes applies it. They need no superuser, only a role that owns the schema or may create it.
"""

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.sqlite import DatabaseKind

#: 1 had no withheld windows, no reservations, and spends without events; 2 no fences and no leases; 3 no signatures of
#: plans; 4 no claims of rounds and no bound receipts; 5 no cumulative sequences; 6 no copy of the receipts, and the
#: state of a sequence in one row.
STORE_FORMAT: Final = 7
_ITEM_BYTES: Final = (1, 2, 4, 8)

# Outcomes that are charged and not stored yet, each with the key of its randomness and the digest of its counters.
# The size of a row does not depend on the data.
_RESERVATIONS: Final = """CREATE TABLE reservations (
            plan INTEGER NOT NULL, kind TEXT NOT NULL, window INTEGER NOT NULL,
            key BLOB NOT NULL, digest BLOB NOT NULL,
            PRIMARY KEY (plan, kind, window)) WITHOUT ROWID"""

# `fence` is of the last claim, by `owner`: checkpoints with another one are refused.
_PARTITIONS: Final = """CREATE TABLE partitions (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            closed_through INTEGER NOT NULL, forgotten_through INTEGER NOT NULL,
            fence INTEGER NOT NULL, owner TEXT NOT NULL,
            PRIMARY KEY (plan, partition)) WITHOUT ROWID"""

# The releaser of a plan, and the windows that folds were asked to forget.
_LEASES: Final = """CREATE TABLE leases (
            plan INTEGER PRIMARY KEY, fence INTEGER NOT NULL, owner TEXT NOT NULL, address TEXT NOT NULL,
            note TEXT NOT NULL, until_ms INTEGER NOT NULL, forget_asked INTEGER)"""

# The latest stored signature of a plan.
_PLAN_SIGNATURES: Final = """CREATE TABLE plan_signatures (
            plan INTEGER PRIMARY KEY, key_id TEXT NOT NULL, suite INTEGER NOT NULL, signature BLOB NOT NULL)"""

# By window and client, its latest round of a secure sum; `granted`: it may have sent its vector there; `draws`: the
# number of cohorts of the window that it was drawn into.
_ROUND_CLAIMS: Final = """CREATE TABLE round_claims (
            plan INTEGER NOT NULL, window INTEGER NOT NULL, client_id TEXT NOT NULL,
            round BLOB NOT NULL, granted INTEGER NOT NULL, draws INTEGER NOT NULL,
            PRIMARY KEY (plan, window, client_id)) WITHOUT ROWID"""

# One row: the receipts of all plans. An empty id: an older version made receipts, and the store does not know which.
_RECEIPTS: Final = """CREATE TABLE receipts (
            number INTEGER PRIMARY KEY CHECK (number = 1), id BLOB NOT NULL, lines INTEGER NOT NULL,
            digest BLOB NOT NULL)"""
_RECEIPTS_OF_OLDER: Final = """INSERT INTO receipts SELECT 1, x'', 0, x'' WHERE EXISTS (SELECT 1 FROM leases)
            OR EXISTS (SELECT 1 FROM reservations) OR EXISTS (SELECT 1 FROM outcomes)
            OR EXISTS (SELECT 1 FROM windows WHERE state <> 'open')"""

# One row if the receipts have a copy: where it is. A process that does not write to it must not release.
_RECEIPTS_COPY: Final = """CREATE TABLE receipts_copy (
            number INTEGER PRIMARY KEY CHECK (number = 1), place TEXT NOT NULL)"""

# The newest step of a plan's cumulative sequence: what the next one is drawn from, and a digest of all steps so far.
# The state holds the noise, and is as secret as the counters of a sealed window; empty once the horizon is reached. A
# long one goes on in `sequence_parts`; format 6 had all of it here.
_SEQUENCES: Final = """CREATE TABLE sequences (
            plan INTEGER PRIMARY KEY, step INTEGER NOT NULL, window INTEGER NOT NULL,
            digest BLOB NOT NULL, state BLOB NOT NULL)"""

# What follows the row's state in `sequences`, from part 1 on. SQLite overwrites rows of the same size in place, but not
# in a table WITHOUT ROWID.
_SEQUENCE_PARTS: Final = """CREATE TABLE sequence_parts (
            plan INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, part))"""

# In how many windows each client is counted, for the plan's life, where the plan bounds it.
_CLIENT_WINDOWS: Final = """CREATE TABLE client_windows (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, client_id TEXT NOT NULL, windows INTEGER NOT NULL,
            PRIMARY KEY (plan, partition, client_id)) WITHOUT ROWID"""

# A sequence is charged once, without a window; in a UNIQUE constraint NULL equals nothing.
_SEQUENCE_SPENDS: Final = "CREATE UNIQUE INDEX sequence_spends ON spends (plan_id) WHERE kind = 'cumulative'"

# Every pass of a releaser looks for such outcomes: without the index it would read all outcomes that ever were.
_UNPUBLISHED: Final = "CREATE INDEX unpublished ON outcomes (plan, window) WHERE published = 0"

_TABLES: Final = (
    """CREATE TABLE populations (
            name TEXT PRIMARY KEY, unit TEXT NOT NULL, relation TEXT NOT NULL,
            epsilon TEXT NOT NULL, delta TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE plans (
            number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE, bytes BLOB NOT NULL,
            partitions INTEGER NOT NULL, first_window INTEGER NOT NULL)""",
    """CREATE TABLE windows (
            plan INTEGER NOT NULL, window INTEGER NOT NULL, state TEXT NOT NULL,
            PRIMARY KEY (plan, window)) WITHOUT ROWID""",
    "CREATE INDEX unfinished ON windows (plan, window) WHERE state IN ('open', 'closing', 'sealed')",
    _PARTITIONS,
    _LEASES,
    # `data`: see `pack`. Blocks of windows up to the partition's `closed_through` are sealed: never written again.
    """CREATE TABLE blocks (
            plan INTEGER NOT NULL, window INTEGER NOT NULL, partition INTEGER NOT NULL,
            class INTEGER NOT NULL, block INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, window, partition, class, block))""",
    """CREATE TABLE counts (
            plan INTEGER NOT NULL, window INTEGER NOT NULL, partition INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, window, partition))""",
    # `stream` is unsigned, 8 bytes big-endian.
    """CREATE TABLE streams (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, client_id TEXT NOT NULL, stream BLOB NOT NULL,
            last_window INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, partition, client_id, stream))""",
    """CREATE TABLE contributions (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, window INTEGER NOT NULL, client_id TEXT NOT NULL,
            records INTEGER NOT NULL,
            PRIMARY KEY (plan, partition, window, client_id)) WITHOUT ROWID""",
    # One for each delta, if the operator retains verdicts.
    """CREATE TABLE verdicts (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            kind TEXT NOT NULL, reason TEXT, client_id TEXT, stream BLOB, sequence INTEGER, window INTEGER,
            PRIMARY KEY (plan, partition, position)) WITHOUT ROWID""",
    # `fields` are canonical bytes; the other columns keep an outcome from being charged twice.
    """CREATE TABLE spends (
            number INTEGER PRIMARY KEY, population TEXT NOT NULL, plan_id TEXT NOT NULL, kind TEXT NOT NULL,
            window INTEGER, fields BLOB NOT NULL, UNIQUE (plan_id, kind, window))""",
    # The window's state says whether it was withheld: both are written in one transaction.
    """CREATE TABLE outcomes (
            plan INTEGER NOT NULL, kind TEXT NOT NULL, window INTEGER NOT NULL, published INTEGER NOT NULL,
            sha256 BLOB NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, kind, window))""",
)

STORE_FILE: Final = DatabaseKind(
    what="store",
    application_id=0x48755374,  # "HuSt"
    version=STORE_FORMAT,
    schema=(
        *(*_TABLES, _RESERVATIONS, _PLAN_SIGNATURES, _ROUND_CLAIMS, _RECEIPTS),
        *(_SEQUENCES, _SEQUENCE_PARTS, _CLIENT_WINDOWS, _SEQUENCE_SPENDS, _UNPUBLISHED, _RECEIPTS_COPY),
    ),
    upgrades={
        1: (_RESERVATIONS,),
        2: (
            "ALTER TABLE partitions RENAME TO partitions_2",
            _PARTITIONS,
            """INSERT INTO partitions
            SELECT plan, partition, position, closed_through, forgotten_through, 0, '' FROM partitions_2""",
            "DROP TABLE partitions_2",
            _LEASES,
        ),
        3: (_PLAN_SIGNATURES,),
        4: (_ROUND_CLAIMS, _RECEIPTS, _RECEIPTS_OF_OLDER),
        5: (_SEQUENCES, _CLIENT_WINDOWS, _SEQUENCE_SPENDS, _UNPUBLISHED),
        6: (_RECEIPTS_COPY, _SEQUENCE_PARTS),
    },
    error=StoreError,
    unavailable=StoreUnavailableError,
)


def pack(values: npt.NDArray[np.int64]) -> bytes:
    """Counters in as few bytes as hold them all: the bytes of an item (1, 2, 4 or 8), then the items, little-endian."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    size = next(size for size in _ITEM_BYTES if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))
    return bytes([size]) + values.astype(f"<i{size}").tobytes()


def unpack(data: bytes) -> npt.NDArray[np.int64]:
    """The counters that :func:`pack` encoded, in a writable array; StoreError if the bytes are damaged."""
    if not data or data[0] not in _ITEM_BYTES or (len(data) - 1) % data[0]:
        raise StoreError("store: a block of counters is damaged")
    return np.frombuffer(data, f"<i{data[0]}", offset=1).astype(np.int64)


#: What PostgreSQL calls otherwise, in the statements for SQLite. Client ids are compared by bytes, which is fastest and
#: keeps indexes independent of the locale.
_POSTGRES_FORMS: Final = (
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bBLOB\b", "BYTEA"),
    (r"\bwindow\b", '"window"'),
    (r"x''", "''::bytea"),
    (r" WITHOUT ROWID", ""),
    (r"number BIGINT PRIMARY KEY,", "number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"),
    (r"client_id TEXT NOT NULL", 'client_id TEXT COLLATE "C" NOT NULL'),
)


def _for_postgres(*statements: str) -> tuple[str, ...]:
    for pattern, form in _POSTGRES_FORMS:
        statements = tuple(re.sub(pattern, form, statement) for statement in statements)
    return statements


#: Step n makes schema n from schema n - 1; each is the tables of a later version of the SQLite file. `data` of counters
#: is packed already (see `pack`): EXTERNAL keeps PostgreSQL from compressing it.
POSTGRES_MIGRATIONS: Final = (
    (*_for_postgres(*_TABLES, _RESERVATIONS), "ALTER TABLE blocks ALTER COLUMN data SET STORAGE EXTERNAL"),
    _for_postgres(_PLAN_SIGNATURES),
    _for_postgres(_ROUND_CLAIMS, _RECEIPTS, _RECEIPTS_OF_OLDER),
    (
        *_for_postgres(_SEQUENCES, _CLIENT_WINDOWS, _SEQUENCE_SPENDS, _UNPUBLISHED),
        "ALTER TABLE sequences ALTER COLUMN state SET STORAGE EXTERNAL",
    ),
    (
        *_for_postgres(_RECEIPTS_COPY, _SEQUENCE_PARTS),
        "ALTER TABLE sequence_parts ALTER COLUMN data SET STORAGE EXTERNAL",
    ),
)
POSTGRES_SCHEMA_FORMAT: Final = len(POSTGRES_MIGRATIONS)
_LOCK: Final = 0x48755374  # "HuSt"


async def migrate(connection: Any, schema: str) -> None:  # what asyncpg connects; it ships no types
    """Creates or upgrades the tables to this version's; the connection's search path is the schema.

    Raises:
        StoreError: The tables are of a newer version.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval("SELECT to_regnamespace($1)", quoted(schema)) is None:
            await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
        version = await stored_format(connection, schema)
        if version is None:
            await connection.execute("CREATE TABLE hushsum_schema (version BIGINT PRIMARY KEY)")
            version = 0
        for number, step in enumerate(POSTGRES_MIGRATIONS[version:], version + 1):
            for statement in step:
                await connection.execute(statement)
            await connection.execute("INSERT INTO hushsum_schema VALUES ($1)", number)


async def stored_format(connection: Any, schema: str) -> int | None:  # what asyncpg connects; it ships no types
    """The format of the tables; None: there are none. StoreError: it is of a newer version."""
    if await connection.fetchval("SELECT to_regclass($1)", f"{quoted(schema)}.hushsum_schema") is None:
        return None
    version: int = await connection.fetchval("SELECT max(version) FROM hushsum_schema") or 0
    if version > POSTGRES_SCHEMA_FORMAT:
        raise StoreError(
            f"store: the schema {schema} has format {version}; this version reads up to {POSTGRES_SCHEMA_FORMAT}: "
            "update the service"
        )
    return version


def quoted(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
