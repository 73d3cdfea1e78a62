"""The web page of a running service: its published releases, its tokens and its TLS, for :mod:`hushsum_page`.

The page has a thread and an event loop of its own, so that drawing never holds up the service's. It asks the release
catalog of the gRPC service, on the service's event loop: there is no second path to the data.
"""

import asyncio
import math
import ssl
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from aggregator.auth.tokens import TokenFile
from aggregator.config import Config, host_and_port, is_loopback
from aggregator.data_dir import ReloadedFiles, bytes_and_stat
from aggregator.errors import ConfigError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics
from aggregator.release.catalog import NotFoundError, ReleaseCatalog
from aggregator.runtime import Runtime
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.signing import accessible_to_others
from hushsum_page.app import page_app
from hushsum_page.library import Library, warm_up
from hushsum_page.operations import Operations
from hushsum_page.server import BoundedListener, PageServer
from hushsum_page.sessions import Holder, Sessions
from hushsum_page.settings import PageSettings, ProxySignOn
from hushsum_page.source import ID_DIGITS, RELEASED, REMOVED, WITHHELD, MissingReleaseError, OutcomeEntry, PlanEntry
from hushsum_page.viewer import LOOPBACK_HOSTS
from hushsum_page.workers import Workers
from hushsum_proto.answers import ServiceReason
from hushsum_proto.messages import ReleaseInfo

T = TypeVar("T")

_FRESH_S: Final = 1.0  # how late the page may hear of another process's publications
_TELL_WRONG_S: Final = 60.0
_SECRET_BYTES_MAX: Final = 4096
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  it is compared, nothing listens on it here
_SECRET_LETTERS_MIN: Final = 16

_journal = journal("page")


