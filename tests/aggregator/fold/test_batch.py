"""A fold in compiled loops and one in NumPy say the same and store the same, whatever comes, in any batches."""

import gc
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from aggregator.fold.deduplication import StreamTable
from aggregator.fold.fold import Fold, warm_up
from aggregator.fold.state import Checkpoint, FoldState
from aggregator.fold.verdicts import OUTCOMES, Verdict, VerdictKind, Verdicts
from hushsum.delta import Delta, DeltaId, Run
from hushsum.errors import Reason
from hushsum.families import Increments
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry, LogEntry, RefusedEntry, SealEntry
from tests.aggregator.deltas import clients_of, tally, tally_plan, windowed_plan
from tests.doubles import StoredFold
from tests.plans import classed_plan

W = 100
PLANS = {
    "record": tally_plan(),
    "client": tally_plan(records_per_client=5),
    "clients": tally_plan(min_clients=2),
    "classes": classed_plan("a", "b", sketch={"rows": 9, "buckets": 1000}, window={"min_clients": 1}),
    "client windows": windowed_plan(2),
    "no count counters": classed_plan("a", "b", sketch={"rows": 2, "buckets": 4}),
}

STRANGERS = (clients_of(1, 2)[0], "a\0", "a\0b", "")


class Story:
    """Entries that meet everything: new deltas, resends, cheats, damage, other windows, foreign clients, seals."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.random, self.window = plan, random.Random(seed), W  # a story
        self.sent: list[DeltaEntry] = []

    def entry(self) -> LogEntry | RefusedEntry:
        draw = self.random.random()
        if draw < 0.02:
            self.window += 1
            return SealEntry(self.random.choice([self.plan.id, self.plan.id, bytes(32)]), self.window - 1, 0)
        if draw < 0.04:
            return RefusedEntry(self.random.choice([Reason.MALFORMED, Reason.TOO_LARGE]), "junk")
        if draw < 0.25 and self.sent:
            return self.random.choice(self.sent[-100:])
        made = self.delta_entry()
        if draw < 0.33:
            data = bytearray(made.delta)
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            made = DeltaEntry(made.client_id, bytes(data), 0)
        self.sent.append(made)
        return made

    def delta_entry(self) -> DeltaEntry:
        drawn = self.random
        client = drawn.choice(clients_of(0, 2)[:5]) if drawn.random() < 0.97 else drawn.choice(STRANGERS)
        sequence = drawn.choice([len(self.sent) // 8, drawn.randrange(len(self.sent) // 8 + 80)])
        id = DeltaId(drawn.randrange(2), sequence)
        window = self.window + drawn.choice([-1, 0, 0, 0, 0, 0, 1])
        classes = [index for index in range(self.plan.counters_shape[0]) if index == 0 or drawn.random() < 0.5]
        runs = tuple(self.run(index, drawn.choice([1, 1, 1, 2, 3])) for index in classes)
        return DeltaEntry(client, Delta(self.plan.id, window, id, runs).pack(self.plan), 0)

    def run(self, index: int, records: int) -> Run:
        rows, width = self.plan.family.shape
        places = [row * width + self.random.randrange(width) for row in range(rows) for _ in range(records)]
        indices, values = np.unique(places, return_counts=True)
        return Run(index, records, Increments(indices, values))


class Pair:
    """The same fold twice, in compiled loops and without; each is stored, and now and then loaded again."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan, self.monkeypatch = plan, monkeypatch
        size = int(np.prod(plan.counters_shape[1:]))
        state, classes = FoldState(closed_through=W - 2), plan.counters_shape[0]
        self.stored = [StoredFold(state, size, classes) for _ in range(2)]
        self.load()

    def load(self) -> None:
        states = [stored.load(self.plan.counters_shape) for stored in self.stored]
        self.monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
        fast = Fold(self.plan, 0, 2, states[0])
        self.monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
        self.folds = (fast, Fold(self.plan, 0, 2, states[1]))
        assert [fold._reader is not None for fold in self.folds] == [True, False]

    def apply(self, entries: list[tuple[int, LogEntry | RefusedEntry]], end: int) -> list[Verdict]:
        fast, plain = (fold.apply(entries, end) for fold in self.folds)
        assert [*fast] == [*plain]
        assert fast.kinds() == plain.kinds() == Counter(verdict.kind for verdict in plain)
        assert len(fast) == len(plain) == sum(not isinstance(each, SealEntry) for _, each in entries)
        return [*fast]

    def save(self) -> None:
        changes = [fold.checkpoint() for fold in self.folds]
        assert described(changes[0]) == described(changes[1])
        for stored, change in zip(self.stored, changes, strict=True):
            stored.add(change)

    def forget(self) -> None:
        for fold in self.folds:
            fold.forget(fold.closed_through)
        self.save()


def described(change: Checkpoint) -> object:
    blocks = {block[:3]: block.values.tolist() for block in change.blocks}
    counts = {window: values.tolist() for window, values in change.counts.items()}
    marks = (change.position, change.closed_through, change.forgotten_through)
    return marks, blocks, counts, dict(change.streams), dict(change.contributions), dict(change.client_windows)


