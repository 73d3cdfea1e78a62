"""Back-ups of a service whose log is Kafka: a dump of the database, the receipts, and where the topics must begin.

Entries of the plans' topics are not copied: with replication they survive, and after an outcome they are deleted. The
manifest has the offset of each partition from which the folds of the dump read on; a topic that no longer holds it
cannot be folded with this dump. Receipts are written down for comparison; a topic of receipts survives in its copy
(``receipts_copy``), or as its cluster keeps it.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from aggregator.backends import KAFKA_STEP, Backends
from aggregator.backup import (
    OLDER,
    BackedUp,
    BackupError,
    Restored,
    check_digests,
    check_newer,
    check_nothing_lost,
    copied_store,
    made_folder,
    write_back_up,
)
from aggregator.config import Config
from aggregator.data_dir import FILE_MODE
from aggregator.errors import LogGapError
from aggregator.observability.metrics import Metrics
from aggregator.release.lost import find_lost, mark_every_lost
from aggregator.release.receipts import ReceiptLines, read_line
from aggregator.runtime import Runtime
from aggregator.store.store import Store, memory_store
from hushsum_proto.batches import topic_of

DUMP: Final = "store.dump"
STORE: Final = "store.db"
RECEIPTS: Final = "receipts-topic.jsonl"
_SCHEMA: Final = "hushsum"
_LINES: Final = 2  # of what a program says: the error and its detail


async def back_up_cluster(config: Config, target: Path, runtime: Runtime) -> BackedUp:
    """Dumps the store and writes down receipts and positions, while the service runs; reads the dump whole.

    Raises:
        BackupError: The target exists, or pg_dump is not installed or fails.
        AggregatorError: Database or brokers do not answer, or the receipts are damaged.
    """
    await runtime.blocking(made_folder, target)
    try:
        return await _taken(config, target, runtime)
    except BaseException:
        await runtime.blocking(shutil.rmtree, target)
        raise


async def _taken(config: Config, target: Path, runtime: Runtime) -> BackedUp:
    async with AsyncExitStack() as stack:
        backends = Backends(config, None, runtime, Metrics(), stack)  # without its folder's lock: the service may run
        if config.store == "sqlite":
            store = await copied_store(config.folder / STORE, target / STORE, runtime)
            stack.push_async_callback(store.close)
            backends.use_store(store)
        else:
            store = await backends.look_at_store()
            if not backends.is_current:
                raise BackupError(OLDER)
        # Before the dump: its own positions are these, or later ones.
        topics = await _positions(config, store)
        plans = [
            (plan.name, sum(each.published for each in await store.outcomes(plan.plan_id)))
            for plan in await store.plans()
        ]
        if config.store == "postgresql":
            await runtime.blocking(_dump, config.dsn, target / DUMP)
        lines = await (await backends.sinks(repairs=False)).first.catch_up()
        await runtime.blocking(_write, target / RECEIPTS, b"".join(kept.line + b"\n" for kept in lines.kept))
        names = [DUMP if config.store == "postgresql" else STORE, RECEIPTS]
        return await write_back_up(target, names, plans, lines, runtime, topics=topics)


async def restore_cluster(source: Path, config: Config, runtime: Runtime, *, marks_lost: bool = False) -> Restored:
    """Restores a dump into a database without the service's tables, and compares it with the topics.

    Returns:
        What was proved, what is lost (nothing but with ``marks_lost``), and the plans whose topics no longer hold what
        the folds need next: those cannot go on, although their outcomes and charges are restored.

    Raises:
        BackupError: The source is no such back-up or was changed, the database has tables, pg_restore fails, or the
            receipts prove outcomes that the dump does not have; then the tables are there, for ``mark-lost``. Nothing
            is loaded if the topic lacks a receipt that the back-up has.
        ReceiptsError: The receipts are not those of the dump or of the back-up, or contradict each other.
        LogError: A topic is missing.
    """
    await runtime.blocking(check_digests, source, {DUMP, RECEIPTS})
    async with AsyncExitStack() as stack:
        backends = Backends(config, None, runtime, Metrics(), stack)
        if await backends.has_tables():
            raise BackupError(f"the database has tables of the schema {_SCHEMA}: a restore needs one without them")
        await _compare(source / RECEIPTS, config, runtime, stack)
        await runtime.blocking(_load, config.dsn, source / DUMP)
        store = await backends.store()
        # What is lost can be marked without a copy that is lost, too; the store goes on knowing of it.
        sinks = await backends.sinks(repairs=False, needs_copy=not marks_lost)
        receipts, gaps = sinks.receipts, {}
        for registered in await store.plans():
            plan = await store.load_plan(registered.plan_id)
            assert plan is not None, "it is registered"
            try:
                await backends.look_at_log(plan, registered.partitions)
            except LogGapError as error:
                gaps[plan.name] = str(error)
        if marks_lost:
            lost = replace(await mark_every_lost(store, receipts, runtime, owner=backends.command_owner), gaps=gaps)
        else:
            lost = replace(await find_lost(store, receipts), gaps=gaps)
            check_nothing_lost(lost, "`hushsum admin mark-lost`")
        places = [(await sink.catch_up()).where for sink in (sinks.first, sinks.copy) if sink is not None]
        bound = await store.receipts_mark()
        other_copy = "" if bound is None or sinks.copy is not None else bound.copy
        return Restored(lost, len(await receipts.read()), " and ".join(places), other_copy)


async def _compare(path: Path, config: Config, runtime: Runtime, stack: AsyncExitStack) -> None:
    """Checks that the topic has every receipt of the back-up: those from after its dump, too."""
    lines = ReceiptLines(f"receipts {path}")
    for line in (await runtime.blocking(path.read_bytes)).splitlines():
        lines.add(line, read_line(line)[0])
    backends = Backends(config, None, runtime, Metrics(), stack)
    backends.use_store(memory_store(runtime))  # the topics alone are read
    # Where the first topic is lost, its copy tells as much: it is made from the copy once there is a store again.
    sinks = await backends.sinks(repairs=False, rebuilds=True)
    found = [await sink.catch_up() for sink in (sinks.first, sinks.copy) if sink is not None]
    check_newer(max(found, key=lambda each: len(each.kept)), lines)


async def _positions(config: Config, store: Store) -> dict[str, Any]:
    """The offset from which each partition's fold reads on, by topic."""
    return {
        topic_of(config.kafka_prefix, plan.plan_id): {
            str(partition): mark.position // KAFKA_STEP
            for partition, mark in sorted((await store.fold_marks(plan.plan_id)).items())
        }
        for plan in await store.plans()
    }


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _dump(dsn: str, path: Path) -> None:
    """The service's schema in pg_dump's own format, of one moment; then reads it whole."""
    _write(path, b"")
    _run("pg_dump", dsn, "--format=custom", f"--schema={_SCHEMA}", "--no-owner", f"--file={path}")
    _run("pg_restore", None, "--file=/dev/null", str(path))


