"""The client: three lines to contribute a record."""

import asyncio
import logging
import os
import warnings
from collections import Counter
from collections.abc import AsyncIterable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from edge_client.config import Config
from edge_client.encoding import copied, left_out, time_in_ms
from edge_client.errors import (
    ClientStateError,
    EventTimeError,
    FlushTimeoutError,
    NotCountedWarning,
    PlanChangedError,
    SpoolError,
)
from edge_client.policy import Policy
from edge_client.runtime import Runtime, SystemRuntime, Tasks, run_to_completion
from edge_client.spool.changes import Add, Unbound
from edge_client.spool.plan_history import PlanHistory
from edge_client.spool.spool import Spool
from edge_client.status import RECORDS_UNSPENT, WINDOWS_UNSPENT, Counts, Event, EventKind, OnEvent, Status, Unreported
from hushsum.collection import label_list
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import ClippedRecordsWarning, HushsumError, HushsumWarning, RecordError
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.schedule import ARRIVAL
from hushsum.signing import SigningKey
from hushsum.tables import Columns, RecordTable, is_lazy, read_table
from hushsum.usable_records import RecordProblems
from hushsum_proto.answers import Answer
from hushsum_proto.answers import Status as AnswerStatus
from hushsum_proto.credentials import Credentials

if TYPE_CHECKING:
    from edge_client.participation.mode import Mode
    from edge_client.transport.interface import Transport

_LOG: Final = logging.getLogger("edge_client")
_ERASURES_APART_S: Final = (5.0, 3600.0)  # at least and at most: this device's clock may be set meanwhile