class ServiceSource:
    """The published outcomes of a service. Its methods are called on the page's event loop, and work on the service's.

    Args:
        catalog: What the gRPC service Catalogue answers from.
        loop: Where it lives.
        clock: Seconds that never go back.
    """

    title = "Releases of this service"

    def __init__(self, catalog: ReleaseCatalog, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._catalog, self._loop, self._clock = catalog, loop, clock
        self._last: tuple[int, float, PlanEntry] | None = None

    async def plans(self) -> list[PlanEntry]:
        """The plan that this service collects: as it was read a moment ago, unless something was published since.

        A pointer that moves over a picture asks several times a second, and a plan may have thousands of windows.
        """
        publications, now_s = self._catalog.publications, self._clock()
        if self._last is not None and self._last[0] == publications and now_s - self._last[1] < _FRESH_S:
            return [self._last[2]]
        entry = await self._there(self._entry())
        self._last = publications, now_s, entry
        return [entry]

    async def data(self, plan: Plan, outcome: OutcomeEntry) -> bytes:
        """The bytes of a published release.

        Raises:
            MissingReleaseError: It was removed.
        """
        assert outcome.window is not None, "a service releases windows"
        assert plan.id == self._catalog.plan.id, "its only one"
        try:
            return await self._there(self._catalog.release(outcome.kind, outcome.window))
        except NotFoundError as error:
            raise MissingReleaseError(str(error)) from error

    async def _entry(self) -> PlanEntry:
        infos = await self._catalog.releases(None)
        outcomes = sorted(map(_entry_of, infos), key=lambda each: -(each.window or 0))
        return PlanEntry(self._catalog.plan, tuple(outcomes), await self._catalog.next_outcome())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's own
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _entry_of(info: ReleaseInfo) -> OutcomeEntry:
    state = WITHHELD if info.withheld else RELEASED if info.size_bytes else REMOVED
    id = info.sha256.hex()[:ID_DIGITS] if state == RELEASED else ""
    return OutcomeEntry(id, state, info.kind, info.window, info.size_bytes)


class TokenAccounts:
    """Holders of the service's tokens with scope ``read`` or ``admin``; a token that is revoked ends its sessions."""

    asks_for = "a token of this service with the scope read or admin, as `hushsum admin tokens add` prints it"

    def __init__(self, file: TokenFile, runtime: Runtime, metrics: Metrics) -> None:
        self._file, self._runtime, self._metrics = file, runtime, metrics
        self._wrong, self._told_s = 0, -math.inf

    def holder_of(self, token: str) -> Holder | None:
        """The holder of a token. Wrong ones are counted and never limited: nobody can guess 32 random bytes."""
        entry = self._file.table.find(token, self._runtime.now_ms())
        if entry is None or not entry.scopes & {Scope.READ, Scope.ADMIN}:
            self._note_wrong(ServiceReason.UNAUTHENTICATED if entry is None else ServiceReason.FORBIDDEN)
            return None
        _journal.info("signed in on the page", token=entry.id, admin=Scope.ADMIN in entry.scopes)
        return Holder(entry.name, Scope.READ in entry.scopes, Scope.ADMIN in entry.scopes, entry.id)

    def _note_wrong(self, reason: ServiceReason) -> None:
        """Counts a sign-in that was refused; the journal gets a line a minute, however many there are."""
        self._metrics.refused(reason)
        self._wrong += 1
        if self._runtime.monotonic() - self._told_s >= _TELL_WRONG_S:
            _journal.warning("sign-in on the page refused", times=self._wrong)
            self._wrong, self._told_s = 0, self._runtime.monotonic()

    def is_good(self, holder: Holder) -> bool:
        entry = self._file.table.get(holder.proof)
        if entry is None or not entry.is_good(self._runtime.now_ms()):
            return False
        return (Scope.READ in entry.scopes, Scope.ADMIN in entry.scopes) == (holder.may_read, holder.may_administer)


class NoAccounts:
    """Where callers are known by a proxy alone."""

    asks_for = "nothing: this page is reached through the sign-on of its proxy"

    def holder_of(self, token: str) -> Holder | None:  # noqa: ARG002  the port's form, which others use
        return None

    def is_good(self, holder: Holder) -> bool:  # noqa: ARG002  the port's form, which others use
        return False


class ServicePage:
    """The page of a service; it answers once it is started.

    Args:
        config: With ``page_listen``.
        catalog: What it shows.
        tokens: Who may sign in; None: only whom the proxy names.
        runtime: The service's clocks and tasks.
        operations: What its operators see and do.
        metrics: Count the sign-ins that are refused.

    Attributes:
        address: Where it listens, ``host:port``.

    Raises:
        ConfigError: The address, a certificate or the proxy's secret cannot be used.
    """

    def __init__(
        self,
        config: Config,
        catalog: ReleaseCatalog,
        tokens: TokenFile | None,
        runtime: Runtime,
        operations: Operations,
        metrics: Metrics,
    ) -> None:
        proxy, tls = proxy_of(config), tls_of(config, runtime.monotonic)
        listener = page_listener(config, runtime.monotonic)
        self.address = f"{config.page_listen.rpartition(':')[0]}:{listener.port}"
        source = ServiceSource(catalog, asyncio.get_running_loop(), runtime.monotonic)
        accounts = NoAccounts() if tokens is None else TokenAccounts(tokens, runtime, metrics)
        sessions = Sessions(accounts, OsEntropy(), runtime.monotonic)
        is_secure = tls is not None or proxy is not None
        settings = PageSettings(hosts_of(config), listener.port, is_secure=is_secure, proxy=proxy)
        self._workers = Workers()
        self._workers.prepare(warm_up)
        library = Library(source, self._workers, counters_max=config.counters_max)
        app = page_app(library, sessions, settings, runtime.monotonic, operations=operations, on_error=_log_error)
        self._server = PageServer(listener, app, tls)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Ends it, and waits for that: not for the service's event loop, which answers what the page still asks."""
        self._server.stop()
        self._workers.close()


def _log_error(error: Exception) -> None:
    """Kinds and places alone: the words of an error may hold anything."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f"{place.tb_frame.f_code.co_name}:{place.tb_lineno}"
    _journal.error("page failed", kind=type(error).__name__, where=where)


def page_listener(config: Config, clock: Callable[[], float]) -> BoundedListener:
    """The listening socket; ConfigError: the address cannot be used."""
    try:
        return BoundedListener(*host_and_port(config.page_listen), clock)
    except OSError as error:
        raise ConfigError(f"page_listen: {config.page_listen} cannot be used: {error.strerror or error}") from error


def hosts_of(config: Config) -> frozenset[str]:
    """The names that browsers may ask for: those of ``page_hosts``, the host of ``page_listen``, loopback's own."""
    host = host_and_port(config.page_listen)[0].lower()
    named = {each.strip().lower() for each in config.page_hosts.split(",") if each.strip()}
    own = frozenset() if host in _EVERY_ADDRESS else frozenset({host})
    return own | named | (LOOPBACK_HOSTS if is_loopback(host) else frozenset())


def proxy_of(config: Config) -> ProxySignOn | None:
    """The proxy that signs callers on; ConfigError: its secret cannot be used."""
    if config.page_proxy_header is None or config.page_proxy_secret is None:
        return None
    path = config.page_proxy_secret
    try:
        data, found = bytes_and_stat(path, _SECRET_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"page_proxy_secret: {path}: {error.strerror}") from error
    if accessible_to_others(found):
        raise ConfigError(
            f"page_proxy_secret: {path}: mode {stat.S_IMODE(found.st_mode):03o}, the secret is accessible to other "
            f"users: chmod 600 {path}"
        )
    secret = data.decode("ascii", errors="replace").strip()
    if not (secret.isascii() and secret.isprintable() and len(secret) >= _SECRET_LETTERS_MIN):
        raise ConfigError(f"page_proxy_secret: {path}: expected one line of at least {_SECRET_LETTERS_MIN} characters")
    return ProxySignOn(config.page_proxy_header.lower(), secret)


def tls_of(config: Config, clock: Callable[[], float]) -> ssl.SSLContext | None:
    """TLS with the certificate of the gRPC listener, read again when its files change; None for plaintext.

    Raises:
        ConfigError: The files cannot be used.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    certificate, key = config.tls_cert, config.tls_key
    files = ReloadedFiles((certificate, key), lambda: _context_of(certificate, key), _log_failure, clock)

    def newest(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        files.refresh()
        connection.context = files.value

    first = files.value
    first.sni_callback = newest
    return first


def _context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # without it OpenSSL would ask at the terminal
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_cert, tls_key: {certificate}, {key} cannot be used: {error}") from error
    return context


def _log_failure(why: str) -> None:
    _journal.error("page certificate not reloaded: using the previous one", error=why)