def _load(dsn: str, path: Path) -> None:
    _run("pg_restore", dsn, "--no-owner", "--single-transaction", "--exit-on-error", str(path))


def _run(program: str, dsn: str | None, *arguments: str) -> None:
    """Runs a program of PostgreSQL; a password goes through the environment, which other users cannot read."""
    environment, address = {**os.environ}, []
    if dsn is not None:
        uri, secrets = without_password(dsn)
        environment |= secrets
        address = [f"--dbname={uri}"]
    try:
        subprocess.run(  # noqa: S603  the program's name is fixed
            [program, *address, *arguments], env=environment, check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise BackupError(f"{program}: not installed: it comes with PostgreSQL's client programs") from error
    except subprocess.CalledProcessError as error:
        lines = [line.removeprefix(f"{program}: ") for line in (error.stderr or "").strip().splitlines()]
        raise BackupError(f"{program}: {'; '.join(lines[:_LINES]) or f'status {error.returncode}'}") from error


def without_password(dsn: str) -> tuple[str, Mapping[str, str]]:
    """The address without its password, and the password as libpq finds it in the environment."""
    parts = urlsplit(dsn)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, password = user.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    given = [unquote(password)] if colon else [value for key, value in options if key == "password"]
    query = urlencode([(key, value) for key, value in options if key != "password"])
    uri = f"{parts.scheme}://{name}{at}{host}{parts.path}" + (f"?{query}" if query else "")
    return uri, {"PGPASSWORD": given[-1]} if given else {}
