"""Erasing in PostgreSQL: VACUUM takes away what nobody may still read, and nothing else.

A session that reads a moment before the deletion (a dump, a report, a reader on a replica with hot_standby_feedback)
keeps the deleted rows in the tables, and VACUUM says nothing of it. So it is first waited for who could.
"""

from typing import Any, Final

from aggregator.errors import StoreError
from aggregator.store.sql import Transaction

_VACUUM_S: Final = 600.0

# A transaction that still writes, in whatever database, holds back the moment that even later readers read; a moment
# that is read in another database, or by another VACUUM, does not matter. A slot's catalog_xmin keeps no row of ours.
_OLDER: Final = """
WITH deleted AS (SELECT age($1::text::xid8::xid) AS age)
SELECT concat('session ', pid, ' ', application_name) FROM pg_stat_activity, deleted
WHERE pid <> pg_backend_pid() AND (
    age(backend_xid) > deleted.age OR age(backend_xmin) > deleted.age
    AND (datid IS NULL OR datid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
    AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum))
UNION ALL
SELECT concat('prepared transaction ', gid) FROM pg_prepared_xacts, deleted WHERE age(transaction) > deleted.age
UNION ALL
SELECT concat('replication slot ', slot_name) FROM pg_replication_slots, deleted
WHERE age(xmin) > deleted.age AND wal_status IS DISTINCT FROM 'lost'
LIMIT 1
"""


async def moment(tx: Transaction) -> str:
    """A moment after everything that is committed by now."""
    row = await tx.fetch_row("SELECT pg_current_xact_id()::text")
    assert row is not None
    return str(row[0])


async def older_reader(tx: Transaction, since: str) -> str | None:
    """Who may still read what was deleted before a moment, in words; None where nobody may, now or later."""
    row = await tx.fetch_row(_OLDER, since)
    return None if row is None else str(row[0]).strip()


async def vacuum(connection: Any, tables: tuple[str, ...], *, certain: bool) -> None:  # asyncpg ships no types
    """Vacuums tables and their indexes.

    Args:
        connection: With a limit on the time of a statement, which is lifted meanwhile.
        tables: Which.
        certain: Whether also pages that somebody is just reading, which VACUUM passes over unless it has to freeze.

    Raises:
        StoreError: Another role owns a table, of which VACUUM makes a warning alone; with ``certain``.
    """
    warned: list[str] = []

    def note(_: object, message: Any) -> None:  # asyncpg ships no types
        warned.extend([str(message)] if message.severity_en == "WARNING" else [])

    options = "FREEZE, INDEX_CLEANUP ON" if certain else "INDEX_CLEANUP ON"
    await connection.execute(f"SET statement_timeout = {round(_VACUUM_S * 1000)}")
    connection.add_log_listener(note)
    try:
        for table in tables:
            await connection.execute(f"VACUUM ({options}) {table}", timeout=_VACUUM_S)
    finally:
        connection.remove_log_listener(note)
        await connection.execute("RESET statement_timeout")
    if warned and certain:
        raise StoreError(f"store: what was deleted is still there: PostgreSQL: {warned[0]}")
