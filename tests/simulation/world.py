"""One run: everything is put together, operations happen, the world heals, and the books are compared."""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from aggregator.errors import AggregatorError
from aggregator.release.lost import mark_lost
from aggregator.release.receipts import Receipt
from aggregator.release.receipts_copy import CopiedReceipts
from aggregator.store.transaction import run_to_end
from aggregator.windows import WindowState
from tests.simulation.hosts import by_hand
from tests.simulation.log import SYNC_S
from tests.simulation.loop import StuckError, VirtualLoop
from tests.simulation.operations import BUSY_S, STEPS, Op, Schedule
from tests.simulation.stage import Planted, Stage
from tests.simulation.weather import Ambush

NUMBERS: Final = 256  # counters: deltas of a run
HEALED_S_MAX: Final = 120.0  # by then everything must be done
_STORM_S: Final = 2.0
_COPY_S: Final = 1.0  # between two backups of the store
_RESTORED_S: Final = 15.0  # for whatever a store that was set back may still do
_RESTART_S: Final = 1.0
_STARTED_S: Final = 0.5
_DONE: Final = frozenset({WindowState.RELEASED, WindowState.WITHHELD})


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    lost: int
    doubled: int
    wrong: tuple[str, ...]
    steps: int
    counted: int

    @property
    def failed(self) -> bool:
        """Whether anything was found."""
        return bool(self.lost or self.doubled or self.wrong)


def run(schedule: Schedule, planted: Planted | None = None) -> Result:
    """Runs a schedule to its end; the same one always comes to the same."""
    return run_world(World(schedule, planted))


