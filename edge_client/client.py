"""The client: three lines to contribute a record; and the wiring of one that was started."""

import asyncio
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from edge_client.config import LARGE_BYTES, Config
from edge_client.encoding import Batch, Randomising, copied, left_out, split, time_in_ms
from edge_client.errors import ClientStateError, FlushTimeoutError
from edge_client.participation.identity import Fetching, key_of, member_of
from edge_client.participation.scheduler import WindowScheduler
from edge_client.participation.secure_sum import RoundParts, RoundProgress, SecureSubmitter
from edge_client.participation.silo import SiloSubmissions, SiloSubmitter
from edge_client.plan_fetch import RetryPolicy, meet
from edge_client.policy import Policy
from edge_client.runtime import Runtime, SystemRuntime, to_the_end
from edge_client.session.driver import DriverSettings, SessionDriver
from edge_client.session.session import Session
from edge_client.spool.budget import DeviceBudget
from edge_client.spool.changes import BatchIds, packed
from edge_client.spool.spool import Spool
from edge_client.spool.window_submissions import SecureSubmissions, WindowSubmissions
from edge_client.spool.writer import SpoolWriter
from edge_client.stats import SendStats, Stats, UnreportedRejections
from edge_client.transport.grpc import GrpcTransport, large_s
from hushsum.collection import label_list
from hushsum.entropy import Entropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.signatures import SigningKey
from hushsum_proto.answers import Answer
from hushsum_proto.credentials import Credentials


@dataclass(frozen=True)
class ClientArguments:
    """What a client was given, and works with from its start on.

    Attributes:
        target: Of the service.
        policy: What the device allows.
        config: Limits and waits.
        runtime: Time, tasks and threads.
        entropy: Of jitter, and of what a spool draws at its first use.
        key: The client's own; None where there is none.
        credentials: What the service is shown, and who is believed; None: nothing, and public authorities.
    """

    target: str
    policy: Policy
    config: Config
    runtime: Runtime
    entropy: Entropy
    key: SigningKey | None = field(repr=False)
    credentials: Credentials | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other, before anything is opened."""
        if self.config.insecure and self.credentials is not None:
            self.credentials.in_plaintext(self.target)


@dataclass(frozen=True)
class ClientParts:
    """A client's parts.

    Attributes:
        met: The service was met a moment ago, for the plan of an empty spool.
        spool: Where everything waits.
        plan: That is contributed to.
        writer: Through which deltas come into the spool.
        driver: What sends them, and owns the client's tasks.
        budget: What this device has spent, with a secure sum and in local mode.
        randomising: Of a plan of reports.
        scheduler: Of a plan with a secure sum, or of silos: what takes its turns.
    """

    met: bool
    spool: Spool
    plan: Plan
    writer: SpoolWriter
    driver: SessionDriver
    budget: DeviceBudget | None
    randomising: Randomising | None
    scheduler: WindowScheduler | None

    @property
    def submitter(self) -> SecureSubmitter | None:
        """Of a plan with a secure sum: what takes part in its rounds."""
        return self.scheduler if isinstance(self.scheduler, SecureSubmitter) else None

    @property
    def sends(self) -> SendStats:
        """What was written to connections."""
        return self.driver.sends if self.submitter is None else self.submitter.sends

    def told(self, answer: Answer) -> None:
        """Hears each definitive answer."""
        if isinstance(self.scheduler, SiloSubmitter):
            self.scheduler.told(answer)

    async def begin(self) -> None:
        """Takes part in the windows of this moment, where the plan's mode asks for it, and connects.

        Raises:
            SpoolError: The spool cannot be written.
        """
        if self.scheduler is not None:
            await self.scheduler.begin()
        if self.submitter is None and not self.met:
            self.driver.begin()

    async def caught_up(self) -> None:
        """Returns once a window that has just begun was looked at."""
        if self.scheduler is not None:
            await self.scheduler.caught_up()

    async def flush(self, timeout_s: float | None) -> None:
        """Returns once all has a definitive answer (see :meth:`edge_client.EdgeClient.flush`)."""
        await self.driver.answered(timeout_s)
        if self.scheduler is not None:
            await self.scheduler.flush(timeout_s)

    async def finished(self, timeout_s: float) -> None:
        """Returns once what is under way has its answer; nothing new is begun.

        Raises:
            FlushTimeoutError: Not within the time.
        """
        await self.driver.answered(timeout_s)
        if self.scheduler is not None:
            await self.scheduler.finished(timeout_s)


async def assemble(spool: Spool, given: ClientArguments, note: Callable[[Answer], None]) -> ClientParts:
    """The parts of a client; none of them has begun.

    Args:
        spool: Open.
        given: What the client was given.
        note: Called with each definitive answer.
    """
    runtime, config = given.runtime, given.config
    transport = GrpcTransport(given.target, spool.client_id, config, given.credentials)
    met = await meet(spool, given.policy, transport, RetryPolicy(runtime, config, given.entropy))
    plan = met.plan
    kept = await runtime.blocking(_kept, spool, plan)
    session = Session(
        config=_sending(config, plan),
        plan_id=plan.id,
        stream=spool.stream,
        lateness_ms=plan.window.lateness_ms,
        unanswered=await runtime.blocking(spool.unanswered),
        entropy=given.entropy,
        ids=kept.ids,
    )
    writer = SpoolWriter(spool, runtime, config.commits_max)
    wiring = DriverSettings(spool, writer, transport, runtime, plan.id, note, batches=kept.randomising is not None)
    driver = SessionDriver(session, wiring)
    scheduler: WindowScheduler | None = None
    if isinstance(kept.turns, SecureSubmissions):
        scheduler = await _submitter(spool.client_id, plan, kept.turns, given, transport=transport, driver=driver)
    elif isinstance(kept.turns, SiloSubmissions):
        waits = RetryPolicy(runtime, config, given.entropy)
        scheduler = await runtime.blocking(SiloSubmitter, plan, kept.turns, writer, driver, waits)
    return ClientParts(met.first, spool, plan, writer, driver, kept.budget, kept.randomising, scheduler)


@dataclass(frozen=True)
class _Kept:
    """What a plan's mode needs of its spool."""

    budget: DeviceBudget | None = None
    turns: WindowSubmissions | None = None
    randomising: Randomising | None = None
    ids: BatchIds | None = None


