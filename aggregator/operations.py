"""What operators see and do on the web page: status, windows, ledger, tokens, certificates, and an audit log.

There is no second path to the data: seals, releases, windows and the ledger are those of the gRPC administration,
:class:`aggregator.api.admin.Admin`.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aggregator.api.admin import WINDOWS_SHOWN, Admin
from aggregator.audit import BEGUN, DONE, FAILED, AuditEntry, AuditError, AuditLog
from aggregator.auth.tokens import (
    IssuedToken,
    TakenNameError,
    TokenEntry,
    TokenFile,
    TokenTable,
    TokenTableError,
    adding,
    change_table,
    issue,
    removing,
)
from aggregator.config import Config
from aggregator.errors import WindowOrderError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.observability.host import expiries
from aggregator.observability.metrics import Metrics
from aggregator.runtime import Runtime
from aggregator.windows import UNSEALED, WindowBook, WindowState, due_ms
from hushsum.entropy import Entropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import CUMULATIVE, Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.statement import cost_text
from hushsum.releases import spend_of
from hushsum.schedule import Schedule
from hushsum_page.operations import (
    ISSUE,
    RELEASE,
    REVOKE,
    SEAL,
    Action,
    ActionError,
    AuditShown,
    Certificates,
    Done,
    LedgerHistory,
    Overview,
    SpendEntry,
    TokenList,
    TokenShown,
    WindowEntry,
    WindowList,
)
from hushsum_page.sessions import Holder

T = TypeVar("T")

#: Of a longer ledger some spends are shown.
SPENDS_SHOWN: Final = 100
_DAY_MS: Final = 86_400_000
_ID_BYTES: Final = 8
_OUTCOMES_OF_WINDOWS: Final = frozenset({WindowState.RELEASED, WindowState.WITHHELD, WindowState.SKIPPED})

_journal = journal("operations")


class ServiceOperations:
    """A service for its operators. Its methods are called on the page's event loop, and work on the service's.

    Args:
        plan: The plan that is collected.
        config: Of this process.
        admin: What the gRPC service Administration answers from.
        tokens: The file of tokens; None: there is none, and no token has the scope that these methods need.
        metrics: Of this process.
        runtime: Its clocks, tasks and threads.
        entropy: For tokens, and for ids of actions.
        addresses: What this process answers, and where, once it does.
        loop: The service's event loop.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        config: Config,
        admin: Admin,
        *,
        tokens: TokenFile | None,
        metrics: Metrics,
        runtime: Runtime,
        entropy: Entropy,
        addresses: Callable[[], Sequence[tuple[str, str]]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._plan, self._config, self._admin = plan, config, admin
        self._tokens, self._metrics = tokens, metrics
        self._runtime, self._entropy = runtime, entropy
        self._addresses, self._loop = addresses, loop
        self._log = None if config.data is None else AuditLog(config.data / "audit.jsonl")
        self._writing = asyncio.Lock()
        self._history: tuple[tuple[int, Limits], tuple[SpendEntry, ...]] | None = None
        self._acting: set[asyncio.Task[None]] = set()
        # One action on windows, and one on tokens, at a time: so that what was checked still holds.
        self._on_windows, self._on_tokens = asyncio.Lock(), asyncio.Lock()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's own
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def overview(self) -> Overview:
        return await self._there(self._overview())

    async def windows(self, before: int | None) -> WindowList:
        return await self._there(self._windows(before))

    async def ledger(self) -> LedgerHistory:
        return await self._there(self._ledger())

    async def tokens(self) -> TokenList:
        return await self._there(self._token_list())

    async def audit(self) -> tuple[str, Sequence[AuditShown]]:
        return await self._there(self._audit())

    async def check(self, action: Action) -> str:
        return await self._there(self._check(action))

    async def act(self, action: Action, holder: Holder) -> Done:
        return await self._there(self._carried(action, holder))

    # ------------------------------------------------------------------------------------------------------- overview

    async def _overview(self) -> Overview:
        status, lease = await self._admin.status(), await self._admin.lease()
        samples = await self._runtime.blocking(self._samples)
        by_minutes = self._plan.privacy.reports is not None
        if by_minutes:
            # When reports arrive is erased: lags are those of the metrics, which say whole minutes.
            lags = {name: value for (metric, name), value in samples.items() if metric == "hushsum_fold_lag"}
            folds = tuple(replace(each, lag=lags.get(str(each.partition))) for each in status.folds)
            status = replace(status, folds=folds)
        return Overview(
            status,
            await self._admin.plans(),
            self._runtime.now_ms(),
            None if lease is None else lease.left_s,
            tuple((what, where) for what, where in self._addresses() if where),
            _ranked(samples, "hushsum_refusals_total"),
            _ranked(samples, "hushsum_deltas_total"),
            by_minutes,
            await self._runtime.blocking(self._certificates),
        )

    def _samples(self) -> dict[tuple[str, str], int]:
        """Counters and lags as the metrics page shows them, by metric and label."""
        labels = {"hushsum_refusals": "reason", "hushsum_deltas": "status", "hushsum_fold_lag": "partition"}
        found = {}
        for metric in self._metrics.registry.collect():
            if (label := labels.get(metric.name)) is None:
                continue
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    found[sample.name, sample.labels[label]] = round(sample.value)
        return found

    def _certificates(self) -> tuple[Certificates, ...]:
        return tuple(
            Certificates(setting, None if ends_s is None else round(1000 * ends_s), problem)
            for setting, ends_s, problem in expiries(self._config)
        )

    # -------------------------------------------------------------------------------------------------------- windows

    async def _windows(self, before: int | None) -> WindowList:
        page = await self._admin.windows(before, WINDOWS_SHOWN)
        status = await self._admin.status()
        states = await self._admin.unfinished()
        book = WindowBook(states)
        first = _NextWindows(book.next_to_seal(), book.next_outcome(), min(states, default=None))
        entries = [
            await self._window(window, state, states, first, status.releasing_stopped) for window, state in page.windows
        ]
        counts = Counter(state.value for state in states.values())
        return WindowList(entries, page.more, counts, status.releasing_stopped)

    async def _window(
        self, window: int, state: str, states: Mapping[int, WindowState], first: "_NextWindows", stopped: str
    ) -> WindowEntry:
        schedule, now_ms = self._plan.window, self._runtime.now_ms()
        start_ms, end_ms, due = schedule.start_ms(window), schedule.end_ms(window), due_ms(schedule, window)
        entry = WindowEntry(window, start_ms, end_ms, state, "", is_early=state == WindowState.OPEN and now_ms < due)
        if state in _OUTCOMES_OF_WINDOWS or window not in states:
            return entry
        is_next = window == (first.to_seal if state in UNSEALED else first.to_release)
        action = "" if not is_next else "seal" if state in UNSEALED else "release"
        return replace(entry, waits_for=await self._waits_for(window, state, first, stopped, now_ms), action=action)

    async def _waits_for(self, window: int, state: str, first: "_NextWindows", stopped: str, now_ms: int) -> str:
        if state == WindowState.CLOSING:
            partitions = await self._admin.unsealed_partitions(window)
            listed = ", ".join(map(str, partitions))
            return f"the folds of the partitions {listed}" if partitions else "the releaser to note its seal"
        who = "an operator, because the setting manual is on" if self._config.manual else "the releaser"
        if state == WindowState.SEALED:
            oldest = first.without_outcome
            is_later = oldest is not None and oldest < window
            return f"the outcome of window {oldest:,}" if is_later else stopped or who
        return self._open_waits_for(window, first.to_seal, who, now_ms)

    def _open_waits_for(self, window: int, first: int | None, who: str, now_ms: int) -> str:
        if now_ms < self._plan.window.end_ms(window):
            return "its end"
        if now_ms < due_ms(self._plan.window, window):
            return "late submissions"
        return f"window {first:,} to be sealed" if first is not None and first < window else who

    # --------------------------------------------------------------------------------------------------------- ledger

    async def _ledger(self) -> LedgerHistory:
        page, account = await self._admin.ledger(0, 0), await self._admin.account()
        states = await self._admin.unfinished()
        newest = (await self._admin.windows(None, 1)).windows
        names = {each.plan_id.hex(): each.name for each in await self._admin.plans()}
        schedules: dict[str, Schedule] = {}
        for plan_id in {spend.plan_id for spend in account.spends}:
            if (plan := await self._admin.plan(bytes.fromhex(plan_id))) is not None:
                schedules[plan_id] = plan.window
        key = len(account.spends), account.limits  # spends are only ever added
        if self._history is None or self._history[0] != key:
            self._history = key, await self._runtime.blocking(_history, account, names, schedules)
        own = [each for each in account.spends if each.plan_id == self._plan.hex_id]
        charged = [each.window for each in own if each.window is not None]
        first = max(
            max(charged, default=-(2**62)) + 1,
            min(states, default=newest[0][0] + 1 if newest else self._plan.window.index_at(self._runtime.now_ms())),
        )
        kind = self._plan.window.kind
        spend = spend_of(self._plan, kind=kind, window=None if kind == CUMULATIVE else first)
        left = await self._runtime.blocking(account.affordable, spend)
        last = first + left - 1 if left and kind != CUMULATIVE else None
        return LedgerHistory(
            page,
            self._history[1],
            float(account.limits.epsilon),
            left,
            last,
            None if last is None else self._plan.window.end_ms(last),
            len(own) < len(account.spends),
        )

    # --------------------------------------------------------------------------------------------------------- tokens

    @property
    def _is_per_client(self) -> bool:
        """Whether single clients may be shown: in secure and local plans nothing is shown by client."""
        return self._plan.privacy.mode == "central"

    async def _token_list(self) -> TokenList:
        if self._tokens is None:
            return TokenList((), 0, self._is_per_client, "This service has no file of tokens.")
        await self._tokens.look()
        now_ms, table = self._runtime.now_ms(), self._tokens.table
        shown = [each for each in table if self._is_per_client or not _is_client(each)]
        listed = [
            TokenShown(
                *(each.id, each.name, [scope.value for scope in Scope if scope in each.scopes]),
                *(each.made_ms, each.expires_ms, not each.is_good(now_ms)),
            )
            for each in shown
        ]
        problem = "" if self._log is not None else _NO_LOG
        return TokenList(listed, len(table) - len(shown), self._is_per_client, problem)

    # -------------------------------------------------------------------------------------------------------- actions

    async def _check(self, action: Action) -> str:
        if self._log is None:
            raise ActionError(_NO_LOG)
        try:
            return await (self._check_window if action.what in {SEAL, RELEASE} else self._check_token)(action)
        except (WindowOrderError, TokenTableError) as error:
            raise ActionError(str(error)) from error

    async def _check_token(self, action: Action) -> str:
        if self._tokens is None:
            raise ActionError("this service has no file of tokens")
        now_ms, table = self._runtime.now_ms(), self._tokens.table
        if action.what == ISSUE:
            self._adding(self._issued(action), now_ms)(table)
            lasts = "does not expire" if action.days is None else f"is valid for {action.days:,} days"
            return f"A token for {action.name} with the scope {', '.join(action.scopes)}; it {lasts}. It is shown once."
        removing(action.id)(table)
        entry = table.get(action.id)
        assert entry is not None, "else removing would have refused it"
        whose = entry.name if self._is_per_client or not _is_client(entry) else "a device"
        return (
            f"The token {action.id} of {whose} is refused from then on, its open streams are closed, and its sessions "
            "of this page end. This cannot be undone; a new token can be issued."
        )

    async def _check_window(self, action: Action) -> str:
        window = action.window
        assert window is not None, "of these actions"
        states = await self._admin.unfinished()
        if window not in states:
            raise ActionError(f"window {window} has its outcome already, or was never open")
        book = WindowBook(states)
        if action.what == SEAL and states[window] is WindowState.SEALED:
            raise ActionError(f"window {window} is sealed already")
        if action.what == RELEASE:
            book.check_outcome(window)
            charged = ""
            if self._plan.privacy.mode == "central" and self._plan.window.kind != CUMULATIVE:
                spend = spend_of(self._plan, kind=self._plan.window.kind, window=window)
                cost = spend.loss.cost(self._plan.limits.delta)
                charged = "" if cost is None else f", charged to the ledger ({cost_text(cost)})"
            return (
                f"The outcome of window {window} is drawn{charged} and published, and what was collected in it is "
                "erased. This cannot be undone."
            )
        book.check_seal(window)
        if not action.early:
            book.check_over(window, self._plan.window, self._runtime.now_ms())
            return f"Window {window} is closed: nothing counts in it from then on. This cannot be undone."
        return (
            f"Window {window} is closed before its time: what devices still send to it is late, and is lost unless the "
            'plan has late = "next". This cannot be undone.'
        )

    async def _carried(self, action: Action, holder: Holder) -> Done:
        """Does an action in a task of its own, which nobody's leaving cancels."""
        ended: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            try:
                done = await self._logged(action, holder)
            except Exception as error:  # noqa: BLE001  raised where the result is awaited
                if not ended.done():
                    ended.set_exception(error)
            else:
                if not ended.done():
                    ended.set_result(done)

        task = self._runtime.spawn(carry(), "operator action")
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)
        return await ended

    async def _logged(self, action: Action, holder: Holder) -> Done:
        if self._log is None:
            raise ActionError(_NO_LOG)
        id = self._entropy.read(_ID_BYTES).hex()
        entry = AuditEntry(id, 0, holder.name, holder.proof, action.what, self._about(action), BEGUN)
        try:
            await self._append(self._log, entry)
        except AuditError as error:
            raise ActionError(f"nothing was done: {error}") from error
        try:
            async with self._on_windows if action.what in {SEAL, RELEASE} else self._on_tokens:
                await self._check(action)  # again: another operator, or the releaser, may have been faster
                done = await self._do(action)
        except HushsumError as error:
            text = str(error)
            is_logged = await self._end(self._log, replace(entry, outcome=FAILED, detail=text))
            raise ActionError(text if is_logged else f"{text}; the audit log could not be written") from error
        except Exception as error:
            # Its words may hold anything.
            await self._end(self._log, replace(entry, outcome=FAILED, detail=type(error).__name__))
            raise
        is_logged = await self._end(self._log, replace(entry, outcome=DONE, detail=done.text))
        return done if is_logged else replace(done, warning="It was done, and the audit log could not be written.")

    async def _end(self, log: AuditLog, entry: AuditEntry) -> bool:
        """Writes how an action ended; whether that worked."""
        _journal.info("operator action", what=entry.what, outcome=entry.outcome)
        try:
            await self._append(log, entry)
        except AuditError as error:
            _journal.error("audit log not written", error=str(error))
            return False
        return True

    async def _append(self, log: AuditLog, entry: AuditEntry) -> None:
        async with self._writing:
            await self._runtime.blocking(log.append, replace(entry, at_ms=self._runtime.now_ms()))

    async def _audit(self) -> tuple[str, Sequence[AuditShown]]:
        if self._log is None:
            return "", ()
        async with self._writing:
            found = await self._runtime.blocking(self._log.newest)
        return str(self._log.path), [
            AuditShown(each.at_ms, each.who, each.token, each.what, each.about, each.outcome, each.detail)
            for each in found
        ]

    def _about(self, action: Action) -> dict[str, str]:
        """What an action is done to, for the log: no client's name in plans that show nothing by client."""
        if action.what in {SEAL, RELEASE}:
            early = {"early": "yes"} if action.early else {}
            return {"window": str(action.window), **early}
        if action.what == REVOKE:
            entry = None if self._tokens is None else self._tokens.table.get(action.id)
            is_told = entry is not None and (self._is_per_client or not _is_client(entry))
            return {"id": action.id, **({"name": entry.name} if entry is not None and is_told else {})}
        is_told = self._is_per_client or Scope.SUBMIT.value not in action.scopes
        expires = "never" if action.days is None else f"{action.days} days"
        return {**({"name": action.name} if is_told else {}), "scopes": ", ".join(action.scopes), "expires": expires}

    async def _do(self, action: Action) -> Done:
        if action.what == SEAL:
            window = await self._admin.seal(action.window, early=action.early)
            return Done(f"window {window} is sealed")
        if action.what == RELEASE:
            released = await self._admin.release(action.window)
            what = "withheld" if released.release.withheld else "released"
            ledger = f"ε spent {released.epsilon_spent}, left {released.epsilon_left}"
            return Done(f"window {released.release.window} is {what}; {ledger}")
        if self._tokens is None:
            raise ActionError("this service has no file of tokens")
        if action.what == REVOKE:
            await self._change(removing(action.id))
            return Done(f"token {action.id} is revoked")
        issued = self._issued(action)
        await self._change(self._adding(issued, self._runtime.now_ms()))
        return Done(f"token {issued.entry.id} is issued", issued.text)

    def _issued(self, action: Action) -> IssuedToken:
        now_ms = self._runtime.now_ms()
        expires_ms = None if action.days is None else now_ms + action.days * _DAY_MS
        scopes = [Scope(each) for each in action.scopes]
        return issue(self._entropy, action.name, scopes, now_ms=now_ms, expires_ms=expires_ms)

    def _adding(self, issued: IssuedToken, now_ms: int) -> Callable[[TokenTable], TokenTable]:
        """A change that adds a token; where clients are not shown, its refusal names nobody: the log has its text."""
        change = adding([issued], now_ms)

        def added(table: TokenTable) -> TokenTable:
            try:
                return change(table)
            except TakenNameError:
                if self._is_per_client:
                    raise
            raise TakenNameError("this name already has a token: revoke it first")

        return added

    async def _change(self, change: Callable[[TokenTable], TokenTable]) -> None:
        path = self._config.tokens
        assert self._tokens is not None, "checked before"
        assert path is not None, "there is a file of tokens"
        try:
            await self._runtime.blocking(partial(change_table, path, change))
        except OSError as error:
            raise ActionError(f"the token file {path} cannot be changed: {error.strerror}") from error
        await self._tokens.look()


