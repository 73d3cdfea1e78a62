"""Opens log, store, receipts and membership by the settings; only this module loads optional packages."""

import importlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from aggregator.config import Config, ReceiptsTopicAddress
from aggregator.data_dir import DataDir, held
from aggregator.errors import ConfigError, ForeignReceiptsError, LogError, LogGapError, ReceiptsError
from aggregator.interfaces import Log, Membership, Observer, Receipts
from aggregator.log.entries import LogMessages, PlainMessages, SignedMessages
from aggregator.log.sqlite import SqliteLog
from aggregator.logs import journal
from aggregator.observability.metrics import Metrics
from aggregator.plan_loading import directory_of, signing_key_of
from aggregator.release.copies import Destination, destination_of
from aggregator.release.receipts import NoReceipts, ReceiptsFile, reconcile
from aggregator.release.receipts_copy import CopiedReceipts, ReceiptsSink, TopicPlace, place_of
from aggregator.runtime import Runtime, retry, within
from aggregator.store.store import Store, memory_store, open_sqlite_store, read_sqlite_store
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan

T = TypeVar("T")

#: By how much a position grows from one message of Kafka to the next.
KAFKA_STEP: Final = 1 << 16
_MOMENT_S: Final = 1.0
_CLOSE_S: Final = 3.0

_journal = journal("service")


class Sinks(NamedTuple):
    """Where the receipts are; ``copy`` is None where the settings name no second place."""

    first: ReceiptsSink
    copy: ReceiptsSink | None

    @property
    def receipts(self) -> Receipts:
        """Both as one."""
        return self.first if self.copy is None else CopiedReceipts(self.first, self.copy)


