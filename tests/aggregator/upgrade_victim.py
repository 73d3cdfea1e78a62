"""Processes that upgrade a store's file and are killed in the middle, or stop there until they are let go on.

``python -m tests.aggregator.upgrade_victim kill FILE POINTS``: of FILE's upgrade, kills one process after each of so
many shares of its steps, each on a copy, ``FILE.0``, ``FILE.1``, ...; prints how many steps of SQLite's machine it
takes. ``python -m tests.aggregator.upgrade_victim hold FILE``: stops half-way, says so, and goes on with the next line
that it is told. ``python -m tests.aggregator.upgrade_victim postgres DSN SCHEMA``: opens a store in PostgreSQL.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from aggregator.store.schema import STORE_FILE

_connect = sqlite3.connect


def upgraded(path: Path, at: int, then: Callable[[], None]) -> int:
    """Upgrades a file; does something at its n-th step. Returns the number of steps."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        if steps == at:
            then()
        return 0

    def watched(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = _connect(*arguments, **options)  # type: ignore[call-overload]  # as they came
        connection.set_progress_handler(step, 1)
        assert isinstance(connection, sqlite3.Connection)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]  # it takes and gives the same
    STORE_FILE.open_writing(path).close()
    sqlite3.connect = _connect
    return steps


def steps_of(path: Path) -> int:
    copy = Path(shutil.copy2(path, f"{path}.whole"))
    return upgraded(copy, 0, lambda: None)


def kill(path: Path, points: int) -> None:
    steps = steps_of(path)
    for point in range(points):
        copy = Path(shutil.copy2(path, f"{path}.{point}"))
        at = 1 + point * (steps - 1) // (points - 1)
        child = os.fork()
        if not child:
            upgraded(copy, at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"step {at} of {steps} was never taken"
    print(steps, flush=True)  # noqa: T201  the parent reads this


def hold(path: Path) -> None:
    def stop() -> None:
        print("held", flush=True)  # noqa: T201  the parent reads this
        sys.stdin.readline()

    upgraded(path, steps_of(path) // 2, stop)


async def open_postgres(dsn: str, schema: str) -> None:
    from aggregator.runtime import SystemRuntime
    from aggregator.store.postgres import PostgresDatabase, PostgresSettings

    database = await PostgresDatabase.open(PostgresSettings(dsn, schema=schema, pool=3), SystemRuntime())
    await database.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kill", file, points]:
            kill(Path(file), int(points))
        case ["hold", file]:
            hold(Path(file))
        case ["postgres", dsn, schema]:
            asyncio.run(open_postgres(dsn, schema))
