"""The store's tables in PostgreSQL, and how they become those of this version: numbered steps, each taken once.

Under an advisory lock, so that of processes that start at once one takes them. No superuser is needed: a role that owns
the schema, or may make it.
"""

from typing import Any, Final

from aggregator.errors import StoreError

# One row: the receipts of all plans. No id: there are some, and which is not known, for an older version made them.
_RECEIPTS: Final = """CREATE TABLE receipts (
            number BIGINT PRIMARY KEY CHECK (number = 1), id BYTEA NOT NULL, lines BIGINT NOT NULL,
            digest BYTEA NOT NULL)"""
_RECEIPTS_OF_OLDER: Final = """INSERT INTO receipts SELECT 1, ''::bytea, 0, ''::bytea WHERE
            EXISTS (SELECT 1 FROM leases) OR EXISTS (SELECT 1 FROM reservations) OR EXISTS (SELECT 1 FROM outcomes)
            OR EXISTS (SELECT 1 FROM windows WHERE state <> 'open')"""

#: Step n makes schema n of schema n - 1. `data` of counters is packed already (see `store_schema.pack`): EXTERNAL keeps
#: PostgreSQL from compressing it again.
MIGRATIONS: Final = (
    (
        """CREATE TABLE populations (
            name TEXT PRIMARY KEY, unit TEXT NOT NULL, relation TEXT NOT NULL,
            epsilon TEXT NOT NULL, delta TEXT NOT NULL)""",
        """CREATE TABLE plans (
            number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id BYTEA NOT NULL UNIQUE,
            name TEXT NOT NULL UNIQUE, bytes BYTEA NOT NULL,
            partitions BIGINT NOT NULL, first_window BIGINT NOT NULL)""",
        """CREATE TABLE windows (
            plan BIGINT NOT NULL, "window" BIGINT NOT NULL, state TEXT NOT NULL,
            PRIMARY KEY (plan, "window"))""",
        """CREATE INDEX unfinished ON windows (plan, "window") WHERE state IN ('open', 'closing', 'sealed')""",
        """CREATE TABLE partitions (
            plan BIGINT NOT NULL, partition BIGINT NOT NULL, position BIGINT NOT NULL,
            closed_through BIGINT NOT NULL, forgotten_through BIGINT NOT NULL,
            fence BIGINT NOT NULL, owner TEXT NOT NULL,
            PRIMARY KEY (plan, partition))""",
        """CREATE TABLE leases (
            plan BIGINT PRIMARY KEY, fence BIGINT NOT NULL, owner TEXT NOT NULL, address TEXT NOT NULL,
            note TEXT NOT NULL, until_ms BIGINT NOT NULL, forget_asked BIGINT)""",
        """CREATE TABLE blocks (
            plan BIGINT NOT NULL, "window" BIGINT NOT NULL, partition BIGINT NOT NULL,
            class BIGINT NOT NULL, block BIGINT NOT NULL, data BYTEA NOT NULL,
            PRIMARY KEY (plan, "window", partition, class, block))""",
        "ALTER TABLE blocks ALTER COLUMN data SET STORAGE EXTERNAL",
        """CREATE TABLE counts (
            plan BIGINT NOT NULL, "window" BIGINT NOT NULL, partition BIGINT NOT NULL, data BYTEA NOT NULL,
            PRIMARY KEY (plan, "window", partition))""",
        # Client ids are compared and never sorted for people: bytes are quickest, and no index depends on a locale.
        """CREATE TABLE streams (
            plan BIGINT NOT NULL, partition BIGINT NOT NULL, client_id TEXT COLLATE "C" NOT NULL, stream BYTEA NOT NULL,
            last_window BIGINT NOT NULL, data BYTEA NOT NULL,
            PRIMARY KEY (plan, partition, client_id, stream))""",
        """CREATE TABLE contributions (
            plan BIGINT NOT NULL, partition BIGINT NOT NULL, "window" BIGINT NOT NULL,
            client_id TEXT COLLATE "C" NOT NULL, records BIGINT NOT NULL,
            PRIMARY KEY (plan, partition, "window", client_id))""",
        """CREATE TABLE verdicts (
            plan BIGINT NOT NULL, partition BIGINT NOT NULL, position BIGINT NOT NULL,
            kind TEXT NOT NULL, reason TEXT, client_id TEXT, stream BYTEA, sequence BIGINT, "window" BIGINT,
            PRIMARY KEY (plan, partition, position))""",
        """CREATE TABLE spends (
            number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, population TEXT NOT NULL, plan_id TEXT NOT NULL,
            kind TEXT NOT NULL, "window" BIGINT, fields BYTEA NOT NULL, UNIQUE (plan_id, kind, "window"))""",
        """CREATE TABLE outcomes (
            plan BIGINT NOT NULL, kind TEXT NOT NULL, "window" BIGINT NOT NULL, published BIGINT NOT NULL,
            sha256 BYTEA NOT NULL, data BYTEA NOT NULL,
            PRIMARY KEY (plan, kind, "window"))""",
        """CREATE TABLE reservations (
            plan BIGINT NOT NULL, kind TEXT NOT NULL, "window" BIGINT NOT NULL,
            key BYTEA NOT NULL, digest BYTEA NOT NULL,
            PRIMARY KEY (plan, kind, "window"))""",
    ),
    (
        """CREATE TABLE plan_signatures (
            plan BIGINT PRIMARY KEY, key_id TEXT NOT NULL, suite BIGINT NOT NULL, signature BYTEA NOT NULL)""",
    ),
    (
        """CREATE TABLE round_claims (
            plan BIGINT NOT NULL, "window" BIGINT NOT NULL, client_id TEXT COLLATE "C" NOT NULL,
            round BYTEA NOT NULL, granted BIGINT NOT NULL, draws BIGINT NOT NULL,
            PRIMARY KEY (plan, "window", client_id))""",
        _RECEIPTS,
        _RECEIPTS_OF_OLDER,
    ),
)
SCHEMA_FORMAT: Final = len(MIGRATIONS)
_LOCK: Final = 0x48755374  # "HuSt"


async def migrate(connection: Any, schema: str) -> None:  # what asyncpg connects; it ships no types
    """Makes the tables what this version expects, where they are not.

    Args:
        connection: Outside a transaction; its search path is the schema.
        schema: Whose name needs no quoting but the usual.

    Raises:
        StoreError: A newer version has been here.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval("SELECT to_regnamespace($1)", quoted(schema)) is None:
            await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
        version = 0
        if await connection.fetchval("SELECT to_regclass($1)", f"{quoted(schema)}.hushsum_schema") is not None:
            version = await connection.fetchval("SELECT max(version) FROM hushsum_schema") or 0
        else:
            await connection.execute("CREATE TABLE hushsum_schema (version BIGINT PRIMARY KEY)")
        if version > SCHEMA_FORMAT:
            raise StoreError(
                f"store: the schema {schema} has format {version}; this version reads up to {SCHEMA_FORMAT}: "
                "update the service"
            )
        for number, step in enumerate(MIGRATIONS[version:], version + 1):
            for statement in step:
                await connection.execute(statement)
            await connection.execute("INSERT INTO hushsum_schema VALUES ($1)", number)


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
