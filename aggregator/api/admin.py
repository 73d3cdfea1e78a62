"""The service Administration: status, windows, ledger, and manual seals and releases."""

from collections.abc import Mapping, Sequence
from typing import Final

from aggregator.api.calls import Call, Handler, Methods
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import Log
from aggregator.model import Lease, Scope
from aggregator.observability.metrics import Metrics
from aggregator.release.catalog import info_of
from aggregator.release.leader import Leadership
from aggregator.store.store import Store
from aggregator.windows import WindowState
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import CUMULATIVE
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.statement import account_told
from hushsum.releases import spend_of
from hushsum_proto import convert_admin
from hushsum_proto.messages import FoldStatus, LedgerPage, PlanInfo, Released, ServiceStatus, WindowsPage
from hushsum_proto.v1 import wire_pb2 as pb

LAGS_SHOWN: Final = 64  # each is a question to the log
WINDOWS_SHOWN: Final = 100


class Admin:
    """The operator's view of one plan: the service's methods, for callers with the scope admin, and what they do.

    ``window_tracker`` has the windows that this process's gateway knows; None where there is no gateway.
    """

    def __init__(
        self,
        plan: Plan,
        role: str,
        *,
        log: Log,
        store: Store,
        metrics: Metrics,
        leadership: Leadership,
        window_tracker: WindowTracker | None,
    ) -> None:
        self._plan = plan
        self._role = role
        self._log = log
        self._store = store
        self._metrics = metrics
        self._leadership = leadership
        self._window_tracker = window_tracker

    def add_to(self, methods: Methods) -> Handler:
        admin = (Scope.ADMIN,)
        methods.unary("GetStatus", pb.StatusRequest, self.get_status, scopes=admin)
        methods.unary("ListPlans", pb.ListPlansRequest, self.list_plans, scopes=admin)
        methods.unary("ListWindows", pb.ListWindowsRequest, self.list_windows, scopes=admin)
        methods.unary("GetLedger", pb.GetLedgerRequest, self.get_ledger, scopes=admin)
        methods.unary("SealWindow", pb.SealWindowRequest, self.seal_window, scopes=admin)
        methods.unary("ReleaseWindow", pb.ReleaseWindowRequest, self.release_window, scopes=admin)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Administration"].methods_by_name)

    async def get_status(self, call: Call, _: pb.StatusRequest) -> pb.StatusReply:
        call.admit(Scope.ADMIN)
        return convert_admin.status_to_wire(await self.status())

    async def list_plans(self, call: Call, _: pb.ListPlansRequest) -> pb.ListPlansReply:
        call.admit(Scope.ADMIN)
        return convert_admin.plans_to_wire(await self.plans())

    async def list_windows(self, call: Call, request: pb.ListWindowsRequest) -> pb.ListWindowsReply:
        call.admit(Scope.ADMIN)
        asked = convert_admin.windows_request_from_wire(request)
        return convert_admin.windows_to_wire(await self.windows(*asked))

    async def get_ledger(self, call: Call, request: pb.GetLedgerRequest) -> pb.GetLedgerReply:
        call.admit(Scope.ADMIN)
        asked = convert_admin.ledger_request_from_wire(request)
        return convert_admin.ledger_to_wire(await self.ledger(*asked))

    async def seal_window(self, call: Call, request: pb.SealWindowRequest) -> pb.SealWindowReply:
        call.admit(Scope.ADMIN)
        window = await self.seal(None if request.oldest else request.window, early=request.early)
        return pb.SealWindowReply(window=window)

    async def release_window(self, call: Call, request: pb.ReleaseWindowRequest) -> pb.ReleaseWindowReply:
        call.admit(Scope.ADMIN)
        released = await self.release(None if request.oldest else request.window)
        return convert_admin.released_to_wire(released)

    async def status(self) -> ServiceStatus:
        newest = await self._store.newest_windows(self._plan.id, None, WINDOWS_SHOWN)
        unfinished = await self._store.unfinished(self._plan.id)
        account = await self.account()
        limits, spent, left = account.limits, account.spent, account.left
        lease = await self.lease()
        return ServiceStatus(
            plan_id=self._plan.id,
            plan_name=self._plan.name,
            partitions=self._log.partitions,
            windows=tuple(reversed(newest)),
            epsilon_total=numeral(limits.epsilon, up=False),
            epsilon_spent=numeral(spent.epsilon, up=True),
            epsilon_left=numeral(left.epsilon, up=False),
            releasing_stopped=_stopped_text(
                await self._leadership.stopped(), sealed=[*unfinished.values()].count(WindowState.SEALED)
            ),
            delta_total=numeral(limits.delta, up=False),
            delta_spent=numeral(spent.delta, up=True),
            delta_left=numeral(left.delta, up=False),
            statement=self._statement(account, newest),
            role=self._role,
            releaser="" if lease is None else lease.owner,
            releaser_address="" if lease is None else lease.address,
            folds=await self._folds(),
        )

    async def lease(self) -> Lease | None:
        """The lease of the process that releases; None: none does now."""
        lease = await self._store.lease(self._plan.id)
        return None if lease is None or lease.left_s < 0 else lease  # it may have run out

    async def account(self) -> Account:
        """The ledger of this plan's population."""
        return await self._store.account(self._plan.privacy.population)

    async def unfinished(self) -> Mapping[int, WindowState]:
        """Windows without an outcome."""
        found = await self._store.unfinished(self._plan.id)
        return {window: WindowState(state) for window, state in found.items()}

    async def unsealed_partitions(self, window: int) -> list[int]:
        """The partitions that have not stored their sealed counters of a window."""
        marks = await self._store.fold_marks(self._plan.id)
        return sorted(partition for partition, mark in marks.items() if mark.closed_through < window)

    async def plan(self, plan_id: bytes) -> Plan | None:
        """A plan of the store."""
        return await self._store.load_plan(plan_id)

    async def _folds(self) -> tuple[FoldStatus, ...]:
        folds = []
        for partition, mark in sorted((await self._store.fold_marks(self._plan.id)).items()):
            lag = None
            if partition < LAGS_SHOWN:
                lag = self._metrics.lag(mark.position, await self._log.end(partition))
            folds.append(FoldStatus(partition, mark.position, lag, self._metrics.stopped.get(partition, "")))
        return tuple(folds)

    async def plans(self) -> list[PlanInfo]:
        """Every plan of the store, in order of registration."""
        return [
            PlanInfo(*registered, collected_here=registered.plan_id == self._plan.id)
            for registered in await self._store.plans()
        ]

    async def windows(self, before: int | None, limit: int) -> WindowsPage:
        """The newest windows of this plan, at most ``limit``; with ``before``, only older ones than that."""
        found = await self._store.newest_windows(self._plan.id, before, limit + 1)
        return WindowsPage(tuple(found[:limit]), more=len(found) > limit)

    async def ledger(self, skip: int, limit: int) -> LedgerPage:
        """The ledger of this plan's population, with at most ``limit`` spends after the ``skip`` newest."""
        newest = await self._store.newest_windows(self._plan.id, None, 1)
        account = await self.account()
        limits, spent, left, spends = account.limits, account.spent, account.left, account.spends
        return LedgerPage(
            population=limits.population,
            unit=limits.unit,
            relation=limits.relation,
            epsilon_total=numeral(limits.epsilon, up=False),
            epsilon_spent=numeral(spent.epsilon, up=True),
            epsilon_left=numeral(left.epsilon, up=False),
            delta_total=numeral(limits.delta, up=False),
            delta_spent=numeral(spent.delta, up=True),
            delta_left=numeral(left.delta, up=False),
            statement=self._statement(account, newest),
            spends=spends[::-1][skip : skip + limit],
            spends_total=len(spends),
        )

    async def seal(self, window: int | None, *, early: bool) -> int:
        """Closes a window (None: the oldest open one) and returns it, once none of its counters can change.

        Raises:
            WindowOrderError: It was not open, an older one comes first, or it is not over and ``early`` is not set.
            RefusedError: Another process is the releaser, or none is now.
        """
        sealed = await self._leadership.do(lambda releaser: releaser.seal(window, early=early))
        if self._window_tracker is not None:
            await self._window_tracker.refresh()
        return sealed

    async def release(self, window: int | None) -> Released:
        """Draws the outcome of a sealed window (None: the oldest), or returns the stored one.

        Raises:
            WindowOrderError: It is not sealed, or an older one comes first.
            ReleasingStoppedError: The budget is spent, or the receipts do not belong to the store.
            RefusedError: Another process is the releaser, or none is now.
        """
        stored = await self._leadership.do(lambda releaser: releaser.release(window))
        account = await self.account()
        spent, left = account.spent.epsilon, account.left.epsilon
        return Released(info_of(stored), numeral(spent, up=True), numeral(left, up=False))

    def _statement(self, account: Account, newest: Sequence[tuple[int, str]]) -> str:
        """The ledger in plain words, and how many more windows of this plan it pays for."""
        kind = self._plan.window.kind
        window = newest[0][0] + 1 if newest else 1
        next_spend = spend_of(self._plan, kind=kind, window=None if kind == CUMULATIVE else window)
        return account_told(account, next_spend=next_spend)


def _stopped_text(why: str, sealed: int) -> str:
    """Why no outcome is taken, and how many windows wait: sealed windows are kept, not dropped."""
    if not why or not sealed:
        return why
    waiting = "1 sealed window is waiting" if sealed == 1 else f"{sealed} sealed windows are waiting"
    return f"{why} ({waiting} for release; accepted data is kept)"