@pytest.mark.parametrize("name", PLANS)
def test_compiled_loops_and_numpy_come_to_the_same(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[object] = set()
    for number in range(3):
        story, pair, position = Story(PLANS[name], seed + number), Pair(PLANS[name], monkeypatch), 0
        drawn = random.Random(seed + number)  # a story
        for _ in range(30):
            count = drawn.choice([1, 2, 7, 40, 100])
            entries = [(position + 3 * i, story.entry()) for i in range(count)]
            position += 3 * count
            met.update(verdict.reason or verdict.kind for verdict in pair.apply(entries, position))
            action = drawn.random()
            if action < 0.3:
                pair.save()
            if action < 0.1:
                pair.load()
            elif action > 0.9:
                pair.forget()
        pair.save()
    expected = {*VerdictKind, Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW, Reason.MALFORMED, Reason.WRONG_PARTITION}
    assert met > expected - {VerdictKind.REFUSED}
    assert (Reason.TOO_MANY_RECORDS in met) == (PLANS[name].privacy.records_per_client is not None)


def test_most_deltas_are_folded_by_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
    plan, honest = PLANS["record"], Fold._verdict
    one_by_one: list[int] = []

    def verdict(fold: Fold, entry: DeltaEntry | RefusedEntry, position: int) -> Verdict:
        one_by_one.append(position)
        return honest(fold, entry, position)

    monkeypatch.setattr(Fold, "_verdict", verdict)
    fold = Fold(plan, 0, 1, FoldState(closed_through=W - 1))
    entries = [(i, DeltaEntry("a", tally(plan, i, W, 1, i), 0)) for i in range(500)]
    assert fold.apply(entries, 500).kinds() == {VerdictKind.COUNTED: 500}
    assert one_by_one == [0]  # from which the reader learns how large such a run may be


def test_a_refused_delta_in_the_middle_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
    plan = tally_plan(records_per_client=3, min_clients=1)
    fold = Fold(plan, 0, 1, FoldState(closed_through=W - 1))
    bad = [tally(plan, 0, W, 9, 9)[:-1], tally(plan, 0, W, 9, 9) + b"\0", tally(plan, 10_001, W, 9, 9)]
    assert fold.apply([*enumerate(DeltaEntry("b", data, 0) for data in bad)], 3).kinds() == {VerdictKind.REFUSED: 3}
    change = fold.checkpoint()
    assert (change.blocks, change.streams, change.contributions, len(fold._streams)) == ((), {}, {}, 0)


def memory_after(plan: Plan, deltas: int, streams: int) -> int:
    """Bytes that a fold holds after so many deltas, stored on the way."""
    fold = Fold(plan, 0, 1, FoldState(closed_through=W - 1))
    packed = [tally(plan, stream, W, stream, 0) for stream in range(streams)]
    prefix, tail = packed[0].index(bytes(8)), len(packed[0]) - packed[0].index(bytes(8)) - 9
    fold.apply([(0, DeltaEntry("client-0", packed[0], 0))], 1)
    tracemalloc.start()
    try:
        position = 1
        for start in range(streams, deltas, 1000):
            entries = []
            for number in range(start, start + 1000):
                sequence, data = number // streams, packed[number % streams]
                head = data[: prefix + 8] + _varint(sequence)
                entries.append((position, DeltaEntry(f"client-{number % 7}", head + data[len(data) - tail :], 0)))
                position += 1
            assert fold.apply(entries, position).kinds() == {VerdictKind.COUNTED: 1000}
            fold.checkpoint()
            entries.clear()
        gc.collect()  # what others left
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def test_what_a_fold_remembers_grows_with_live_streams_and_not_with_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
    warm_up()
    plan = tally_plan()
    few, many, wide = (memory_after(plan, *size) for size in ((10_000, 70), (100_000, 70), (10_000, 700)))
    assert many < 1.2 * few + 50_000, (few, many)
    assert wide > few + 300 * 100, (few, wide)  # it can tell


def test_a_table_of_streams_uses_room_again(seed: int) -> None:
    drawn, table = random.Random(seed), StreamTable({})  # a story
    from aggregator.fold.deduplication import StreamState

    for turn in range(50):
        for _ in range(20):
            key = (f"client-{drawn.randrange(10)}", drawn.randrange(10))
            state = table.get(key) or StreamState()
            state.record(state.highest + drawn.choice([1, 2, 70]), bytes(8), turn)
            table.put(key, state)
            assert table.get(key).to_bytes() == state.to_bytes()  # type: ignore[union-attr]  # it has just been put
        table.free_unused_rows()
        before = {key: table.get(key) for key in table.take_changed()}
        table.forget(turn - 3)
        for key, kept in before.items():
            assert kept is not None
            assert (table.get(key) is None) == (kept.last_window <= turn - 3)
    assert len(table.slots) <= 4 * 64 * len(table) + 64


def test_a_loaded_table_gives_the_bytes_that_it_was_loaded_from(seed: int) -> None:
    first = StreamTable({})
    story = Story(PLANS["record"], seed)
    fold = Fold(PLANS["record"], 0, 2, FoldState(closed_through=W - 2))
    fold.apply([(i, story.entry()) for i in range(400)], 400)
    packed = {key: data for key, (_, data) in fold._streams.take_changed().items()}
    again = StreamTable(packed)
    assert len(again) == len(packed) > len(first)
    for key, data in packed.items():
        state = again.get(key)
        assert state is not None
        assert state.to_bytes() == data
        again.put(key, state)
    assert {key: data for key, (_, data) in again.take_changed().items()} == packed


def test_verdicts_are_counted_without_being_made() -> None:
    made = [Verdict(kind, reason, None, None, None, i) for i, (kind, reason) in enumerate(OUTCOMES)]
    verdicts = Verdicts(made)
    assert verdicts.kinds() == {"counted": 1, "duplicate": 1, "late": 1, "refused": 3}
    assert (len(verdicts), verdicts[0], [*verdicts[1:]]) == (6, made[0], made[1:])
    assert verdicts == made
    assert verdicts != made[1:]
