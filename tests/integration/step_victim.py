"""The inner half of a service on Kafka and PostgreSQL, which releases windows and kills itself at a chosen step.

``python -m tests.integration.step_victim JSON``, with the fields of :class:`Life`. It prints a line for each outcome
that it has drawn, and at the end one for each step that it has taken.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Final, NoReturn

from typing_extensions import override

from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import ReservedStep, SealedWindow
from aggregator.release import releaser as releasing
from aggregator.release.kafka_receipts import ReceiptsTopic
from aggregator.release.releaser import Releaser, compute_step
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store
from aggregator.workers.pool import WorkerPool
from hushsum.entropy import KEY_BYTES, OsEntropy
from hushsum.plan import Plan
from tests.aggregator.deltas import cumulative_plan
from tests.aggregator.disk_site import LOG_STEPS, PARTITIONS, RECEIPTS_STEPS, SETTINGS, STORE_STEPS
from tests.doubles import RecordingObserver, Steps

COUNTERS: Final = 200
DRAW: Final = "compute_step"
STARTING: Final = ("ReceiptsTopic.begin", "Store.bind_receipts")  # taken once, before any window
_LEASE_S: Final = 0.5  # nobody else is there, and the next life waits for its end
_DELTAS: Final = {"tree": "0", "buffers": "0.000001"}


def plan_of(name: str, horizon: int) -> Plan:
    return cumulative_plan(horizon=horizon, counters=COUNTERS, delta=_DELTAS[name])


@dataclass(frozen=True)
class Life:
    """What one process does.

    Attributes:
        plan: Name of the plan.
        horizon: Of the plan.
        dsn: Of the database.
        bootstrap: Of the broker.
        prefix: Of its topics.
        window: The last window that it releases; the step to die at is one of this window's.
        fatal: The step, ``Port.method`` or :data:`DRAW`; empty: it lives.
        number: Which of these.
        after: Whether it dies when the step has taken effect.
        from_start: Whether the step may also be one of completing what an earlier life left.
        redraws: A planted mistake: noise is drawn anew in each life.
    """

    plan: str
    horizon: int
    dsn: str
    bootstrap: str
    prefix: str
    window: int
    fatal: str = ""
    number: int = 1
    after: bool = False
    from_start: bool = False
    redraws: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.integration.step_victim", json.dumps(asdict(self))]


class DeadlySteps(Steps):
    """Kills the process at a step, once it counts."""

    def __init__(self, life: Life) -> None:
        super().__init__(after=life.after)
        self._life, self._counts, self._seen = life, life.from_start, 0

    def begin(self) -> None:
        """From now on steps count."""
        self._counts = True

    def draw(self, sealed: SealedWindow, window: int, reserved: ReservedStep) -> tuple[bytes, bytes]:
        """In place of the releaser's: tells what was drawn, before anything is stored."""
        fatal = self._next(DRAW)
        if fatal and not self._life.after:
            self.die(DRAW)
        if self._life.redraws:
            reserved = reserved._replace(key=os.urandom(KEY_BYTES))
        data, state = compute_step(sealed, window, reserved)
        say("drawn", window, hashlib.sha256(data).hexdigest(), hashlib.sha256(state).hexdigest())
        if fatal:
            self.die(DRAW)
        return data, state

    @override
    def die(self, name: str) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")

    @override
    def _next(self, name: str) -> bool:
        if self._counts:
            self.names.append(name)
            self._seen += name == self._life.fatal
        return self._counts and name == self._life.fatal and self._seen == self._life.number


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  the parent reads this


async def live(life: Life) -> None:
    """Completes what earlier lives left, and releases window after window."""
    plan, runtime, observer, steps = (
        plan_of(life.plan, life.horizon),
        SystemRuntime(threads=2),
        RecordingObserver(),
        DeadlySteps(life),
    )
    releasing.compute_step = steps.draw
    settings = KafkaSettings(life.bootstrap, life.prefix)
    store = Store(await PostgresDatabase.open(PostgresSettings(life.dsn, pool=4), runtime))
    made = await store.receipts_mark() is not None
    marks = {partition: mark.position for partition, mark in (await store.fold_marks(plan.id)).items()}
    log = await KafkaLog.open(settings, plan, PARTITIONS, PlainMessages(), runtime, observer, marks)
    receipts = await ReceiptsTopic.open(settings, runtime, OsEntropy(), observer, made=made)
    while (fence := await store.acquire_lease(plan.id, "victim", "", _LEASE_S)) is None:  # noqa: ASYNC110  the database tells nobody
        await asyncio.sleep(_LEASE_S / 10)
    counted_log, counted_store = steps.around(log, *LOG_STEPS), steps.around(store, *STORE_STEPS)
    workers = WorkerPool(plan, counted_log, counted_store, runtime, observer, SETTINGS)
    releaser = Releaser(
        plan,
        fence,
        log=counted_log,
        store=counted_store,
        receipts=steps.around(receipts, *RECEIPTS_STEPS),
        folds=workers,
        entropy=OsEntropy(),
        runtime=runtime,
        observer=observer,
    )
    await workers.start()
    await releaser.start()
    for window in sorted(window for window in await store.unfinished(plan.id) if window <= life.window):
        if window == life.window:
            steps.begin()
        await releaser.seal(window, early=True)
        await releaser.release(window)
    say("steps", *steps.names)
    await workers.stop()
    await receipts.close()
    await log.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(live(Life(**json.loads(sys.argv[1]))))