def run_world(world: "World") -> Result:
    """Runs a world to its end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False)
    books = world.books
    try:
        world.loop.run(world.main())
    except StuckError as error:
        books.say(f"stuck: {error}")
    for found in (*world.loop.complaints, *world.loop.unseen()):
        books.say(found)
    counted = sum(int(each.sketch.counters.sum()) for each in books.sums.values())
    result = Result(len(books.lost), len(books.doubled), tuple(books.wrong), world.loop.steps, counted)
    world.close()
    return result


class World(Stage):
    """What happens on a stage, in its order."""

    async def main(self) -> None:
        """Everything that happens, one thing after the other."""
        self._coordinator.start()
        for host in self._hosts.values():
            host.start()
        for device in self._devices.values():
            device.start(self.loop, self._schedule.seed)
        self.loop.call_world(_RESTART_S, self._restart)
        if any(op.what == "restore" for op in self._schedule.ops):
            self._keep_copy()
        for op in self._schedule.ops:
            await _until(self.loop, op.at_s)
            self._do(op)
        await _until(self.loop, BUSY_S)
        self._heal()
        await self._finish()

    async def _finish(self) -> None:
        began_s = self.loop.time()
        while not self._is_done():
            if self.books.restored and self.loop.time() - began_s > _RESTORED_S:
                break
            if self.loop.time() - began_s > HEALED_S_MAX:
                self.books.say(f"not done {HEALED_S_MAX:g} s after everything was healed: {self._left()}")
                break
            await asyncio.sleep(0.5)
        plan = self.books.plan
        account = run_to_end(self._inner.account(plan.privacy.population))
        self.books.audit(run_to_end(self._inner.windows(plan.id)), account)

    def _is_done(self) -> bool:
        if self.books.restored:
            return False  # nothing tells when
        if any(device.spool.unanswered() for device in self._devices.values()):
            return False
        states = self._states()
        windows = {window for sent in self.books.sent.values() for window in sent.windows}
        if any(states.get(window) == WindowState.SEALED for window in states):
            return False
        unanswered = {window for window in windows if states.get(window) in (WindowState.OPEN, WindowState.CLOSING)}
        return not unanswered and not run_to_end(self._inner.unpublished(self.books.plan.id))

    def _left(self) -> str:
        spooled = sum(len(device.spool.unanswered()) for device in self._devices.values())
        states = [f"{window} {state}" for window, state in self._states().items() if state != WindowState.OPEN]
        return f"{spooled} deltas have no answer; windows that are not open: {', '.join(states)}"

    # ---------------------------------------------------------------------------------------------------- what happens

    def _do(self, op: Op) -> None:
        getattr(self, f"_do_{op.what}")(op)

    def _do_add(self, op: Op, offset: int = 0) -> None:
        count = min(int(op.amount), NUMBERS - self._next_number)
        numbers = range(self._next_number, self._next_number + count)
        self._next_number += count
        self._devices[op.who].add(numbers, offset)

    def _do_add_before(self, op: Op) -> None:
        """For the window before: late, or nearly so."""
        self._do_add(op, -1)

    def _do_kill(self, op: Op) -> None:
        host = self._hosts.get(op.who)
        if host is not None and host.process is not None and host.process.alive:
            host.process.light(int(op.amount), host.die)

    def _do_kill_device(self, op: Op) -> None:
        process = self._devices[op.who].process
        if process is not None and process.alive:
            process.light(int(op.amount), lambda: self._kill_device(op.who))

    def _kill_device(self, name: str) -> None:
        process = self._devices[name].process
        if process is not None:
            self.loop.kill(process)
            self._network.lose(process.name)

    def _do_pause(self, op: Op) -> None:
        process = self._hosts[op.who].process
        if process is not None and process.alive:
            self.loop.pause(process)
            self.loop.call_world(op.amount, self.loop.resume, process)

    def _do_drop(self, op: Op) -> None:
        weather = self.lines[op.who].weather
        setattr(weather, op.what, op.amount)
        self.loop.call_world(_STORM_S, setattr, weather, op.what, 0.0)

    _do_lose = _do_slow = _do_drop

    def _do_full(self, op: Op) -> None:
        if op.who in self._sinks and op.at_s < _STARTED_S:
            return  # a first start that cannot make the receipts releases nothing until an operator starts it again
        weather = self.lines[op.who].weather
        weather.full = True
        self.loop.call_world(_STORM_S * op.amount, setattr, weather, "full", False)

    def _do_slow_sync(self, op: Op) -> None:
        self._log.sync_s = op.amount

    def _do_power(self, op: Op) -> None:
        """Disks grow slow, then the machines of the log lose their power."""
        self._log.sync_s = op.amount

        def lose() -> None:
            self._log.lose_power()
            self._log.sync_s = SYNC_S

        self.loop.call_world(op.amount, lose)

    def _do_cut(self, op: Op) -> None:
        self._cut(op.who, cut=True)
        self.loop.call_world(op.amount, lambda: self._cut(op.who, cut=False))

    def _cut(self, name: str, *, cut: bool) -> None:
        """From clients, log, store and coordinator; a single process has the last three in itself."""
        change = set.add if cut else set.discard
        change(self._network.cut, name)
        if self._schedule.cluster:
            change(self._coordinator.cut, name)
            for line in self.lines.values():
                change(line.cut, name)

    def _do_hold(self, op: Op) -> None:
        """The caller sleeps through its session or its lease, and goes on in the middle of this very call."""
        self.lines["store"].ambushes[self._call(op)] = Ambush(hold_s=op.amount)

    def _do_lose_reply(self, op: Op) -> None:
        """The database commits, and nobody is told."""
        self.lines["store"].ambushes[self._call(op)] = Ambush(lose=True)

    def _do_move(self, op: Op) -> None:
        """Partitions move while this call is on its way."""
        self.lines["store"].ambushes[self._call(op)] = Ambush(then=self._coordinator.shuffle)

    def _call(self, op: Op) -> str:
        return STEPS.get(op.who, op.who) if self._schedule.cumulative else op.who

    def _do_restore(self, op: Op) -> None:
        """The service is stopped, and its store set back to what it was so many seconds before; or also the log.

        With a sink of receipts, all of one back-up is restored, and the other sink is what survived. Once a sink is
        set back or lost, the other one is left alone: nothing finds out what is lost with both.
        """
        older = [copy for copy in self._copies if copy.at_s <= self.loop.time() - op.amount]
        if not older or (op.who in self._sinks and self._set_back - {op.who}):
            return
        self._stop_all()
        self._connection().deserialize(older[-1].store)
        if op.who:
            self._log.restore(older[-1].log)
            self.books.log_restored = True
        if (sink := self._sinks.get(op.who)) is not None:
            self._set_back.add(op.who)
            sink.set_back(min(older[-1].lines[op.who], len(sink.kept)))
        self._note_set_back()

    def _do_lose_sink(self, op: Op) -> None:
        """The service is stopped, and a sink of receipts is gone."""
        if self._set_back - {op.who}:
            return
        self._stop_all()
        self._set_back.add(op.who)
        self._sinks[op.who].set_back(0)
        self._note_set_back()

    def _do_mark_lost(self, _: Op) -> None:
        """The service is stopped for a lease's time, and an operator gives up outcomes that the store has lost."""
        self._stop_all()
        self._connection().execute("UPDATE leases SET until_ms = 0")
        receipts = CopiedReceipts(*(sink.here for sink in self._sinks.values()))
        try:
            fence = run_to_end(self._inner.acquire_lease(self.books.plan.id, "operator", "", 0))
            assert fence is not None
            windows = run_to_end(mark_lost(self.books.plan, self._inner, receipts, fence=fence))
        except AggregatorError:
            return  # a sink is lost, or a sequence cannot go on
        if windows:
            self.books.marked += len(windows)
            self._note_set_back()

    def _stop_all(self) -> None:
        for host in self._hosts.values():
            host.die()
        for line in self.lines.values():
            line.break_off()

    def _note_set_back(self) -> None:
        """Tells the books whether anything is missing that the rest can tell."""
        plan_id = self.books.plan.id
        outcomes = run_to_end(self._inner.outcomes(plan_id))
        held = {(plan_id, each.kind, each.window) for each in outcomes}
        published = {(plan_id, each.kind, each.window) for each in outcomes if each.published}
        first, copy = (
            {each.held.key for each in sink.kept if isinstance(each.held, Receipt)} for sink in self._sinks.values()
        )
        is_bound = run_to_end(self._inner.receipts_mark()) is not None
        is_gone = is_bound and not all(sink.kept for sink in self._sinks.values())
        is_short = not copy <= first or not published <= copy
        # What was in the first sink alone, and is there no more, was of an outcome that nobody has seen.
        self.books.set_back(missing=is_gone or is_short or not self.books.copies.keys() | first <= held)

    def _do_skew(self, op: Op) -> None:
        self._hosts[op.who].set_clock(int(op.amount))

    def _do_breaks(self, op: Op) -> None:
        self._network.breaks = op.amount

    def _do_copies(self, op: Op) -> None:
        self._network.copies = op.amount

    def _do_rebalance(self, _: Op) -> None:
        self._coordinator.shuffle()

    def _do_stop(self, op: Op) -> None:
        self._hosts[op.who].stop()

    def _do_seal(self, op: Op) -> None:
        by_hand(self._hosts[op.who], self.loop, lambda releaser: releaser.seal(early=True))

    def _do_release(self, op: Op) -> None:
        by_hand(self._hosts[op.who], self.loop, lambda releaser: releaser.release())

    def _do_look(self, _: Op) -> None:
        """An analyst looks at everything that is published."""
        plan_id = self.books.plan.id
        for each in run_to_end(self._inner.outcomes(plan_id)):
            outcome = run_to_end(self._inner.outcome(plan_id, each.kind, each.window))
            if outcome is not None:
                self.books.published(each.window, outcome)


async def _until(loop: VirtualLoop, at_s: float) -> None:
    if at_s > loop.time():
        await asyncio.sleep(at_s - loop.time())