class Backends:
    """Opens what a service stores its data in; ``stack`` closes it. ``folder`` is None if nothing is a file."""

    def __init__(
        self, config: Config, folder: DataDir | None, runtime: Runtime, metrics: Metrics, stack: AsyncExitStack
    ) -> None:
        self._config, self._folder = config, folder
        self._runtime, self._metrics, self._stack = runtime, metrics, stack
        self._store: Store | None = None
        self.is_current = True  # whether the store that is read has the tables of this version
        # Each start gets another name: a write of the process before may still be under way.
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{runtime.now_ms():x}"
        self.command_owner = f"hushsum admin {self.owner}"  # the same of an operator's command

    async def store(self) -> Store:
        """Opens the store.

        Raises:
            ConfigError: It does not answer in time, or its packages are not installed.
            StoreError: It is not ours, or of a newer version.
        """
        if self._config.store == "sqlite":
            self._store = await open_sqlite_store(self._files.store, self._runtime)
        else:
            database = await self._patiently("the database", lambda _: self._open_postgres(migrates=True))
            self._store = Store(database)
        self._close_at_the_end("the database", self._store.close)
        return self._store

    async def look_at_store(self) -> Store:
        """Opens the store to be read alone: nothing is created or upgraded. An empty one in memory if there is none.

        Raises:
            ConfigError, StoreError: As :meth:`store`, or the file is damaged.
        """
        if self._config.store == "sqlite":
            if self._files.store.exists():
                self._store, self.is_current = await read_sqlite_store(self._files.store, self._runtime)
            else:
                self._store = memory_store(self._runtime)
        else:
            database = await self._patiently("the database", lambda _: self._open_postgres(migrates=False))
            if database.has_tables:
                self._store, self.is_current = Store(database), database.is_current
            else:
                await database.close()
                self._store = memory_store(self._runtime)
        self._close_at_the_end("the database", self._store.close)
        return self._store

    @property
    def store_file(self) -> Path | None:
        """Where the store is, if it is a file; it may be missing."""
        return self._files.store if self._config.store == "sqlite" else None

    def use_store(self, store: Store) -> None:
        """Reads the store from this copy, which the caller closes."""
        self._store = store

    async def has_tables(self) -> bool:
        """Whether the database has the service's tables."""
        database = await self._patiently("the database", lambda _: self._open_postgres(migrates=False))
        await database.close()
        return bool(database.has_tables)

    async def _open_postgres(self, *, migrates: bool) -> Any:  # a PostgresDatabase, whose module needs asyncpg
        postgres = _cluster("aggregator.store.postgres")
        # Retries are up to _patiently, which counts them and has the text for the end.
        settings = postgres.PostgresSettings(
            self._config.dsn, pool=self._config.postgres_pool, patience_s=0.0, migrates=migrates
        )
        database = await postgres.PostgresDatabase.open(settings, self._runtime)
        _warn(database.warnings)
        return database

    async def log(self, plan: Plan) -> Log:
        """Opens the plan's log.

        Raises:
            ConfigError: The topic has wrong settings, brokers do not answer in time, or a key does not fit.
            LogError: It is not ours, of a newer version, ends before what is folded, or Kafka refuses us.
        """
        if self._config.log == "sqlite":
            log: Log = await SqliteLog.open(self._files.log, plan.id, self._config.partitions, self._runtime)
        else:
            log = await self._kafka_log(plan)
        self._close_at_the_end("the log", log.close)
        return log

    async def look_at_log(self, plan: Plan, partitions: int | None = None) -> None:
        """Opens an existing log to be read alone, and compares it with what is folded: nothing is created.

        ``partitions`` is the plan's number of them, if it is not that of the settings.

        Raises:
            ConfigError, LogError: As :meth:`log`, or the file is damaged.
        """
        if self._config.log == "sqlite":
            passed = None if self._store is None else await self._passed(plan)
            count = partitions or self._config.partitions
            await SqliteLog.look(self._files.log, plan.id, count, passed, self._runtime)
            return
        absent = LogError("the topic does not exist; the first start creates it")
        try:
            try:
                log = await self._kafka_log(plan, absent, partitions)
            except LogGapError:  # a service that runs may have folded and erased since its positions were read
                log = await self._kafka_log(plan, absent, partitions)
        except LogError as error:
            if error is not absent:
                raise
        else:
            self._close_at_the_end("the log", log.close)

    async def _kafka_log(self, plan: Plan, absent: LogError | None = None, partitions: int | None = None) -> Log:
        partitions = partitions or self._config.partitions
        kafka, messages = _cluster("aggregator.log.kafka.log"), self.messages(plan.id)

        async def open_log(waiting: "_Waiting") -> Log:
            passed = await self._passed(plan)
            opened = await kafka.KafkaLog.open(
                self._kafka, plan, partitions, messages, self._runtime, waiting, passed, absent=absent
            )
            log: Log = opened
            _warn(opened.warnings)
            return log

        return await self._patiently("kafka", open_log)

    async def _passed(self, plan: Plan) -> dict[int, int]:
        """The stored position of each partition's fold."""
        marks = {} if self._store is None else await self._store.fold_marks(plan.id)
        return {partition: mark.position for partition, mark in marks.items()}

    async def receipts(self) -> Receipts:
        """Opens the receipts, apart from the store, and their copy where there is to be one.

        Raises:
            ConfigError: Another process uses the file, brokers do not answer in time, or the topic has wrong settings.
            LogError: Kafka refuses us.
        """
        try:
            sinks = await self.sinks()
        except ReceiptsError as error:
            return NoReceipts(str(error))  # this stops only releasing
        return sinks.receipts

    async def sinks(self, *, repairs: bool = True, rebuilds: bool = False, needs_copy: bool = True) -> "Sinks":
        """The same, each by itself. Without ``repairs`` they are read alone: nothing is created.

        ``rebuilds``: where a copy is named, a missing topic of receipts is created empty, to be made from it.
        Without ``needs_copy`` the settings may leave out a copy that the store knows of.

        Raises:
            ConfigError, LogError: As :meth:`receipts`.
            ReceiptsError: One is damaged, of a newer format, missing although it was made, or cannot be read; or the
                store knows of a copy that the settings do not name.
        """
        copy: ReceiptsSink | None = None
        if self._config.receipts_copy is None and needs_copy:
            await self._check_no_copy()
        if self._config.log == "sqlite":
            path = self._config.receipts or self._files.receipts
            first: ReceiptsSink = await self._receipts_file(path, repairs=repairs)
            if self._config.receipts_copy is not None:
                place = _whole(self._config.receipts_copy)
                copy = await self._receipts_file(place, repairs=repairs, original=path)
            return Sinks(first, copy)
        first = await self._receipts_topic(
            self._kafka, None, creates=repairs, again=rebuilds and self._config.receipts_copy is not None
        )
        if self._config.receipts_copy is not None:
            address = ReceiptsTopicAddress(self._config.receipts_copy)
            elsewhere = replace(self._kafka, bootstrap=address.bootstrap or self._kafka.bootstrap)
            copy = await self._receipts_topic(elsewhere, address.topic, creates=repairs)
        return Sinks(first, copy)

    async def recorded_copy(self, place: str) -> ReceiptsSink | str:
        """The copy that the store knows at a place, to be read alone; or why that cannot be done: it may be lost.

        Raises:
            ReceiptsError: It is damaged, of a newer format, or cannot be read.
        """
        where = place_of(place)
        if isinstance(where, TopicPlace) and self._config.log == "kafka":
            try:
                there = replace(self._kafka, bootstrap=where.bootstrap)
                return await self._receipts_topic(there, where.name, creates=False)
            except ForeignReceiptsError:
                return "missing"
            except (ConfigError, LogError) as error:
                return str(error)
        if isinstance(where, Path) and self._config.log == "sqlite":
            return await ReceiptsFile.open(where, self._runtime, OsEntropy(), repairs=False)
        return "of a service with another log"

    async def _check_no_copy(self) -> None:
        """Without its copy a store that was set back together with its first receipts would not be found out."""
        if known := await self._known_copy():
            raise ReceiptsError(
                f"receipts_copy is not set, but this store's receipts have a copy, last at: {known}. Nothing is "
                "released until the setting names the copy and the service is started again. If the copy is lost, set "
                "another place and use `hushsum admin begin-receipts-copy`; to go on with the receipts alone, use "
                "`hushsum admin end-receipts-copy`"
            )

    async def _known_copy(self) -> str:
        """Where the store knows the copy of its receipts; empty: it knows of none."""
        known = None if self._store is None or not self.is_current else await self._store.receipts_mark()
        return "" if known is None else known.copy

    async def _receipts_topic(
        self, settings: Any, name: str | None, *, creates: bool, again: bool = False
    ) -> ReceiptsSink:
        kafka = _cluster("aggregator.release.kafka_receipts")
        assert self._store is not None, "the store says whether there were receipts"
        store = self._store

        async def open_topic(waiting: "_Waiting") -> ReceiptsSink:
            # An operator may begin a copy later: a topic that is made empty here is refused as missing.
            made = not (creates or again) or (name is None and not again and await store.receipts_mark() is not None)
            opened = await kafka.ReceiptsTopic.open(settings, self._runtime, OsEntropy(), waiting, made=made, name=name)
            self._close_at_the_end("the receipts", opened.close)
            _warn(opened.warnings)
            receipts: ReceiptsSink = opened
            return receipts

        return await self._patiently("kafka", open_topic)

    async def copies(self, plan: Plan) -> list[Destination]:
        """Where copies of published releases go.

        Raises:
            ConfigError: A folder cannot be made, a package is not installed, or a topic has wrong settings.
            LogError: Kafka refuses us.
        """
        found: list[Destination] = []
        if self._config.publish is not None:
            found.append(destination_of(self._config.publish, plan, self._runtime))
        if self._config.kafka_publish:
            kafka = _cluster("aggregator.release.kafka_copies")
            topic = await self._patiently(
                "kafka", lambda waiting: kafka.ReleasesTopic.open(self._kafka, plan, self._runtime, waiting)
            )
            self._close_at_the_end("the releases' topic", topic.close)
            _warn(topic.warnings)
            found.append(topic)
        return found

    async def look_at_receipts(self, plan: Plan) -> None:
        """Compares the receipts with the store, as a releaser does: nothing is created or repaired.

        Raises:
            ConfigError: Another process uses the file, or brokers do not answer in time.
            LogError: Kafka refuses us.
            ReceiptsError: Nothing would be released.
        """
        try:
            receipts = (await self.sinks(repairs=False)).receipts
        except ForeignReceiptsError:
            if await self._has_receipts():
                raise
            return  # the first start makes the topics
        if self._store is None:
            await receipts.read()
        elif self.is_current:
            problem, _ = await reconcile(plan.id, self._store, receipts, fence=None)
            if problem and self._config.log == "kafka":  # a service that runs may have released meanwhile
                problem, _ = await reconcile(plan.id, self._store, receipts, fence=None)
            if problem:
                raise ReceiptsError(problem)
        else:
            await receipts.read()
            _journal.warning("receipts not compared with the store: it is upgraded at the start")

    async def _has_receipts(self) -> bool:
        """Whether receipts must be there: the store knows some, or is of an older version."""
        return self._store is None or not self.is_current or await self._store.receipts_mark() is not None

    async def _receipts_file(self, path: Path, *, repairs: bool, original: Path | None = None) -> ReceiptsSink:
        """Receipts in a file that only this process uses; ``original`` is the file that it is to be a copy of."""
        lock = path.with_name(f"{path.name}.lock")
        try:
            if path != self._files.receipts and (repairs or lock.exists()):
                self._stack.callback(held(lock, f"receipts: {path}").close)
            self._warn_of_volume(path, original)
            return await ReceiptsFile.open(path, self._runtime, OsEntropy(), repairs=repairs)
        except FileNotFoundError as error:
            known = "" if original is None else await self._known_copy()
            elsewhere = known and f" This store knows the copy of its receipts at {known}."
            raise ReceiptsError(
                f"receipts {path}: its directory does not exist: is the disk mounted, and the path right?{elsewhere} "
                "Nothing is released until the file is there and the service is started again"
            ) from error
        except OSError as error:
            raise ReceiptsError(f"receipts {path}: {error}; releasing is stopped until they can be read") from error

    def _warn_of_volume(self, path: Path, original: Path | None) -> None:
        """Where all receipts are on the volume of the store: of two places one is enough elsewhere."""
        if self._config.receipts_copy is not None and original is None:
            return
        key = "receipts" if original is None else "receipts_copy"
        for what, other in (("store", self._files.path), ("receipts", None if original is None else original.parent)):
            if other is not None and _volume(path.parent) == _volume(other):
                text = f"{path} is on the same volume as the {what} and would be lost with the {what}"
                _warn([f"{text}: set {key} to a file on another volume"])
                return

    def membership(self, plan: Plan, observer: Observer) -> Membership | None:
        """Assigns partitions to this process; None: all partitions are its own."""
        if self._config.store == "sqlite":
            return None
        kafka = _cluster("aggregator.log.kafka.membership")
        joined: Membership = kafka.KafkaMembership(self._kafka, plan, self._config.partitions, self._runtime, observer)
        return joined

    async def look_at_brokers(self) -> None:
        """Reaches the brokers, and checks the topic of receipts where there is one: nothing is created.

        Raises:
            ConfigError, LogError: As :meth:`receipts`.
        """
        topics, absent = (
            _cluster("aggregator.log.kafka.topic"),
            ReceiptsError("the topic does not exist; the first start creates it"),
        )
        needs = topics.receipts_topic(self._kafka)

        async def look(waiting: "_Waiting") -> None:
            try:
                await topics.prepare_topic(self._kafka, needs, self._runtime, waiting, gone=absent)
            except ReceiptsError as error:
                if error is not absent:
                    raise

        await self._patiently("kafka", look)

    @property
    def _files(self) -> DataDir:
        assert self._folder is not None, "the settings demand a folder wherever something is a file"
        return self._folder

    @property
    def _kafka(self) -> Any:  # a KafkaSettings, whose module needs aiokafka
        config = self._config
        return _cluster("aggregator.log.kafka.client").KafkaSettings(
            bootstrap=config.kafka_bootstrap or "",
            prefix=config.kafka_prefix,
            replication=config.kafka_replication,
            retention_s=config.kafka_retention_s,
            recovery_s=config.kafka_recovery_s,
            security=config.kafka_security,
            sasl_mechanism=config.kafka_sasl_mechanism or "PLAIN",
            user=config.kafka_user,
            password_file=config.kafka_password_file,
            ca_file=config.kafka_ca_file,
            cert_file=config.kafka_cert_file,
            key_file=config.kafka_key_file,
            session_s=config.kafka_session_s,
        )

    def messages(self, plan_id: bytes) -> LogMessages:
        """Signs and reads the messages of the log on Kafka.

        Raises:
            ConfigError: A file of keys cannot be used, or a key is not the one of the directory.
        """
        config = self._config
        if config.directory is None:
            return PlainMessages()
        directory = directory_of("directory", config.directory)
        gateway = releaser = None
        if config.role in {"all", "gateway"} and config.gateway_key is not None:
            gateway = signing_key_of("gateway_key", config.gateway_key)
        if config.role in {"all", "releaser"} and config.releaser_key is not None:
            releaser = signing_key_of("releaser_key", config.releaser_key)
        return SignedMessages(plan_id, directory, gateway, releaser, producers=config.direct_producers)

    async def _patiently(self, what: str, work: Callable[["_Waiting"], Awaitable[T]]) -> T:
        """The result of ``work``, repeated for as long as a start may wait for brokers and a database (start_s)."""
        start_s, waiting = self._config.start_s, _Waiting(what, self._metrics, self._runtime)

        async def again() -> T:
            return await retry(what, lambda: work(waiting), runtime=self._runtime, on_retry=waiting.retried)

        try:
            return await within(start_s, again(), runtime=self._runtime)
        except TimeoutError:
            why = waiting.why or "no answer"
            raise ConfigError(f"{what} unavailable for {start_s:g} s (start_s): {why}") from None
        finally:
            waiting.over = True

    def _close_at_the_end(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        """Closes files; gives a connection some seconds to close."""

        async def end() -> None:
            if not self._config.needs_network:
                await close()
                return
            try:
                await within(_CLOSE_S, close(), runtime=self._runtime)
            except TimeoutError:
                _journal.warning("connection not closed in time: abandoned", what=what)

        self._stack.push_async_callback(end)


class _Waiting:
    """Observes retries while a start waits: logs one line, and has the reason for the error of a start that gives up.

    What is opened meanwhile keeps this as its Observer: log and receipts report retries alone.
    """

    def __init__(self, what: str, metrics: Metrics, runtime: Runtime) -> None:
        self._metrics, self._what, self._runtime, self._began_s = metrics, what, runtime, runtime.monotonic()
        self._told = False
        self.why, self.over = "", False

    def retried(self, what: str, why: str) -> None:
        """Logs a line, unless it is only for a moment."""
        self._metrics.retried(what, why)
        self.why = why
        if not (self._told or self.over) and self._runtime.monotonic() - self._began_s > _MOMENT_S:
            self._told = True
            _journal.info(f"waiting for {self._what}", why=why)


def _warn(promises_lost: Sequence[str]) -> None:
    for promise in promises_lost:
        _journal.warning("durability is reduced", why=promise)


def _whole(path: str) -> Path:
    """The path from the root on: the store records it for an operator who may be in another directory."""
    return Path(path).absolute()


def _volume(folder: Path) -> object:
    """The file system that a folder is on."""
    return folder.stat().st_dev


def _cluster(module: str) -> ModuleType | Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"aiokafka", "asyncpg"}:
            raise ConfigError(
                f"log = kafka and store = postgresql need the package {error.name}: pip install 'hushsum[server]'"
            ) from error
        raise