def _kept(spool: Spool, plan: Plan) -> _Kept:
    if plan.privacy.mode == CENTRAL:
        return _Kept()
    spool.keep_rounds()
    budget = spool.keep_books(plan)
    if plan.privacy.mode == SECURE:
        return _Kept(budget, SecureSubmissions(spool, plan, budget))
    local = plan.privacy.local
    assert local is not None, "mode 'local' has a form"
    if not local.reports:
        return _Kept(budget, SiloSubmissions(spool, plan, budget))
    # Reports, their streams and the memo's secret are the operating system's, whatever the jitter is drawn from.
    secret = spool.keep_memo(OsEntropy()) if local.memoise else None
    return _Kept(budget, None, Randomising(plan, secret), BatchIds(spool.streams()))


def _sending(config: Config, plan: Plan) -> Config:
    """How deltas are sent: one that is too large for a stream's message goes in a call of its own, and takes longer."""
    if not plan.privacy.is_silo or plan.upload_bytes_max <= LARGE_BYTES:
        return config
    longest_s = config.call_timeout_s + large_s(plan.upload_bytes_max)
    return replace(config, unary=True, answer_wait_s=max(config.answer_wait_s, 2 * longest_s))


async def _submitter(
    client_id: str,
    plan: Plan,
    rounds: SecureSubmissions,
    given: ClientArguments,
    *,
    transport: GrpcTransport,
    driver: SessionDriver,
) -> SecureSubmitter:
    fetching = Fetching(transport, given.runtime, given.config)
    member = await member_of(plan, client_id, given.key, rounds=rounds, calls=fetching, entropy=given.entropy)
    # Keys, masks and noise are the operating system's, whatever the jitter is drawn from.
    parts = RoundParts(plan, rounds, member, given.runtime, OsEntropy())
    return SecureSubmitter(parts, transport, given.config, given.entropy, driver)


