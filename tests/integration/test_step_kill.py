"""A cumulative plan on Kafka and PostgreSQL, killed at every step of its outcomes: one sequence, drawn once.

A releaser is a process of its own, which SIGKILL ends before or after a step of a window's outcome; the next one
completes what it left, and is killed in the next window at the next step. Between two lives the database tells the key
of a reserved step, from which this process draws the outcome, too: the stored one has to have the same bytes.
"""

import asyncio
import hashlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.log.kafka.topic import entries_topic
from aggregator.model import NewEntry, SealedWindow
from aggregator.release.kafka_receipts import ReceiptsTopic
from aggregator.runtime import SystemRuntime
from aggregator.store.outcomes import _keyed
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store
from aggregator.store.transaction import Transaction
from hushsum import cumulative
from hushsum.comparison import _chernoff, _Noise
from hushsum.entropy import KeyedEntropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN
from hushsum.releases import Release, Series, spend_of
from hushsum.sketch import Sketch
from hushsum_proto.convert import entry_to_bytes
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.deltas import client_of, entry, tally
from tests.aggregator.disk_site import PARTITIONS
from tests.aggregator.kafka_logs import records_in
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.integration.step_victim import DRAW, STARTING, Life, plan_of
from tests.processes import ROOT

Counters = npt.NDArray[np.int64]
FALSE_ALARM: Final = 1e-6  # of all bounds on noise of one test together
DELTAS: Final = 16  # of a window, of neighbouring counters: once in 10^9 noise is 0 on all of them
LIFE_S: Final = 300.0
OF_A_WINDOW: Final = (
    *("Store.mark_closing", "KafkaLog.append", "Store.checkpoint", "Store.checkpoint"),
    *("Store.reserve_step", DRAW, "Store.commit_step", "ReceiptsTopic.write", "Store.publish"),
    *("Store.checkpoint", "Store.checkpoint", "KafkaLog.forget", "Store.forget"),
)


class Kill(NamedTuple):
    """The step to die at, and in which window."""

    window: int  # from 0 on
    fatal: str = ""
    number: int = 1
    after: bool = False
    from_start: bool = False  # else where the life has completed what it found


def every_step() -> Iterator[Kill]:
    """Before and after each: one step of a window; in the last two windows several attempts at one outcome."""
    for fatal in STARTING:
        yield from (Kill(0, fatal, after=after, from_start=True) for after in (False, True))
    window = 0
    for at, fatal in enumerate(OF_A_WINDOW):
        for after in (False, True):
            yield Kill(window, fatal, OF_A_WINDOW[: at + 1].count(fatal), after)
            window += 1
    for fatal, after in ((DRAW, True), (DRAW, False), ("Store.commit_step", False), (DRAW, True)):
        yield Kill(window, fatal, after=after)
    yield Kill(window + 1, "Store.commit_step", after=True)
    for fatal, after in (("ReceiptsTopic.write", True), ("Store.publish", False), ("Store.publish", True)):
        yield Kill(window + 1, fatal, after=after, from_start=True)
    yield Kill(window + 2)


def records_of(window: int) -> Counters:
    """Of the deltas of a window."""
    return np.arange(DELTAS) * 37 + 2000 + 13 * window


def exact_of(plan: Plan, window: int) -> Sketch:
    """Its exact counters."""
    sketch, records = Sketch(plan), records_of(window)
    sketch.counters[0, 0, :DELTAS] = records
    if len(sketch.counts):
        sketch.counts[0] = int(records.sum()) * plan.privacy.mechanism.count_scale
    return sketch


@dataclass(frozen=True)
class Drawn:
    """An outcome as its reservation decides it: digests of the release and of the state after it."""

    release: str
    state: str


