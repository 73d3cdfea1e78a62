"""Writes frozen stores, once each: ``python -m tests.vectors.generate_store sqlite | postgres DSN``.

What this version leaves behind, as ``store/format-N.zip`` or ``store/postgres-N.sql``: one window is released, one is
charged with key 1111..., one is open and holds a delta; the plan is signed. A format has its sample before it is
released: the next one is then tested on what was really written.
"""

import asyncio
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from aggregator.model import RoundMembers
from aggregator.store.schema import POSTGRES_MIGRATIONS, STORE_FORMAT
from aggregator.store.store import Store, open_sqlite_store
from aggregator.store.transaction import Transaction
from aggregator.store.windows import plan_number
from hushsum.privacy.events import TUMBLING
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from tests.aggregator.stores import (
    FENCE,
    MARK,
    PLAN,
    Folding,
    W,
    committed,
    postgres_store,
    prepared,
    reserved,
    sealed,
)
from tests.doubles import ManualRuntime

FOLDER: Final = Path(__file__).parent / "store"
SIGNED: Final = SignedPlan.sign(PLAN.bundle, SigningKey(bytes(32)), "planner")
#: Of PostgreSQL: tables by the schema that first had them.
TABLES: Final = (
    (
        *("populations", "plans", "windows", "partitions", "leases", "blocks", "counts", "streams"),
        *("contributions", "verdicts", "spends", "outcomes", "reservations"),
    ),
    ("plan_signatures",),
    ("round_claims", "receipts"),
    ("sequences", "client_windows"),
    ("receipts_copy", "sequence_parts"),
)


async def fill(store: Store, *, signed: bool = True) -> None:
    """Brings an empty store to where the samples stand."""
    await prepared(store)
    if signed:
        await store.keep_plan_signature(SIGNED)
    await sealed(store, (W, W + 1))
    await store.open_windows(PLAN.id, W + 2, W + 2)
    folding = await Folding.of(store, 1, retain_verdicts=True)
    await folding.apply(folding.delta(5, W + 2, sequence=1), folding.delta(5, W + 2, sequence=1))
    await store.claim_clients(PLAN.id, W + 2, RoundMembers(b"r" * 32, ("client-1", "client-2")))
    await committed(store, W, b"the draw")
    await store.publish(PLAN.id, TUMBLING, W, receipts=replace(MARK, copy="receipts copy.jsonl"), fence=FENCE)
    await reserved(store, W + 1, b"1" * 32)
    await store.database.write(_cumulative)


async def _cumulative(tx: Transaction) -> None:
    """Rows of the tables that cumulative plans alone write."""
    number = await plan_number(tx, PLAN.id)
    await tx.execute(
        'INSERT INTO sequences (plan, step, "window", digest, state) VALUES ($1, 1, $2, $3, $4)',
        *(number, W, b"d" * 32, b"state"),
    )
    await tx.execute("INSERT INTO sequence_parts (plan, part, data) VALUES ($1, 1, $2)", number, b" in two rows")
    await tx.execute(
        "INSERT INTO client_windows (plan, partition, client_id, windows) VALUES ($1, 1, 'client-5', 2)", number
    )


async def write_sqlite(format_: int = STORE_FORMAT) -> None:
    """Writes this version's file."""
    with TemporaryDirectory() as name, zipfile.ZipFile(FOLDER / f"format-{format_}.zip", "x", 8) as archive:
        path = Path(name) / "store.db"
        store = await open_sqlite_store(path, ManualRuntime())
        await fill(store)
        await store.close()
        archive.write(path, "store.db")
        archive.writestr("plan", PLAN.to_bytes())


async def write_postgres(dsn: str, schema: int = len(POSTGRES_MIGRATIONS)) -> None:
    """Writes this version's tables as SQL, or those of an older schema."""
    store = await postgres_store(dsn, schema="sample")
    await fill(store, signed=schema > 1)
    await store.close()
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "sample"})
    lines = [f"{' '.join(statement.split())};" for step in POSTGRES_MIGRATIONS[:schema] for statement in step]
    lines.append("CREATE TABLE hushsum_schema (version BIGINT PRIMARY KEY);")
    lines += [f"INSERT INTO hushsum_schema VALUES ({number});" for number in range(1, schema + 1)]
    for table in [table for step in TABLES[:schema] for table in step]:
        lines += await _rows_of(connection, table)
    await connection.close()
    with (FOLDER / f"postgres-{schema}.sql").open("x", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


async def _rows_of(connection: Any, table: str) -> list[str]:  # asyncpg ships no types
    """Statements that insert what a table holds, as it is: numbers that the database gave out, too."""
    names = await connection.fetch(
        "SELECT quote_ident(column_name) AS name FROM information_schema.columns "
        "WHERE table_schema = 'sample' AND table_name = $1 ORDER BY ordinal_position",
        table,
    )
    columns = [row["name"] for row in names]
    values = " || ', ' || ".join(f"quote_nullable({column}::text)" for column in columns)
    rows = await connection.fetch(f"SELECT {values} AS row FROM {table} ORDER BY {columns[0]}")
    into = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES"
    lines = [f"{into} ({row['row']});" for row in rows]
    if table in {"plans", "spends"} and rows:  # the next number is not given out again
        lines.append(f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), (SELECT max(number) FROM {table}));")
    return lines


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sqlite"]:
            asyncio.run(write_sqlite())
        case ["postgres", dsn]:
            asyncio.run(write_postgres(dsn))