class _NextWindows(NamedTuple):
    """The windows that come first; None: there is none.

    Attributes:
        to_seal: The next to be sealed.
        to_release: The next to be released.
        without_outcome: The oldest without an outcome.
    """

    to_seal: int | None
    to_release: int | None
    without_outcome: int | None


_NO_LOG: Final = "actions need the setting data: the audit log is a file in that directory"


def _is_client(entry: TokenEntry) -> bool:
    """Whether a token is a device's, whose name is its client id."""
    return Scope.SUBMIT in entry.scopes


def _ranked(samples: Mapping[tuple[str, str], int], metric: str) -> tuple[tuple[str, int], ...]:
    """The samples of a metric that are not 0, the largest first."""
    found = [(label, value) for (name, label), value in samples.items() if name == metric and value]
    return tuple(sorted(found, key=lambda each: (-each[1], each[0])))


def _history(account: Account, names: Mapping[str, str], schedules: Mapping[str, Schedule]) -> tuple[SpendEntry, ...]:
    """The ledger after each of at most :data:`SPENDS_SHOWN` spends. Call it in a worker thread."""
    spends = account.spends
    number = min(len(spends), SPENDS_SHOWN)
    chosen = sorted({round(at * (len(spends) - 1) / max(number - 1, 1)) for at in range(number)})
    so_far, done, at_ms = Account(account.limits), 0, None
    entries = []
    for at in chosen:
        so_far = so_far.recorded(*spends[done : at + 1])
        for spend in spends[done : at + 1]:
            at_ms = _end_of(spend, schedules, at_ms)
        done = at + 1
        entries.append(_entry(spends[at], so_far, at_ms, names))
    return tuple(entries)


def _end_of(spend: Spend, schedules: Mapping[str, Schedule], before_ms: int | None) -> int | None:
    schedule = schedules.get(spend.plan_id)
    if schedule is None or spend.window is None:
        return before_ms
    end_ms = schedule.end_ms(spend.window)
    return end_ms if before_ms is None else max(before_ms, end_ms)


def _entry(spend: Spend, account: Account, at_ms: int | None, names: Mapping[str, str]) -> SpendEntry:
    alone = spend.loss.cost(account.limits.delta) if spend.events else None
    text = "nothing" if not spend.events else "no finite ε" if alone is None else cost_text(alone)
    cost = account.cost
    return SpendEntry(
        at_ms,
        names.get(spend.plan_id, spend.plan_id[:16]),
        spend.window,
        spend.kind,
        text,
        math.nan if cost is None else float(cost.epsilon),
        "none" if cost is None else numeral(cost.epsilon, up=True),
    )