class Run:
    """A plan's windows on one broker and in one database, and all that was ever seen of their outcomes."""

    def __init__(self, life: Life, first: int, store: Store, settings: KafkaSettings) -> None:
        self.plan, self.first, self.store = plan_of(life.plan, life.horizon), first, store
        self.drawn: dict[int, set[Drawn]] = defaultdict(set)  # by any life, whether or not it was stored
        self.reserved: dict[int, Drawn] = {}
        self.stored: dict[int, bytes] = {}
        self.steps: list[str] = []  # of the last life, in its last window
        self.settings, self._life = settings, life
        self._secrets: set[bytes] = set()
        self._seen: set[str] = set()  # tables that an exact window was found in

    @classmethod
    async def of(cls, name: str, horizon: int, kafka: KafkaBroker, dsn: str, *, redraws: bool = False) -> "Run":
        """Opens the windows, all of which are over, and appends their deltas."""
        runtime, settings = SystemRuntime(threads=2), KafkaSettings(kafka.bootstrap, fresh_prefix())
        plan = plan_of(name, horizon)
        store = Store(await PostgresDatabase.open(PostgresSettings(dsn, pool=2), runtime))
        first = plan.window.index_at(runtime.now_ms()) - horizon
        await store.register(plan, PARTITIONS, first)
        await store.open_windows(plan.id, first, first + horizon - 1)
        log = await KafkaLog.open(settings, plan, PARTITIONS, PlainMessages(), runtime, RecordingObserver())
        await log.append([each for window in range(horizon) for each in deltas(plan, first, window)])
        await log.close()
        life = Life(name, horizon, dsn, settings.bootstrap, settings.prefix, first, redraws=redraws)
        return cls(life, first, store, settings)

    async def live(self, kill: Kill) -> None:
        """One process, to its death or its end, and what it leaves."""
        life = replace(self._life, **{**kill._asdict(), "window": self.first + kill.window})
        process = await asyncio.create_subprocess_exec(
            *life.command(),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", "HUSHSUM_KERNELS": "plain"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(process.communicate(), LIFE_S)
        assert process.returncode == (-signal.SIGKILL if kill.fatal else 0), f"{kill}: {errors.decode()}"
        for line in out.decode().splitlines():
            what, *words = line.split()
            if what == "drawn":
                self.drawn[int(words[0]) - self.first].add(Drawn(*words[1:]))
            else:
                self.steps = words
        await self._look()

    async def _look(self) -> None:
        """Nothing that was reserved or stored has changed, and nothing exact is where it must not be."""
        reservations, outcomes, states, tables = await self.store.database.read(_everything)
        for number, key in reservations:
            window = number - self.first
            before = states[0] if states else cumulative.initial(self.plan)
            expected = self._expected(window, key, before)
            assert self.reserved.setdefault(window, expected) == expected, f"window {window} was reserved anew"
            self._secrets.add(key)
        for number, data in outcomes:
            assert self.stored.setdefault(number - self.first, data) == data, f"window {number} has another outcome"
        held = len(outcomes)
        for window in range(1, held + 1):
            assert not holding(tables, self._total(window)), "an exact total"
        self._seen |= holding(tables, records_of(held))

    def _expected(self, window: int, key: bytes, before: bytes) -> Drawn:
        """What a reservation decides, drawn here."""
        sketch = exact_of(self.plan, window)
        sealed = _keyed(key, SealedWindow(sketch, 0).digest())
        entropy, number = KeyedEntropy(key), self.first + window
        release, after = cumulative.step(
            self.plan, before, sketch, window=number, sealed=sealed, entropy=entropy, accounted=True
        )
        return Drawn(*(hashlib.sha256(data).hexdigest() for data in (release.to_bytes(), after)))

    def _total(self, window: int) -> Counters:
        """Of the windows up to this one, of which there are at least two."""
        return sum((records_of(each) for each in range(window + 1)), np.zeros(DELTAS, np.int64))

    async def check(self) -> None:
        """One sequence, charged once, drawn once, of exactly what was sent; nothing exact or secret is left."""
        plan, windows = self.plan, range(self._life.horizon)
        assert sorted(self.stored) == [*windows]
        for window in windows:
            (digest, *others) = {each.release for each in self.drawn[window]}
            assert not others, f"noise of window {window} was drawn anew"
            assert digest == hashlib.sha256(self.stored[window]).hexdigest()
            assert self.drawn[window] == {self.reserved.get(window, *self.drawn[window])}
        outcomes = await self.store.outcomes(plan.id)
        assert all(outcome.published for outcome in outcomes)
        spend = spend_of(plan, kind=CUMULATIVE, window=None)
        assert (await self.store.account("")).spends == (spend,)
        await self._check_receipts([(each.window, each.sha256, spend) for each in outcomes])
        self._check_noise([Release.from_bytes(self.stored[window]) for window in windows])
        await self._check_erased()

    async def _check_receipts(self, expected: list[Any]) -> None:
        observer, runtime = RecordingObserver(), SystemRuntime(threads=1)
        receipts = await ReceiptsTopic.open(self.settings, runtime, OsEntropy(), observer, made=True)
        assert [(each.window, each.sha256, each.spend) for each in await receipts.read()] == expected
        await receipts.close()

    def _check_noise(self, releases: Sequence[Release]) -> None:
        """Releases and the spans between them differ from what was sent by noise alone."""
        series, errors = Series(releases), list[tuple[float | None, Counters]]()
        total = np.zeros(self.plan.counters_shape, np.int64)
        for window, release in enumerate(releases):
            exact = exact_of(self.plan, window).counters
            total += exact
            errors.append((release.draws, release.counters - total))
            span = series.between(self.first + window - 1, self.first + window)
            errors.append((span.draws, span.counters - exact))
        allowed = FALSE_ALARM / sum(error.size for _, error in errors)
        for draws, error in errors:
            assert tails(self.plan, draws or 0.0, error.ravel()).min() > allowed
            assert tails(self.plan, draws or 0.0, np.array([records_of(0).min()])).max() < allowed, "a delta shows"

    async def _check_erased(self) -> None:
        reservations, _, states, tables = await self.store.database.read(_everything)
        assert (reservations, states) == ([], [b""])
        exact = [records_of(window) for window in range(self._life.horizon)]
        exact += [self._total(window) for window in range(1, self._life.horizon)]
        assert [holding(tables, each) for each in exact] == [set()] * len(exact)
        assert self._seen == {"blocks"}, "they are found where they are"
        assert not [name for name, rows in tables.items() for key in self._secrets if key.hex() in rows]


def deltas(plan: Plan, first: int, window: int) -> list[NewEntry]:
    """Of a window, all in one partition, whose block then holds its exact counters side by side."""
    partition, entries = window % PARTITIONS, list[NewEntry]()
    for number, records in enumerate(records_of(window).tolist()):
        client = client_of(partition, PARTITIONS, number)
        delta = tally(plan, number, first + window, stream=window + 1, sequence=0, records=records)
        entries.append(NewEntry(partition, first + window, entry_to_bytes(entry(client, delta))))
    return entries


def holding(tables: dict[str, str], values: Counters) -> set[str]:
    """Tables that hold these neighbouring counters in any width and either order of bytes."""
    patterns = [values.astype(f"{order}i{width}").tobytes().hex() for order in "<>" for width in (2, 4, 8)]
    return {name for name, rows in tables.items() if any(pattern in rows for pattern in patterns)}


def tails(plan: Plan, draws: float, errors: Counters) -> npt.NDArray[np.float64]:
    """The most of the probability that noise is so far from 0."""
    mechanism = plan.privacy.mechanism
    is_gaussian = mechanism.name == DISCRETE_GAUSSIAN
    deviation = np.full(errors.size, np.sqrt(mechanism.noise_variance * draws))
    noise = _Noise(deviation, np.ones(errors.size), mechanism.noise_variance, is_gaussian)
    return 2.0 * _chernoff([noise], np.abs(errors) - (1.0 if is_gaussian else 0.0))  # which both ends are rounded by


async def _everything(
    tx: Transaction,
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], list[bytes], dict[str, str]]:
    """Keys of reservations and bytes of outcomes by window, the state, and all rows of each table as text."""
    reservations = await tx.fetch('SELECT "window", key FROM reservations')
    outcomes = await tx.fetch('SELECT "window", data FROM outcomes ORDER BY "window"')
    states = [bytes(state) for (state,) in await tx.fetch("SELECT state FROM sequences")]
    names = await tx.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")
    tables = {}
    for (name,) in names:
        tables[name] = "\n".join(text for (text,) in await tx.fetch(f'SELECT each::text FROM "{name}" AS each'))
    keys, files = ([(window, bytes(data)) for window, data in rows] for rows in (reservations, outcomes))
    return keys, files, states, tables


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["tree", "buffers"])
async def test_killed_at_every_step_of_every_window_there_is_one_sequence_drawn_once(
    name: str, kafka: KafkaBroker, postgres: Postgres
) -> None:
    kills = [*every_step()]
    run = await Run.of(name, 1 + kills[-1].window, kafka, postgres.fresh_database())
    for kill in kills:
        await run.live(kill)
    assert run.steps == [*OF_A_WINDOW]
    await run.check()
    left = await records_in(kafka, entries_topic(run.settings, run.plan, PARTITIONS).name, PARTITIONS)
    assert [record for record in left if b"client-" in record.value] == []
    await run.store.close()


@pytest.mark.long
async def test_noise_that_is_drawn_anew_after_a_kill_is_found(kafka: KafkaBroker, postgres: Postgres) -> None:
    run = await Run.of("buffers", 2, kafka, postgres.fresh_database(), redraws=True)
    for kill in (Kill(0, DRAW, after=True), Kill(1)):
        await run.live(kill)
    with pytest.raises(AssertionError, match="noise of window 0 was drawn anew"):
        await run.check()
    await run.store.close()