class EdgeClient:
    """Contributes records to a collection: hashes them on the device, spools the sketch deltas and sends them.

    ``async with`` starts and ends it. Entering opens the spool and, the first time, fetches the plan; later starts work
    offline. Leaving waits up to ``config.close_flush_s`` for answers (not while an error is on its way out); what is
    unsent then stays in the spool for the next start. A client is entered once, and has one plan while it runs: where
    the service collects another, it stops with :class:`PlanChangedError`, and the next client on the spool takes that
    plan up, if :class:`Policy` allows it (``new_plan_after_s``).

    With a secure sum nothing leaves this device but its window's vector, noised and masked, once a window in which it
    runs and soon after that window's end, records or none (:mod:`edge_client.participation.scheduler`). Until then the
    records wait in the spool. The window is charged to this device's own account before the vector leaves, and a vector
    that was sent is never sent again, whatever the service says.

    In local mode no one else is trusted with what leaves the device. With the form ``silo`` that is one noised sum a
    window in which it runs, soon after the window's end, records or none; until then the records wait in the spool
    (:mod:`edge_client.participation.silo`). With the form ``report`` it is one randomised report for each record, at
    once, in batches that carry nothing of this client (:mod:`edge_client.encoding`), and the spool keeps reports alone.
    With ``memoise`` it keeps keyed digests of records, too, and their key: whoever has the file can guess what they
    are. Either way a window is charged to this device's own account in the transaction that fixes what is sent; that is
    sent again in the same bytes, and never drawn anew, whatever the service says.

    Args:
        target: ``host:port`` of the service; or a transport, such as :class:`edge_client.testing.MemoryService`.
        spool: The spool's file: one for each client, never used by two at a time, never copied.
        client_id: Who contributes, 1 to 128 printable characters; where the service asks for a token or a certificate
            the name in that, any other is refused. None: the one in the spool, which at the first contact takes the one
            of the token or certificate, or a random one where there is neither.
        policy: What this device allows. None: every plan that supports its claim, but a large δ or memoised reports.
        config: Limits and waits.
        runtime: Time, tasks and threads; many clients of one process share one. None: one of its own.
        entropy: Of the stream number, a random client id, and the back-off's jitter. None is the operating system's.
        key: For a secure sum: the client's Ed25519 key, or the path of its PEM file; required where the plan names a
            directory of clients. None: the spool draws one at its first use.
        credentials: What proves who this is, and who is believed. Files are read at each connection; while the service
            refuses what they hold, all stays in the spool and is tried again. None: nothing is shown.
        on_event: Is called with each :class:`Event`, on the event loop: it must return at once, and must not call the
            client. What it raises is logged.

    Raises:
        KeyFileError, CredentialsError: The key's file cannot be used; ``config.insecure`` would show a token to all.
    """

    def __init__(  # noqa: PLR0913  each is a choice of its own, and all but two have a default
        self,
        target: "str | Transport",
        *,
        spool: str | os.PathLike[str],
        client_id: str | None = None,
        policy: Policy | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
        entropy: Entropy | None = None,
        key: str | os.PathLike[str] | SigningKey | None = None,
        credentials: Credentials | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self._target = target
        self._path = spool
        self._client_id = client_id
        self._policy = policy or Policy()
        self._config = config or Config()
        self._key = key if key is None or isinstance(key, SigningKey) else SigningKey.load(key)
        self._credentials = credentials
        if self._config.insecure and credentials is not None and isinstance(target, str):
            credentials.in_plaintext(target)  # refused before anything is opened
        self._on_event = on_event
        self._own_runtime = SystemRuntime() if runtime is None else None
        self._runtime: Runtime = runtime or self._own_runtime or SystemRuntime()
        self._entropy = entropy or OsEntropy()
        self._entered = False
        self._running = False
        self._spool: Spool | None = None
        self._history: PlanHistory | None = None
        self._held = 0
        self._may_change_ms: int | None = None
        self._mode: Mode | None = None
        self._unreported = Unreported()
        self._before: Counter[str] = Counter()
        self._erasure_due_ms: int | None = None
        self._unreadable: set[str] = set()  # earlier plans, as they were reported
        self._problems = RecordProblems(0)

    async def __aenter__(self) -> Self:
        """Starts the client.

        Raises:
            PolicyError: The policy does not allow the plan. Of a new plan in place of the spool's this is the event
                ``plan refused``, and the client begins under the plan that it has.
            UnreachableError: The spool holds no plan yet, and the service gave none within ``first_contact_s``.
            AuthenticationError: The service does not accept who this client is, or what proves it.
            SessionRefusedError: The service wants no session with this client.
            SpoolError: The spool cannot be used, or belongs to another client.
            PlanError: This version cannot read the service's plan.
            SettingsError: The plan names a directory of clients, and it does not hold this client with this key.
        """
        if self._entered:
            raise ClientStateError("a client can be entered only once: create another one with the same spool")
        self._entered = True
        try:
            await run_to_completion(self._runtime, self._open_spool())
            assert self._spool is not None
            await self._start(self._spool)
        except BaseException:
            await run_to_completion(self._runtime, self._stop())
            raise
        self._running = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the client; nothing that is unsent is lost, and no task is left behind.

        Raises:
            EdgeError: What had stopped the client, unless that was raised before.
        """
        for warning in await self.end(wait=error is None):
            warnings.warn(warning, stacklevel=2)

    async def end(self, *, wait: bool) -> list[HushsumWarning]:
        """Ends the client, and returns what to warn of; without ``wait`` at once, and nothing is raised or returned."""
        mode = self._started()
        driver = mode.driver
        try:
            if wait and driver.failure is None and self._config.close_flush_s > 0:
                with suppress(FlushTimeoutError):  # the rest is sent at the next start
                    await mode.finish(self._config.close_flush_s)
        finally:
            self._running = False
            await run_to_completion(self._runtime, self._stop())
        if not wait:
            return []
        driver.raise_unreported()
        self._unreported.add_windows(mode.take_uncounted())
        uncounted = self._unreported.take()
        return [] if uncounted is None else [NotCountedWarning(str(uncounted))]

    @property
    def client_id(self) -> str:
        """The client id."""
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

    def status(self, *, since_start: bool = False) -> Status:
        """What became of everything that was added, and how this client stands with its service.

        Readable after the end, too.

        Args:
            since_start: Count only what was added since this client started, and no delta that it found in its spool.
        """
        mode = self._mode
        if mode is None:
            return Status()
        kept = Counter(mode.spool.tallies)
        if since_start:
            kept.subtract(self._before)
            kept.subtract(mode.earlier)
        driver, most = mode.driver, mode.plan.window.windows_per_client
        counts = Counts.of({name: count for name, count in kept.items() if count}, mode.sends)
        return Status(
            **vars(counts),
            queued=driver.unanswered,
            waiting=driver.waiting,
            held=self._held,
            connected=self._running and driver.is_connected,
            last_error=driver.last_error,
            next_attempt_ms=driver.next_attempt_ms,
            account=mode.account,
            round=mode.progress,
            windows_left=None if most is None else max(0, most - mode.spool.windows),
            problems=self._problems,
        )

    async def add(
        self,
        records: Any,
        time: int | datetime | None = None,
        labels: object = None,
        *,
        columns: Columns | None = None,
        by_position: bool = False,
    ) -> None:
        """Contributes records. Returns once they are hashed, bound to their ids and durable in the spool.

        It never waits for the network: deltas are sent, sent again and answered in the background, now or at a later
        start. A crash after it has returned loses nothing. One that was cancelled may have been taken. All of a batch
        is taken, or nothing; but with unit ``client`` the first records that are left to this client in the window are
        taken, and the others refused with a :class:`DroppedRecordsWarning`, which has their number.

        Args:
            records: (n, d), or (d,) for one; floats or integers. Sets: n sets or integer arrays, one array alone, or a
                scipy CSR matrix. A table (a data frame, an Arrow table, rows with names or one of them, the path of a
                CSV, Parquet or ``.npy`` file) is read by the plan's names of columns. Files and lazy frames are read
                off the event loop. Of anything else the wanted values are copied first: as soon as this gives control
                back to the event loop, their memory may be reused. A record that cannot be used (NaN, infinity, an
                empty set, an unknown label) is left out alone, with a :class:`DroppedRecordsWarning`. Under a plan of
                reports it sends one that is uniformly random, which counts towards a bound of records: its absence
                would show. Of an async iterable each item is added as if it were given alone, and is durable before the
                next one is asked for; an error or a cancellation names the item in a note, which says whether it was
                added, and leaves the iterable after it.
            time: Event time of the whole batch: ms since 1970 UTC, or an aware datetime. None is this device's clock.
                Under a plan with ``window.time = "arrival"`` there is none: records get the window that is open by the
                service's clock when they are first sent; with unit ``client`` those for which that window has no room
                are sent in a later one.
            labels: For a plan with classes: n strings or integers, one a record, or one for one record. Of a table,
                also the name of a column.
            columns: Of a table: the columns to take, or by the plan's names those of the table.
            by_position: Take a table's columns in their order, whatever they are called.

        Warns:
            DroppedRecordsWarning: Records were left out: how many, and why.
            ClippedRecordsWarning: Records lay outside the plan's bounds: how many, and in which columns.

        Raises:
            RecordError: The array cannot be used at all.
            ContributionError: Unit ``client``: no record is left to this client in the window, or it has added records
                to as many windows as the plan allows for its life, and not to this one.
            AccountError: Of reports: this device's own account does not pay for the window.
            EventTimeError: The time is no whole milliseconds and no aware datetime; of memoised reports: too long ago;
                or the plan's records have none.
            SpoolError: The spool cannot be written, or is full.
            ClientStateError: The client is not running, or was closed meanwhile; nothing was taken.
            SessionRefusedError: The service has ended the session for good.
        """
        given = partial(self._add, time=time, labels=labels, columns=columns, by_position=by_position)
        if not isinstance(records, AsyncIterable):
            for warning in await given(records):
                warnings.warn(warning, stacklevel=2)
            return
        if labels is not None and not isinstance(labels, str):
            raise RecordError("labels: got several for an async iterable, expected the name of a column, or one label")
        number, is_added = 0, False
        try:
            self._working()
            async for item in records:
                warned = await given(item)
                is_added = True
                for warning in warned:  # where a warning is an error, the item is stored all the same
                    warnings.warn(warning, stacklevel=2)
                number, is_added = number + 1, False
                self._working()  # before the next item is asked for
        except (Exception, asyncio.CancelledError) as error:
            added = "it and all before it were added" if is_added else "all before it were added"
            perhaps = ", it may have been" if isinstance(error, asyncio.CancelledError) and not is_added else ""
            error.add_note(f"item {number} of the async iterable, counted from 0: {added}{perhaps}")
            raise

    async def _add(
        self, records: Any, *, time: int | datetime | None, labels: object, columns: Columns | None, by_position: bool
    ) -> list[HushsumWarning]:
        """Adds records, and returns what to warn of now that they are stored."""
        addition = await self.encode(records, time, labels, columns=columns, by_position=by_position)
        for warning in addition.warnings_before:  # where a warning is an error, nothing was stored
            warnings.warn(warning, stacklevel=3)
        return await self.store(addition)

    async def encode(
        self,
        records: Any,
        time: int | datetime | None,
        labels: object,
        *,
        columns: Columns | None,
        by_position: bool,
    ) -> Add:
        """The first half of :meth:`add`: hashes records, and stores nothing."""
        mode = self._working()
        if isinstance(records, AsyncIterable):
            raise RecordError("records: got an async iterable, expected its items: edge_client.EdgeClient.add takes it")
        arrives = mode.plan.window.time == ARRIVAL
        if arrives and time is not None:
            raise EventTimeError(
                f"time: got {time!r}, expected none: the plan's records belong to the window in which they are first "
                f"sent (window.time = {ARRIVAL!r})"
            )
        now_ms = self._runtime.now_ms() if time is None else time_in_ms(time)
        given = labels if labels is None or isinstance(labels, str) else label_list(labels)
        read: Callable[[], RecordTable]
        read = partial(read_table, mode.plan, records, labels=given, columns=columns, by_position=by_position)
        if not is_lazy(records):  # the caller may reuse its memory: nothing of it is read after the first await
            read = partial(replace, _kept(records, read()))
        await mode.caught_up()
        self._working()  # it may have ended in the meantime
        window = mode.plan.window.index_at(now_ms)
        if arrives:
            window = Unbound(window).mark
        addition = await self._runtime.hashing(_encoded, mode, read, window)
        self._working()
        return addition

    async def store(self, addition: Add) -> list[HushsumWarning]:
        """The second half of :meth:`add`: stores them, also if this is cancelled; returns what to warn of."""
        if not (addition.dropped or addition.contributed):
            return []
        mode = self._working()
        try:
            stored = await asyncio.shield(mode.put(addition))
        except SpoolError as error:  # the limit, or the disk
            self._emit(Event(EventKind.SPOOL_FULL, str(error)))
            raise
        self._problems += replace(addition.problems, lines=())  # numbers of one batch say nothing of others
        warned = list(left_out(addition, stored))
        for warning in (*addition.warnings_before, *warned):
            clipped = isinstance(warning, ClippedRecordsWarning)
            kind = EventKind.RECORDS_CLIPPED if clipped else EventKind.RECORDS_DROPPED
            self._emit(Event(kind, str(warning)))
        return warned

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything added before has a definitive answer; without a limit if ``timeout_s`` is None.

        With a secure sum it **closes windows for this device**: it takes part now, not after their end, in every window
        that takes part at this moment, and waits until each result is known. What is added to them afterwards is left
        out. The service sees when that happens: whether and when this is called must not depend on records, nor on
        whether there are any. The same holds of a silo: it submits now for every such window, once and for all.

        Raises:
            NotCountedError: Since the last flush that raised this, deltas came late, were refused for good or are of a
                forgotten window; or, with a secure sum or of a silo, windows are in no sum. It says how many, and why.
                Of several flushes at once each raises it.
            FlushTimeoutError: Not within the time; nothing is given up.
            ClientStateError: The client is not running, or was closed while this waited; nothing is given up.
            SessionRefusedError: The service has ended the session for good.
        """
        mode = self._started()
        if not self._running:
            raise _not_running()
        self._unreported.add_windows(mode.take_uncounted())
        with self._unreported.flush() as told:
            await mode.flush(timeout_s)
            self._unreported.add_windows(mode.take_uncounted())
            self._unreported.take()  # other flushes that run have it, too
        if told.error is not None:
            raise told.error

    async def _open_spool(self) -> None:
        config = self._config
        self._spool = await self._runtime.blocking(
            lambda: Spool(
                self._path, client_id=self._client_id, entropy=self._entropy, bytes_max=config.spool_bytes_max
            )
        )

    async def _start(self, spool: Spool) -> None:
        blocking = self._runtime.blocking
        history = self._history = PlanHistory(spool)
        await blocking(history.undo)  # a start that has ended before its new plan had opened
        try:
            await self._begin(spool, history)
        except PlanChangedError as error:
            await self._note_other_plan(history)
            error.next_attempt_ms = await self._next_change_ms(history)
            raise

    async def _begin(self, spool: Spool, history: PlanHistory) -> None:
        # What talks to a service is loaded here, and gRPC with it: `import edge_client` leaves it out.
        from edge_client.participation.mode import ClientContext
        from edge_client.plan_fetch import RetryPolicy, pinned_plan, submits, take_up_new_plan

        blocking = self._runtime.blocking
        retry = RetryPolicy(self._runtime, self._config, self._entropy)
        # At the first contact a token or a certificate says who this is. From then on the spool's name is declared,
        # too: with the proof of another client nothing is sent.
        shown = self._credentials is not None and self._credentials.names_itself
        unnamed = shown and self._client_id is None and await blocking(lambda: spool.plan) is None
        transport = self._transport(None if unnamed else spool.client_id)
        refused = await take_up_new_plan(history, spool, self._policy, transport, retry)
        plan, is_new = await pinned_plan(spool, self._policy, transport, retry, unnamed=unnamed)
        if unnamed:
            transport = self._transport(spool.client_id)

        def context(plan: Plan) -> ClientContext:
            return ClientContext(spool, plan, transport, retry, self._key, self._note, self._emit)

        try:
            self._mode = await _mode_of(plan).open(context(plan))
        except HushsumError as error:
            if not await blocking(history.undo):
                raise
            refused = f"plan {plan.hex_id[:12]} cannot be opened: {error}"
            plan, is_new = await pinned_plan(spool, self._policy, transport, retry)
            self._mode = await _mode_of(plan).open(context(plan))
        if await blocking(history.confirm, self._runtime.now_ms()):
            self._emit(Event(EventKind.PLAN_CHANGED, f"plan {plan.hex_id[:12]} is collected from now on"))
        if refused is not None:
            _LOG.warning("%s: the service's new plan is not taken up: %s", transport, refused)
            self._emit(Event(EventKind.PLAN_REFUSED, refused))
        await self._erase_held(history)
        before = spool.tallies
        self._may_change_ms = await self._next_change_ms(history)  # for what the service may say from here on
        await retry.held()
        await self._mode.begin(connect=not is_new)  # for a new plan the service was asked a moment ago
        # What earlier runs have left unspent is counted as this one begins.
        unspent = {name: spool.tallies.get(name, 0) for name in (RECORDS_UNSPENT, WINDOWS_UNSPENT)}
        self._before = Counter({**before, **unspent})
        # A submission takes a time in which nothing of records is erased: there the next start does it.
        if not submits(plan):
            self._mode.driver.tasks.spawn(self._erase_when_due(history, self._mode.driver.tasks), "earlier-plans")

    async def _erase_held(self, history: PlanHistory) -> None:
        """Erases and reports what waits under earlier plans and is over."""
        blocking = self._runtime.blocking
        self._erasure_due_ms = self._runtime.now_ms()
        try:
            erasure = await blocking(history.erase, self._erasure_due_ms)
            self._held = await blocking(lambda: history.held)
        except SpoolError as error:
            _LOG.warning("erasure of earlier plans failed, retrying: %s", error)
            return
        self._erasure_due_ms = erasure.due_ms
        self._before.update(erasure.counts)  # none of it was added since this start
        for each in set(erasure.unreadable) - self._unreadable:
            _LOG.warning("%s", each)
            self._emit(Event(EventKind.NOT_COUNTED, each))
        self._unreadable.update(erasure.unreadable)
        for each in map(str, erasure.erased):
            _LOG.warning("not counted: %s", each)
            self._unreported.add_erased(each)
            self._emit(Event(EventKind.NOT_COUNTED, each))
        if erasure.erased:
            try:
                await blocking(history.note_reported)
            except SpoolError as error:
                _LOG.warning("what was erased of earlier plans will be reported again: %s", error)

    async def _erase_when_due(self, history: PlanHistory, tasks: Tasks) -> None:
        least_s, most_s = _ERASURES_APART_S
        while (due_ms := self._erasure_due_ms) is not None:
            await self._runtime.sleep(min(max(least_s, (due_ms - self._runtime.now_ms()) / 1000), most_s))
            # What was erased is reported, also where the client ends meanwhile.
            await asyncio.shield(tasks.spawn(self._erase_held(history), "erasure", whole=True))

    async def _note_other_plan(self, history: PlanHistory) -> None:
        """Notes for the next start that the service collects another plan, whatever the policy is by now."""
        try:
            await self._runtime.blocking(partial(history.note_other_plan, told=True))
        except SpoolError as error:  # the service will say it again
            _LOG.warning("the change of plan could not be noted: %s", error)

    async def _next_change_ms(self, history: PlanHistory) -> int | None:
        """When a new plan may be taken up; None where the policy takes up none."""
        after_ms = self._policy.new_plan_after_ms
        if after_ms is None:
            return None
        now_ms = self._runtime.now_ms()
        try:
            return await self._runtime.blocking(history.next_change_ms, now_ms, after_ms)
        except SpoolError:  # a full disk, and a clock that was set back: the wait begins anew at the next start
            return now_ms + after_ms

    def _transport(self, client_id: str | None) -> "Transport":
        if not isinstance(self._target, str):
            return self._target
        from edge_client.transport.grpc import GrpcTransport

        return GrpcTransport(self._target, client_id, self._config, self._credentials)

    async def _stop(self) -> None:
        if self._mode is not None:
            await self._mode.driver.close()
        if self._spool is not None:
            await self._runtime.blocking(self._spool.close)
        if self._own_runtime is not None:
            self._own_runtime.close()

    def _started(self) -> "Mode":
        if self._mode is None:
            raise _not_running()
        return self._mode

    def _working(self) -> "Mode":
        mode = self._started()
        if not self._running:
            raise _not_running()
        mode.driver.raise_failure()
        return mode

    def _note(self, answer: Answer) -> None:
        mode = self._started()
        mode.on_answer(answer)
        # What becomes of a silo's submission, its window tells.
        if answer.status is AnswerStatus.REFUSED or not mode.plan.privacy.is_silo:
            self._unreported.add_answer(answer)
        self._emit(Event.of_answer(answer))

    def _emit(self, event: Event) -> None:
        if isinstance(event.error, PlanChangedError) and self._mode is not None and self._history is not None:
            may_ms, now_ms = self._may_change_ms, self._runtime.now_ms()
            event.error.next_attempt_ms = None if may_ms is None else max(may_ms, now_ms)
            event = replace(event, next_attempt_ms=event.error.next_attempt_ms)
            self._mode.driver.tasks.spawn(self._note_other_plan(self._history), "other-plan", whole=True)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001  an application's mistake must not end what sends its data
            _LOG.exception("on_event raised an error; the client continues")


def _kept(records: Any, table: RecordTable) -> RecordTable:
    """What was read of records, without the caller's memory."""
    read = table.records
    is_own = isinstance(read, np.ndarray) and read is not records  # of the columns of a table
    labels = None if table.labels is None else label_list(table.labels)
    return replace(table, records=read if is_own else copied(read), labels=labels)


def _encoded(mode: "Mode", read: Callable[[], RecordTable], window: int) -> Add:
    """Reads and hashes records; takes as long as a file or a frame is."""
    table = read()
    addition = mode.encode(table.records, window, None if table.labels is None else label_list(table.labels))
    if not table.lines:
        return addition
    return replace(addition, problems=replace(addition.problems, lines=table.lines))


def _not_running() -> ClientStateError:
    return ClientStateError("this client is not running: use it inside `async with EdgeClient(...) as client:`")


def _mode_of(plan: Plan) -> "type[Mode]":
    """The mode of a plan; what only secure sums or silos need is loaded for them alone."""
    from edge_client.participation.mode import CentralMode, ReportMode

    if plan.privacy.mode == CENTRAL:
        return CentralMode
    if plan.privacy.mode == SECURE:
        from edge_client.participation.secure_sum import SecureMode

        return SecureMode
    if plan.privacy.is_silo:
        from edge_client.participation.silo import SiloMode

        return SiloMode
    return ReportMode
