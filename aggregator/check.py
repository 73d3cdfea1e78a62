"""`serve --check`: what a start needs is tried, by the functions of the start; nothing is started, created or changed.

The data folder and its lock alone are made where they do not exist, and it is locked meanwhile: beside a running
service its folder and its ports are in use, which is an answer too.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

from aggregator.api.server import check_port
from aggregator.auth.tls import server_credentials
from aggregator.auth.tokens import TokenFile, TokenMetrics
from aggregator.backends import Backends
from aggregator.config import Config
from aggregator.data_dir import DataDir
from aggregator.errors import AggregatorError
from aggregator.observability.http import HttpPage, metrics_page
from aggregator.observability.metrics import Metrics
from aggregator.observability.otlp import otlp_exports
from aggregator.plan_loading import check_size, client_directory_of, plan_of, shufflers_of, signature_of
from aggregator.process import check_assertions, check_memory, raise_file_limit
from aggregator.runtime import Runtime
from aggregator.secure.round import RoundSettings
from aggregator.shuffler.app import FILE, credentials_of, key_of, open_folder, read_plan
from aggregator.shuffler.forwarder import Upstream
from aggregator.shuffler.reports_file import KIND, check_plan
from aggregator.sqlite import SqliteFile
from aggregator.store.store import Store, memory_store
from hushsum.errors import HushsumError
from hushsum.plan import Plan

T = TypeVar("T")

#: How long brokers and a database are waited for, where ``start_s`` is longer.
PATIENCE_S: Final = 10.0
_WITHOUT_PLAN: Final = "not tried: requires the plan"

#: Called with the name of what was tried, and why it failed; an empty text if it did not.
Report = Callable[[str, str], None]


async def check(config: Config, runtime: Runtime, report: Report) -> None:
    """Tries everything that a start with these settings needs, and reports each."""
    patient = config.model_copy(update={"start_s": min(config.start_s, PATIENCE_S)})
    async with AsyncExitStack() as stack:
        await _Check(patient, runtime, report, stack).run()


class _Check:
    def __init__(self, config: Config, runtime: Runtime, report: Report, stack: AsyncExitStack) -> None:
        self._config, self._runtime, self._report, self._stack = config, runtime, report, stack
        self._metrics = Metrics()

    async def run(self) -> None:
        config = self._config
        await self._try("process", self._process)
        if config.tls_cert is not None:
            await self._try("tls_cert, tls_key", self._tls)
        if config.tokens is not None:
            path = config.tokens
            await self._try("tokens", lambda: TokenFile.open(path, self._runtime, TokenMetrics(self._metrics.registry)))
        plan = await (self._shuffler() if config.role == "shuffler" else self._service())
        await self._try(f"listen {config.listen}", self._listen)
        if config.health_listen:
            await self._try(f"health_listen {config.health_listen}", self._health_page)
        if config.metrics_listen:
            await self._try(f"metrics_listen {config.metrics_listen}", self._metrics_page)
        if config.page_listen:
            await self._try(f"page_listen {config.page_listen}", self._page)
        if config.otlp:
            await self._try_with("otlp", plan, self._otlp)

    async def _service(self) -> Plan | None:
        """Everything that only a shuffler does not have."""
        config, folder = self._config, None
        if config.data is not None:
            folder = await self._try("data", self._folder)
        # Without a folder its files are not tried; what is in no file is.
        backends = Backends(config, folder, self._runtime, self._metrics, self._stack)
        store = None
        if config.store == "postgresql":
            store = await self._try("database", backends.look_at_store)
        elif folder is not None:
            store = await self._try("store", backends.look_at_store)
        plan = await self._try("plan", lambda: self._plan(store))
        if config.directory is not None:
            await self._try("directory", lambda: self._messages(backends))
        await self._try_with("client_directory", plan, self._clients, is_set=config.client_directory is not None)
        await self._try_with("shufflers", plan, self._shufflers, is_set=config.shufflers is not None)
        if config.log == "kafka":
            await self._try("brokers", backends.look_at_brokers)
        if config.log == "kafka" or folder is not None:
            await self._try_with("log", plan, backends.look_at_log)
        by_a_releaser = config.log == "kafka" and store is not None and config.role in {"all", "releaser"}
        if by_a_releaser or (config.log == "sqlite" and folder is not None):
            await self._try_with("receipts", plan, backends.look_at_receipts)
        return plan

    async def _shuffler(self) -> Plan | None:
        config = self._config
        await self._try("data", self._shuffler_folder)
        entry = await self._try("shuffler_key, shufflers", self._shuffler_key)
        fetched = None
        if entry is not None:
            fetched = await self._try(f"upstream {config.upstream}", lambda: self._upstream(entry))
        if config.plan is not None:
            return await self._try("plan", self._shuffler_plan)
        if fetched is None:
            self._report("plan", "not tried: the plan comes from upstream")
            return None
        bundle = fetched
        return await self._try("plan", lambda: self._checked_plan(bundle))

    async def _try(self, what: str, work: Callable[[], Awaitable[T]], *, is_set: bool = True) -> T | None:
        """The result, or None where it fails; either is reported, but no success of what is not set."""
        try:
            result = await work()
        except (HushsumError, OSError) as error:
            why = " ".join(str(error).split())
            self._report(what, why.removeprefix(f"{what.partition(' ')[0]}: "))
            return None
        if is_set:
            self._report(what, "")
        return result

    async def _try_with(
        self, what: str, plan: Plan | None, work: Callable[[Plan], Awaitable[object]], *, is_set: bool = True
    ) -> None:
        """Tries what needs the plan; without one it is reported as not tried."""
        if plan is not None:
            await self._try(what, lambda: work(plan), is_set=is_set)
        elif is_set:
            self._report(what, _WITHOUT_PLAN)

    async def _process(self) -> None:
        check_assertions()
        raise_file_limit()
        check_memory(self._config)

    async def _tls(self) -> None:
        server_credentials(self._config, self._runtime.monotonic)

    async def _listen(self) -> None:
        try:
            credentials = server_credentials(self._config, self._runtime.monotonic)
        except AggregatorError:
            credentials = None  # reported above; the port is tried without
        await check_port(self._config.listen, credentials)

    async def _health_page(self) -> None:
        page = HttpPage("health_listen", self._config.health_listen, lambda *_: None, self._runtime.monotonic)
        await self._runtime.blocking(page.close)

    async def _metrics_page(self) -> None:
        page = metrics_page(self._metrics, self._config, self._runtime.monotonic)
        await self._runtime.blocking(page.close)

    async def _page(self) -> None:
        from aggregator.page import page_listener, proxy_of, tls_of  # they need the extra page

        tls_of(self._config, self._runtime.monotonic)
        proxy_of(self._config)
        page_listener(self._config, self._runtime.monotonic).close()

    async def _otlp(self, plan: Plan) -> None:
        registry, clock = self._metrics.registry, self._runtime.now_ms
        for export in otlp_exports(plan, self._config.role, registry, clock, os.environ):
            await self._runtime.blocking(export.close, 0.0)

    async def _folder(self) -> DataDir:
        folder = DataDir.open(self._config.folder, changes=False)
        self._stack.callback(folder.close)
        return folder

    async def _plan(self, store: Store | None) -> Plan:
        config = self._config
        assert config.plan is not None, "required in every role but the shuffler's"
        plan = await plan_of(config.plan, store or self._empty_store())
        check_size(plan, config.counters_max)
        signature_of(config.plan, plan)
        if store is not None:
            await store.is_known(plan, config.partitions)
        if plan.privacy.cohort is not None:
            RoundSettings(config.secure_step_s, config.secure_upload_s, config.manual).check(plan)
        return plan

    def _empty_store(self) -> Store:
        """One in which no plan was made yet."""
        store = memory_store(self._runtime)
        self._stack.push_async_callback(store.close)
        return store

    async def _messages(self, backends: Backends) -> None:
        backends.messages(b"")

    async def _clients(self, plan: Plan) -> None:
        client_directory_of(self._config.client_directory, plan)

    async def _shufflers(self, plan: Plan) -> None:
        shufflers_of(self._config.shufflers, plan)

    async def _shuffler_folder(self) -> None:
        path = open_folder(self._config, self._stack, changes=False).path / FILE
        if path.exists():
            file = SqliteFile(KIND, await self._runtime.blocking(KIND.open_alone, path), self._runtime)
            self._stack.push_async_callback(file.close)
            await file.check_pages()

    async def _shuffler_key(self) -> str:
        return key_of(self._config)[1].id

    async def _upstream(self, key_id: str) -> bytes:
        assert self._config.upstream is not None, "required in this role"
        upstream = Upstream(self._config.upstream, key_id, credentials_of(self._config))
        self._stack.push_async_callback(upstream.close)
        return (await upstream.fetch_plan()).bundle

    async def _shuffler_plan(self) -> Plan:
        assert self._config.plan is not None, "asked before"
        return await self._checked_plan(read_plan(self._config.plan).bundle)

    async def _checked_plan(self, bundle: bytes) -> Plan:
        plan = Plan.from_bytes(bundle)
        check_plan(plan)
        return plan
