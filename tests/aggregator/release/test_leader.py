"""One releaser at a time: a lease that moves in the middle of anything leaves one outcome, one charge, one receipt."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import pytest

from aggregator.api.admin import Admin
from aggregator.errors import PartitionStoppedError, ReceiptsError, RefusedError
from aggregator.observability.metrics import Metrics
from aggregator.release.leader import Leadership
from aggregator.release.releaser import Releaser
from aggregator.workers.remote import RemoteFolds
from hushsum.entropy import ReplayableEntropy
from hushsum.privacy.events import TUMBLING
from hushsum_proto.answers import ServiceReason
from tests.aggregator.cluster import FIRST, Cluster
from tests.aggregator.deltas import tally_plan
from tests.doubles import ManualRuntime, RecordingObserver
from tests.hooks import Held, Hooks, reply_lost, unreachable

PLAN = tally_plan(counters=1000, total_epsilon=10)
WINDOWS = (FIRST, FIRST + 1)
LEASE_S = 9.0


class Office:
    """A process that releases whenever no other does; the test may pause it at any call."""

    def __init__(
        self, cluster: Cluster, name: str, *, automatic: bool = False, runtime: ManualRuntime | None = None
    ) -> None:
        self.hooks, self.observer = Hooks(), RecordingObserver()
        runtime = runtime or cluster.runtime  # one of its own stands still while the test does not move it
        store, log = self.hooks.around(cluster.store), self.hooks.around(cluster.log)
        self.folds = RemoteFolds(cluster.plan, store, runtime, self.observer)
        new_releaser = partial(
            Releaser,
            cluster.plan,
            log=log,
            store=store,
            receipts=self.hooks.around(cluster.receipts),
            folds=self.folds,
            entropy=ReplayableEntropy(name.encode()),
            runtime=runtime,
            observer=self.observer,
        )
        self.leadership = Leadership(
            cluster.plan,
            new_releaser,
            store=store,
            runtime=runtime,
            observer=self.observer,
            owner=name,
            lease_s=LEASE_S,
            automatic=automatic,
            address=f"{name}:7",
        )
        self.administration = Admin(
            cluster.plan,
            "releaser",
            log=cluster.log,
            store=store,
            metrics=Metrics(),
            leadership=self.leadership,
            window_tracker=None,
        )

    async def two_windows(self) -> None:
        """Everything that is to be done, from wherever it is."""
        for window in WINDOWS:
            await self.administration.seal(window, early=True)
            await self.administration.release(window)

    async def end(self) -> None:
        await self.leadership.stop()
        await self.folds.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(PLAN)
    await made.register(windows=2)
    await made.process([0])
    for window in WINDOWS:
        await made.send(3, window=window)
    yield made
    await made.end()


def pending(awaitable: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(awaitable)


async def opened(cluster: Cluster, name: str, *, automatic: bool = False) -> Office:
    office = Office(cluster, name, automatic=automatic)
    await office.leadership.start()
    await cluster.runtime.settle()
    return office


async def done(cluster: Cluster, call: "asyncio.Future[Any]", within_s: float = 60) -> Any:
    """Moves time until a call is done."""
    for _ in range(round(within_s)):
        if call.done():
            break
        await cluster.pass_time(1)
    return call.result()


async def check_all_is_well(cluster: Cluster, *offices: Office) -> None:
    """One outcome, one charge and one receipt a window, of the same digest; nobody was shown anything else."""
    outcomes = await cluster.store.outcomes(PLAN.id)
    assert [(each.window, each.published) for each in outcomes] == [(window, True) for window in WINDOWS]
    assert [spend.window for spend in (await cluster.store.account("")).spends] == [*WINDOWS]
    receipts = await cluster.receipts.read()
    assert [(window, digest) for _, _, window, digest, _ in receipts] == [
        (each.window, each.sha256) for each in outcomes
    ]
    shown = {(each.window, each.sha256) for office in offices for each in office.observer.releases}
    assert shown <= {(each.window, each.sha256) for each in outcomes}


# -------------------------------------------------------------------------------------------------------------- lease


async def test_one_process_releases_and_another_takes_over_when_it_stops(cluster: Cluster) -> None:
    first, second = await opened(cluster, "first"), await opened(cluster, "second")
    await cluster.pass_time(30)
    assert (first.leadership.leads, second.leadership.leads) == (True, False)
    await first.end()
    await cluster.pass_time(LEASE_S / 3 + 0.5)
    assert (first.leadership.leads, second.leadership.leads) == (False, True)
    assert (first.observer.leads, second.observer.leads) == ([True, False], [True])
    await second.end()


async def test_a_lease_is_renewed_while_a_long_draw_runs(cluster: Cluster) -> None:
    first, second = await opened(cluster, "first"), await opened(cluster, "second")
    drawing = Held()
    first.hooks.put("commit_outcome", drawing)
    call = pending(first.two_windows())
    await cluster.pass_time(100)
    assert drawing.arrived.is_set()
    assert (first.leadership.leads, second.leadership.leads) == (True, False)
    drawing.let_go()
    await done(cluster, call)
    await check_all_is_well(cluster, first, second)
    await first.end()
    await second.end()


async def test_a_renewal_that_fails_for_a_moment_is_tried_again(cluster: Cluster) -> None:
    office = await opened(cluster, "first")
    office.hooks.put("renew_lease", unreachable, reply_lost, unreachable)
    await cluster.pass_time(20)
    assert office.observer.leads == [True]
    assert [what for what, _ in office.observer.retries] == ["lease"] * 3
    await office.end()


@pytest.mark.parametrize("hang", [False, True], ids=["fails", "hangs"])
async def test_a_lease_that_cannot_be_renewed_ends_by_its_own_clock(cluster: Cluster, *, hang: bool) -> None:
    office = await opened(cluster, "first")
    office.hooks.put("renew_lease", *([Held()] if hang else [unreachable] * 100))
    office.hooks.put("acquire_lease", *[unreachable] * 100)
    call = pending(office.two_windows())
    seal = Held()
    office.hooks.put("append", seal)
    await cluster.pass_time(8)
    assert office.observer.leads == [True]
    await cluster.runtime.advance(1)
    assert not office.leadership.leads
    assert office.observer.leads == [True, False]
    with pytest.raises(RefusedError, match="no process holds the releaser lease: retry later"):
        await call
    await office.end()


async def test_who_releases_no_more_has_nothing_left_to_forget(cluster: Cluster) -> None:
    first = await opened(cluster, "first")
    forgetting = Held()
    first.hooks.put("forget", forgetting)
    call = pending(first.two_windows())
    await cluster.pass_time(5)
    assert forgetting.arrived.is_set()

    first.hooks.put("renew_lease", *[unreachable] * 100)
    first.hooks.put("acquire_lease", *[unreachable] * 100)
    await cluster.pass_time(LEASE_S + 1)
    assert first.observer.leads == [True, False]
    with pytest.raises(RefusedError):
        await call
    assert first.observer.pending == [f"window {FIRST}: the erasure was abandoned", ""]

    second = await opened(cluster, "second")
    await done(cluster, pending(second.two_windows()))
    await check_all_is_well(cluster, first, second)
    await first.end()
    await second.end()


# ----------------------------------------------------------------------------------------- taken over at every step

STEPS = [
    *["mark_closing", "append"],
    *["reserve_outcome", "commit_outcome", "write", "publish", "ask_to_forget", "forget"],
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_releaser_paused_past_its_lease_goes_on_after_another_has_released_and_changes_nothing(
    cluster: Cluster, step: str, *, after: bool
) -> None:
    own = ManualRuntime(cluster.runtime.now_ms())
    paused = Office(cluster, "paused", runtime=own)
    await paused.leadership.start()
    other, held = await opened(cluster, "other"), Held()

    async def and_then(call: Any) -> object:
        result = await call()
        await held(lambda: asyncio.sleep(0))
        return result

    paused.hooks.put(step, and_then if after else held)
    call = pending(paused.two_windows())
    for _ in range(4):
        await own.advance(0.5)
        await cluster.runtime.advance(0.5)
    assert held.arrived.is_set()
    await cluster.pass_time(2 * LEASE_S)  # for everybody but the paused one
    assert other.leadership.leads
    await done(cluster, pending(other.two_windows()))
    assert paused.observer.leads == [True]
    held.let_go()
    await own.settle(1000)
    assert paused.observer.leads == [True, False], "its next write says so, before its clock does"
    with pytest.raises(RefusedError, match="process other is the releaser: send the request to other:7"):
        await call
    assert not paused.leadership.leads
    await check_all_is_well(cluster, paused, other)
    await paused.end()
    await other.end()


@pytest.mark.parametrize("lost", [unreachable, reply_lost])
@pytest.mark.parametrize("step", [*STEPS, "acquire_lease", "unfinished", "outcomes", "unpublished"])
async def test_a_call_that_fails_for_a_moment_is_made_again_by_the_clock(
    cluster: Cluster, step: str, lost: Any
) -> None:
    office = Office(cluster, "first", automatic=True)
    office.hooks.put(step, lost, lost)
    await office.leadership.start()
    last_ms = PLAN.window.end_ms(WINDOWS[-1]) + PLAN.window.lateness_ms
    cluster.runtime._now_ms = last_ms  # both are due
    await cluster.pass_time(30)
    await check_all_is_well(cluster, office)
    assert office.observer.stops in ([], [""]) or step == "write"
    assert [each.window for each in office.observer.releases] == [*WINDOWS]
    await office.end()


# ----------------------------------------------------------------------------------------------------- administration


async def test_a_process_that_does_not_release_names_the_one_that_does(cluster: Cluster) -> None:
    first, second = await opened(cluster, "first"), await opened(cluster, "second")
    for call in (second.administration.seal(None, early=True), second.administration.release(None)):
        with pytest.raises(RefusedError, match="process first is the releaser: send the request to first:7") as caught:
            await call
        assert caught.value.refusal.reason is ServiceReason.UNAVAILABLE
        assert caught.value.refusal.retry
    await first.end()
    await second.end()


async def test_every_process_shows_why_releasing_has_stopped(cluster: Cluster) -> None:
    first, second = await opened(cluster, "first"), await opened(cluster, "second")
    assert (await second.administration.status()).releasing_stopped == ""

    async def full(_: object) -> object:
        raise ReceiptsError("no space left")

    first.hooks.put("write", *[full] * 3)
    with pytest.raises(ReceiptsError):
        await done(cluster, pending(first.two_windows()))
    await cluster.pass_time(LEASE_S / 3 + 0.5)
    own, others = [(await office.administration.status()).releasing_stopped for office in (first, second)]
    assert "window 100 is charged and drawn but not published yet: no space left" in own
    assert others == f"process first: {own}"
    await first.end()
    await cluster.pass_time(LEASE_S / 3 + 0.5)
    assert first.observer.stops[-1] == ""
    await done(cluster, pending(second.two_windows()))
    await check_all_is_well(cluster, first, second)
    await second.end()
    assert (await second.administration.status()).releasing_stopped == "no process holds the releaser lease"


async def test_a_caller_that_goes_away_takes_its_call_along(cluster: Cluster) -> None:
    office = await opened(cluster, "first")
    seal = Held()
    office.hooks.put("append", seal)
    call = pending(office.administration.seal(FIRST, early=True))
    await cluster.runtime.settle()
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await done(cluster, pending(office.two_windows()))
    await check_all_is_well(cluster, office)
    await office.end()


@pytest.mark.parametrize("error", [AssertionError("an invariant"), PartitionStoppedError("a fold of this process")])
async def test_what_it_cannot_go_on_after_ends_it(cluster: Cluster, error: Exception) -> None:
    office = Office(cluster, "first")

    async def broken(_: object) -> object:
        raise error

    office.hooks.put("outcomes", broken)
    await office.leadership.start()
    for ending in (office.leadership.ended(), office.leadership.led()):
        with pytest.raises(type(error), match=str(error)):
            await ending
    await office.end()


async def test_a_published_outcome_is_given_back_by_whoever_releases(cluster: Cluster) -> None:
    first = await opened(cluster, "first")
    await done(cluster, pending(first.two_windows()))
    await first.end()
    second = await opened(cluster, "second")
    given = await done(cluster, pending(second.administration.release(FIRST)))
    stored = await cluster.store.outcome(PLAN.id, TUMBLING, FIRST)
    assert stored is not None
    assert given.release.sha256 == stored.sha256
    await check_all_is_well(cluster, first, second)
    await second.end()