class EdgeClient:
    """Contributes records to a collection: hashes them here, keeps the deltas in a spool, and sends them on.

    ``async with`` starts and ends it. Entering opens the spool and, the first time, fetches the plan; later starts work
    offline. Leaving waits up to ``config.close_flush_s`` for answers (not while an error is on its way out); what is
    unsent then stays in the spool for the next start. A client is entered once.

    With a secure sum nothing leaves this device but its window's vector, noised and masked, once a window in which it
    runs and soon after that window's end, records or none (:mod:`edge_client.participation.scheduler`). Until then the
    records wait in the spool. The window is charged to this device's own account before the vector leaves, and a vector
    that was sent is never sent again, whatever the service says.

    In local mode nobody is trusted with what leaves the device. With the form ``silo`` that is one noised sum a window
    in which it runs, soon after the window's end, records or none; until then the records wait in the spool
    (:mod:`edge_client.participation.silo`). With the form ``report`` it is one randomised report for each record, at
    once, in batches that carry nothing of this client (:mod:`edge_client.encoding`), and the spool keeps reports alone.
    With ``memoise`` it keeps keyed digests of records, too, and their key: whoever has the file can guess what they
    are. Either way a window is charged to this device's own account in the transaction that fixes what is sent; that is
    sent again in the same bytes, and never drawn anew, whatever the service says.

    Args:
        target: ``host:port`` of the service.
        spool: The spool's file: one for each client and plan, never used by two at a time, never copied.
        client_id: Who contributes, 1 to 128 printable characters; where the service asks for a token or a certificate
            the name in that, any other is refused. None: the one in the spool, at its first use a random one.
        policy: What this device allows. None: every plan that supports its claim, but a large δ or memoised reports.
        config: Limits and waits.
        runtime: Time, tasks and threads; many clients of one process share one. None: one of its own.
        entropy: Of the stream number, a random client id, and the back-off's jitter. None is the operating system's.
        key: For a secure sum: the client's Ed25519 key, or the path of its PEM file; required where the plan names a
            directory of clients. None: the spool draws one at its first use.
        credentials: What proves who this is, and who is believed. Files are read at each connection; while the service
            refuses what they hold, all stays in the spool and is tried again. None: nothing is shown.

    Raises:
        KeyFileError, CredentialsError: The key's file cannot be used; ``config.insecure`` would show a token to all.
    """

    def __init__(  # noqa: PLR0913  each is a choice of its own, and all but two have a default
        self,
        target: str,
        *,
        spool: str | os.PathLike[str],
        client_id: str | None = None,
        policy: Policy | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
        entropy: Entropy | None = None,
        key: str | os.PathLike[str] | SigningKey | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._path = spool
        self._client_id = client_id
        self._config = config or Config()
        own = key_of(key)
        self._own_runtime = SystemRuntime() if runtime is None else None
        self._runtime: Runtime = runtime or self._own_runtime or SystemRuntime()
        self._entropy = entropy or OsEntropy()
        self._given = ClientArguments(
            target, policy or Policy(), self._config, self._runtime, self._entropy, own, credentials
        )
        self._entered = False
        self._running = False
        self._spool: Spool | None = None
        self._parts: ClientParts | None = None
        self._unreported = UnreportedRejections()

    async def __aenter__(self) -> Self:
        """Starts the client.

        Raises:
            PolicyError: The policy does not allow the plan.
            UnreachableError: The spool holds no plan yet, and the service gave none within ``first_contact_s``.
            SessionRefusedError: The service wants no session with this client.
            SpoolError: The spool cannot be used, or belongs to another client.
            PlanError: This version cannot read the service's plan.
            SettingsError: The plan names a directory of clients, and it does not hold this client with this key.
        """
        if self._entered:
            raise ClientStateError("a client can be entered once: make another one with the same spool")
        self._entered = True
        try:
            await to_the_end(self._runtime, self._open_spool())
            assert self._spool is not None
            self._parts = await assemble(self._spool, self._given, self._note)
            await self._parts.begin()
        except BaseException:
            await to_the_end(self._runtime, self._stop())
            raise
        self._running = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the client; nothing that is unsent is lost, and no task is left behind.

        Raises:
            EdgeError: What had stopped the client, where nobody was told yet.
        """
        parts = self._started()
        driver = parts.driver
        try:
            if error is None and driver.failure is None and self._config.close_flush_s > 0:
                with suppress(FlushTimeoutError):  # the rest is sent at the next start
                    await parts.finished(self._config.close_flush_s)
        finally:
            self._running = False
            await to_the_end(self._runtime, self._stop())
        if error is None:
            driver.raise_untold()
            self._unreported.warn(stacklevel=2)

    @property
    def client_id(self) -> str:
        """Who contributes."""
        return self._started().spool.client_id

    @property
    def stream(self) -> int:
        """The stream number of its deltas; with the sequence numbers from 0 on, these are their ids.

        Each batch of reports has a stream of its own: there this number never leaves the device.
        """
        return self._started().spool.stream

    @property
    def plan(self) -> Plan:
        """The plan that this client contributes to."""
        return self._started().plan

    @property
    def tallies(self) -> Stats:
        """What became of everything that was added; readable after the end, too."""
        kept = {} if self._spool is None else self._spool.tallies
        return Stats.of(kept, SendStats() if self._parts is None else self._parts.sends)

    @property
    def account(self) -> Account | None:
        """What this device has spent, and may still spend, by its own books: with secure sums and in local mode.

        None for plans of mode ``central``, under which the service spends.
        """
        budget = self._started().budget
        return None if budget is None else budget.account

    @property
    def standing(self) -> RoundProgress | None:
        """How far this client has come in a round of a secure sum, to be shown; None where it is in none."""
        submitter = self._started().submitter
        return None if submitter is None or submitter.attempt is None else submitter.attempt.standing

    @property
    def unanswered(self) -> int:
        """Deltas in the spool that have no definitive answer yet."""
        return self._started().driver.unanswered

    async def add(self, records: Any, time: int | datetime | None = None, labels: object = None) -> None:
        """Contributes records. Returns once they are hashed, bound to their ids and durable in the spool.

        It never waits for the network: deltas are sent, sent again and answered in the background, now or at a later
        start. A crash after it has returned loses nothing. One that was cancelled may have been taken. All of a batch
        is taken, or nothing; but with unit ``client`` the first records that are left to this client in the window are
        taken, and the others refused with a :class:`DroppedRecordsWarning`, which has their number.

        Args:
            records: (n, d), or (d,) for one; floats or integers. Sets: n integer arrays, one alone, or a scipy CSR
                matrix. A record that cannot be used (NaN, infinity, an empty or unsorted set, an unknown label) is
                left out alone, with a :class:`DroppedRecordsWarning`. Under a plan of reports it sends one that is
                uniformly random, which counts towards a bound of records: its absence would show.
            time: Event time of the whole batch: ms since 1970 UTC, or an aware datetime. None is this device's clock.
            labels: For a plan with classes: n strings, one a record, or one for one record.

        Raises:
            RecordError: The array cannot be used at all.
            ContributionError: Unit ``client``: no record is left to this client in the window.
            AccountError: Of reports: this device's own account does not pay for the window.
            EventTimeError: The time is no whole milliseconds and no aware datetime; of memoised reports: too long ago.
            SpoolError: The spool cannot be written, or is full.
            SessionRefusedError: The service has ended the session for good.
        """
        parts = self._working()
        now_ms = self._runtime.now_ms() if time is None else time_in_ms(time)
        mine = copied(records)  # the caller may reuse its array
        given = None if labels is None else label_list(labels)
        await parts.caught_up()
        window = parts.plan.window.index_at(now_ms)
        batch = await self._runtime.computing(_hashed, parts, mine, window, given)
        if not (batch.dropped or batch.addition.contributed):
            return
        self._working()  # it may have ended in the meantime
        bound = parts.writer.put(batch.addition)
        if not batch.addition.pending:
            parts.driver.expect(bound)
        for warning in left_out(batch, await asyncio.shield(bound)):
            warnings.warn(warning, stacklevel=2)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns once everything that was added before has a definitive answer; None waits for ever.

        With a secure sum it **closes windows for this device**: it takes part now, not after their end, in every window
        that takes part at this moment, and waits until each is told. What is added to them afterwards is left out. The
        service sees when that happens: whether and when this is called must not depend on records, nor on whether there
        are any. The same holds of a silo: it submits now for every such window, once and for all.

        Raises:
            RefusedError: Deltas were refused for good since the last flush that said so; it has the reasons.
            NotCountedError: With a secure sum, or of a silo: windows since the last flush that said so are in no sum.
            FlushTimeoutError: Not within the time; nothing is given up.
            SessionRefusedError: The service has ended the session for good.
        """
        parts = self._started()
        if not self._running:
            raise _not_running()
        await parts.flush(timeout_s)
        self._unreported.tell()

    async def _open_spool(self) -> None:
        config = self._config
        self._spool = await self._runtime.blocking(
            lambda: Spool(
                self._path, client_id=self._client_id, entropy=self._entropy, bytes_max=config.spool_bytes_max
            )
        )

    async def _stop(self) -> None:
        if self._parts is not None:
            await self._parts.driver.close()
            await self._parts.writer.close()
        if self._spool is not None:
            await self._runtime.blocking(self._spool.close)
        if self._own_runtime is not None:
            self._own_runtime.close()

    def _started(self) -> ClientParts:
        if self._parts is None:
            raise _not_running()
        return self._parts

    def _working(self) -> ClientParts:
        parts = self._started()
        if not self._running:
            raise _not_running()
        parts.driver.raise_failure()
        return parts

    def _note(self, answer: Answer) -> None:
        self._started().told(answer)
        self._unreported.note(answer)


def _hashed(parts: ClientParts, records: Any, window: int, labels: object) -> Batch:
    batch = split(parts.plan, records, window, labels, parts.randomising)
    return replace(batch, addition=packed(batch.addition))


def _not_running() -> ClientStateError:
    return ClientStateError("this client is not running: use it inside `async with EdgeClient(...) as client:`")
