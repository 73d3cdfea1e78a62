"""Batches of reports in the fold: each counts once, nobody is told, and nothing else counts for such a plan."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from aggregator.fold.fold import Fold
from aggregator.fold.state import BLOCK, FoldState, StreamKey
from aggregator.fold.verdicts import RememberedKind, Verdict, VerdictKind
from hushsum.delta import DeltaId, digest, read_header
from hushsum.errors import Reason
from hushsum.local.report_batch import unpack
from hushsum.plan import Plan
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, LogEntry, RefusedEntry, ReportsEntry, SealEntry
from tests.aggregator.deltas import client_of, tally_plan
from tests.aggregator.reports import SHUFFLE_MIN, report_plan, reports_of, silo_plan
from tests.aggregator.sums import round_of, secure_plan
from tests.doubles import StoredFold, described

W = 100
ROWS, BUCKETS = 200, 64
COUNTERS = ROWS * BUCKETS  # three blocks and a part of one
BLOCKS = -(-COUNTERS // BLOCK)


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = report_plan(rows=ROWS, buckets=BUCKETS)
    assert made.counters_shape == (1, ROWS, BUCKETS)
    return made


class Bench:
    """A fold of one partition of one, its entries numbered as they come, and what a store would hold of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        state = FoldState(closed_through=W - 1)
        self.fold = Fold(plan, 0, 1, state, retain_verdicts=True)
        self.stored = StoredFold(state, int(np.prod(plan.counters_shape)))

    def apply(self, *entries: LogEntry | RefusedEntry) -> Sequence[Verdict]:
        start = self.fold.position
        return self.fold.apply([*enumerate(entries, start)], start + len(entries))

    def kinds(self, *entries: LogEntry | RefusedEntry) -> list[VerdictKind | Reason]:
        return [verdict.reason or verdict.kind for verdict in self.apply(*entries)]

    def save(self) -> None:
        self.stored.add(self.fold.checkpoint())

    def crash(self) -> None:
        self.fold = Fold(self.plan, 0, 1, self.stored.load(self.plan.counters_shape), retain_verdicts=True)

    def recalled(self, sent: ReportsEntry) -> tuple[RememberedKind, Reason | None]:
        header = read_header(sent.batch)
        return self.fold.recall("", header.id, digest(sent.batch), header.window)

    def counted(self, window: int = W) -> dict[int, int]:
        """What is stored of a window: how many of each report."""
        self.save()
        flat = self.stored.sums[window].counters.reshape(-1)
        assert self.stored.sums[window].counts.tolist() == [int(flat.sum())], "the number of reports is exact"
        return {int(at): int(flat[at]) for at in np.flatnonzero(flat)}


def seal(plan: Plan, window: int = W) -> SealEntry:
    return SealEntry(plan.id, window, 0)


def test_a_batch_is_counted_once_whatever_is_resent(plan: Plan) -> None:
    bench = Bench(plan)
    sent = reports_of(plan, W, [7, 7, COUNTERS - 1], stream=5)
    again = sent._replace(arrived_ms=77)
    assert bench.kinds(sent, sent, again) == ["counted", "duplicate", "duplicate"]
    assert bench.counted() == {7: 2, COUNTERS - 1: 1}
    bench.crash()
    assert bench.kinds(sent) == ["duplicate"]
    assert bench.counted() == {7: 2, COUNTERS - 1: 1}


def test_batches_add_up_in_their_windows(plan: Plan) -> None:
    bench = Bench(plan)
    sent = [reports_of(plan, window, [1, stream], stream=stream) for stream, window in ((2, W), (3, W), (4, W + 1))]
    assert bench.kinds(*sent) == ["counted"] * 3
    assert bench.counted(W) == {1: 2, 2: 1, 3: 1}
    assert bench.counted(W + 1) == {1: 1, 4: 1}


def test_a_verdict_names_the_batch_and_no_client(plan: Plan) -> None:
    sent = reports_of(plan, W, [1], stream=5)
    assert [*Bench(plan).apply(sent)] == [Verdict(VerdictKind.COUNTED, None, DeltaId(5, 0), None, W, 0)]


def test_nothing_that_stands_in_the_log_of_reports_has_a_verdict_with_a_client(plan: Plan) -> None:
    bench = Bench(plan)
    data = reports_of(plan, W, [1], stream=5).batch
    bench.apply(DeltaEntry("alice", data, 0), DeltaEntry("alice", b"junk", 0), DeltaEntry("alice", b"", 0))
    bench.save()
    assert [(verdict.kind, verdict.client_id) for verdict in bench.stored.verdicts] == [("refused", None)] * 3
    assert bench.stored.state.streams == {}
    assert bench.stored.state.contributions == {}


def test_an_id_with_other_bytes_or_another_window_is_refused_and_changes_nothing(plan: Plan) -> None:
    bench = Bench(plan)
    first, other = reports_of(plan, W, [7], stream=5), reports_of(plan, W, [8], stream=5)
    elsewhere = reports_of(plan, W + 1, [7], stream=5)
    expected = ["counted", Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW, "duplicate"]
    assert bench.kinds(first, other, elsewhere, first) == expected
    assert bench.counted() == {7: 1}
    assert [*bench.stored.sums] == [W]
    assert bench.recalled(other) == (RememberedKind.REFUSED, Reason.ID_REUSED)


def test_what_stands_before_the_seal_is_in_and_what_stands_after_is_late(plan: Plan) -> None:
    bench = Bench(plan)
    before, after = reports_of(plan, W, [1], stream=5), reports_of(plan, W, [2], stream=6)
    assert bench.kinds(before, seal(plan), after, before, seal(plan)) == ["counted", "late", "duplicate"]
    assert bench.recalled(before) == (RememberedKind.COUNTED, None)
    assert bench.recalled(after) == (RememberedKind.LATE, None)
    assert bench.counted() == {1: 1}
    bench.crash()
    assert bench.recalled(before) == (RememberedKind.COUNTED, None)


def test_all_of_a_batch_is_forgotten_with_its_window(plan: Plan) -> None:
    bench = Bench(plan)
    old, new = reports_of(plan, W, [1], stream=5), reports_of(plan, W + 1, [2], stream=6)
    bench.apply(old, new, seal(plan))
    bench.fold.forget(W)
    bench.save()
    assert {*bench.stored.state.streams} == {StreamKey("", 6)}
    assert bench.recalled(old) == (RememberedKind.UNKNOWN, None)
    assert bench.kinds(old) == ["late"]


def test_little_is_remembered_of_a_batch_however_large_it_was(plan: Plan) -> None:
    bench = Bench(plan)
    sizes = []
    for stream, size in ((2**63 + 5, 1), (2**63 + 6, plan.delta_records_max)):
        bench.apply(reports_of(plan, W, [1] * size, stream=stream))
        sizes += [len(data) for _, data in bench.fold.checkpoint().streams.values()]
    assert len(sizes) == 2
    assert max(sizes) <= 48  # bytes: id, digest, window, and what a stream of many needs


def test_what_a_fold_holds_in_memory_of_a_batch_is_small(plan: Plan, rng: np.random.Generator) -> None:
    def sent(count: int) -> list[tuple[int, ReportsEntry]]:
        streams = rng.integers(0, 2**63, count).tolist()
        return [*enumerate(reports_of(plan, W, [1] * 10, stream=stream) for stream in streams)]

    fold = Fold(plan, 0, 1, FoldState(closed_through=W - 1))
    batches = [(at + 1, each) for at, each in sent(4000)]
    fold.apply(sent(1), 1)
    tracemalloc.start()
    fold.apply(batches, len(batches) + 1)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert fold.position == len(batches) + 1
    assert held < 450 * len(batches), f"{held / len(batches):.0f} bytes a batch"


# ---------------------------------------------------------------------------------------------------- refusals


def planted(plan: Plan) -> dict[str, tuple[ReportsEntry, Reason]]:
    good = reports_of(plan, W, [3, 5], stream=5)
    end = good.batch[-2 * _width(plan) :]
    assert len(set(end)) > 1
    return {
        "another plan": (reports_of(report_plan(rows=3), W, [1], stream=5), Reason.WRONG_PLAN),
        "nothing": (good._replace(batch=b""), Reason.MALFORMED),
        "a byte too few": (good._replace(batch=good.batch[:-1]), Reason.MALFORMED),
        "a byte too many": (good._replace(batch=good.batch + b"\0"), Reason.MALFORMED),
        "a newer format": (good._replace(batch=b"\x02" + good.batch[1:]), Reason.NEWER_FORMAT),
        "reports in another order": (
            good._replace(batch=good.batch[: -len(end)] + end[len(end) // 2 :] + end[: len(end) // 2]),
            Reason.MALFORMED,
        ),
        "a report out of range": (
            good._replace(batch=good.batch[: -_width(plan)] + b"\xff" * _width(plan)),
            Reason.BUCKET_OUT_OF_RANGE,
        ),
        "a second one of its stream": (reports_of(plan, W, [3, 5], stream=5, sequence=1), Reason.MALFORMED),
        "a number that no device gives": (reports_of(plan, W, [3, 5], stream=5, sequence=100), Reason.MALFORMED),
    }


def _width(plan: Plan) -> int:
    one, two = (reports_of(plan, W, [1] * size, stream=5) for size in (1, 2))
    return len(two.batch) - len(one.batch)


@pytest.mark.parametrize("name", planted(report_plan(rows=ROWS, buckets=BUCKETS)))
def test_what_the_plan_does_not_allow_is_refused_changes_nothing_and_uses_up_no_id(plan: Plan, name: str) -> None:
    bad, reason = planted(plan)[name]
    bench = Bench(plan)
    assert bench.kinds(bad) == [reason]
    change = bench.fold.checkpoint()
    assert (change.blocks, change.counts, change.streams, change.position) == ((), {}, {}, 1)
    assert bench.kinds(reports_of(plan, W, [3, 5], stream=5)) == ["counted"]


def test_a_batch_is_of_the_partition_of_its_stream(plan: Plan) -> None:
    fold = Fold(plan, 2, 4, FoldState(closed_through=W - 1))
    own, foreign = (reports_of(plan, W, [1], stream=stream) for stream in (2**64 - 2, 2**64 - 1))
    verdicts = fold.apply([(0, foreign), (1, own)], 2)
    assert [verdict.reason or verdict.kind for verdict in verdicts] == [Reason.WRONG_PARTITION, "counted"]


@pytest.mark.parametrize("other", [tally_plan(), secure_plan(), silo_plan()])
def test_reports_for_a_plan_without_them_are_refused(plan: Plan, other: Plan) -> None:
    of_plan = reports_of(plan, W, [1], stream=5).batch
    sent = ReportsEntry(of_plan[:1] + other.id + of_plan[33:], False, 0)
    bench = Bench(other)
    assert bench.kinds(sent) == [Reason.WRONG_MODE]
    change = bench.fold.checkpoint()
    assert (change.streams, change.contributions, change.blocks) == ({}, {}, ())


@pytest.mark.parametrize("count", [1, 40])
def test_deltas_and_sums_for_a_plan_of_reports_are_refused_together_as_one_by_one(plan: Plan, count: int) -> None:
    bench = Bench(plan)
    batches = [reports_of(plan, W, [1], stream=stream) for stream in range(count)]
    deltas = [DeltaEntry(client_of(0, 1), sent.batch, 0) for sent in batches]
    total = CohortSumEntry(plan.id, W, round_of(plan.id, W, 0, 0, 1), 10, bytes(100), 0)
    assert bench.kinds(*deltas, total) == [Reason.WRONG_MODE] * (count + 1)
    assert bench.kinds(*deltas, *batches, *deltas) == [
        *[Reason.WRONG_MODE] * count,
        *["counted"] * count,
        *[Reason.WRONG_MODE] * count,
    ]
    assert bench.counted() == {1: count}


# ----------------------------------------------------------------------------------------------- shuffled plans


def test_a_plan_with_a_shuffler_counts_what_came_through_it_alone() -> None:
    plan = report_plan(shuffle_min=SHUFFLE_MIN)
    bench = Bench(plan)
    sent = reports_of(plan, W, [1] * SHUFFLE_MIN, stream=5)
    shuffled = sent._replace(shuffled=True)
    assert bench.kinds(sent, shuffled, shuffled, sent) == [Reason.UNSHUFFLED, "counted", "duplicate", "duplicate"]
    assert bench.counted() == {1: SHUFFLE_MIN}


def test_a_shuffled_batch_of_fewer_reports_than_the_plan_says_is_refused() -> None:
    plan = report_plan(shuffle_min=SHUFFLE_MIN)
    bench = Bench(plan)
    few = reports_of(plan, W, [1] * (SHUFFLE_MIN - 1), stream=5, shuffled=True)
    enough = reports_of(plan, W, [1] * SHUFFLE_MIN, stream=6, shuffled=True)
    assert bench.kinds(few, enough) == [Reason.TOO_FEW_REPORTS, "counted"]
    assert bench.counted() == {1: SHUFFLE_MIN}
    assert {*bench.stored.state.streams} == {StreamKey("", 6)}


def test_a_plan_without_a_shuffler_counts_what_came_through_one_too(plan: Plan) -> None:
    assert Bench(plan).kinds(reports_of(plan, W, [1], stream=5, shuffled=True)) == ["counted"]


# ---------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("reports", "blocks"),
    (
        ([0], {0}),
        ([BLOCK - 1, BLOCK], {0, 1}),
        ([COUNTERS - 1], {BLOCKS - 1}),
        ([BLOCK] * 1000, {1}),
        ([*range(BLOCK, 2 * BLOCK), COUNTERS - 1], {1, BLOCKS - 1}),
        (range(COUNTERS), set(range(BLOCKS))),
    ),
)
def test_a_checkpoint_holds_the_blocks_that_reports_came_to_and_no_other(
    plan: Plan, reports: Sequence[int], blocks: set[int]
) -> None:
    bench = Bench(plan)
    bench.apply(reports_of(plan, W, reports, stream=5))
    assert {block.number for block in bench.fold.checkpoint().blocks} == blocks
    bench.apply(reports_of(plan, W, [7], stream=6))
    assert [block.number for block in bench.fold.checkpoint().blocks] == [0]


def test_a_sealed_window_of_reports_cannot_be_written_any_more(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(reports_of(plan, W, [1], stream=5))
    counters = bench.fold._window(W).counters
    bench.apply(seal(plan))
    with pytest.raises(ValueError, match="read-only"):
        counters[0, 0, 0] = 5


# ------------------------------------------------------------------------------------------------------- histories


class Model:
    """What a partition must come to, remembering everything: verdicts, and reports by window."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.closed = plan, W - 1
        self.known: dict[int, tuple[bytes, int]] = {}
        self.sums: dict[int, Counter[int]] = {}

    def pass_on(self, item: LogEntry | RefusedEntry) -> VerdictKind | Reason | None:
        match item:
            case SealEntry():
                self.closed = max(self.closed, item.window)
                return None
            case ReportsEntry():
                return self._known(item) or self._flaw(item) or self._count(item)
            case RefusedEntry():
                return item.reason
        return Reason.WRONG_MODE

    def _known(self, item: ReportsEntry) -> VerdictKind | Reason | None:
        header = read_header(item.batch)
        if header.id.sequence:
            return Reason.MALFORMED
        if header.id.stream in self.known:
            batch, window = self.known[header.id.stream]
            if window != header.window:
                return Reason.ID_OF_ANOTHER_WINDOW
            return VerdictKind.DUPLICATE if batch == item.batch else Reason.ID_REUSED
        return VerdictKind.LATE if header.window <= self.closed else None

    def _flaw(self, item: ReportsEntry) -> Reason | None:
        if not item.shuffled:
            return Reason.UNSHUFFLED
        if item.batch.endswith(b"\xff"):
            return Reason.BUCKET_OUT_OF_RANGE
        return Reason.TOO_FEW_REPORTS if len(unpack(item.batch, self.plan).reports) < 2 else None

    def _count(self, item: ReportsEntry) -> VerdictKind:
        batch = unpack(item.batch, self.plan)
        self.known[batch.id.stream] = item.batch, batch.window
        self.sums.setdefault(batch.window, Counter()).update(batch.reports.tolist())
        return VerdictKind.COUNTED


def history(plan: Plan, draw: random.Random, length: int) -> list[LogEntry | RefusedEntry]:
    """Batches again and again, some altered, of a few streams, among seals and what does not belong there."""
    items: list[LogEntry | RefusedEntry] = []
    last = W
    for _ in range(length):
        window, stream = last + draw.choice([-1, 0, 0, 1]), draw.randrange(12)
        values = [draw.randrange(640) for _ in range(draw.randint(2, 5))]
        made: LogEntry | RefusedEntry = reports_of(plan, window, values, stream=stream, shuffled=True)
        match draw.choice(["new", "new", "again", "again", "bare", "few", "second", "range", "seal", "delta", "junk"]):
            case "again" if items:
                made = draw.choice(items)
            case "bare":
                made = reports_of(plan, window, values, stream=stream)
            case "few":
                made = reports_of(plan, window, values[:1], stream=stream, shuffled=True)
            case "second":
                made = reports_of(plan, window, values, stream=stream, sequence=draw.randint(1, 99), shuffled=True)
            case "range":
                made = reports_of(plan, window, values, stream=stream, shuffled=True)
                made = made._replace(batch=made.batch[: -_width(plan)] + b"\xff" * _width(plan))
            case "seal" if draw.random() < 0.5:
                made, last = seal(plan, last), last + 1
            case "delta":
                made = DeltaEntry(client_of(0, 1), reports_of(plan, window, values, stream=stream).batch, 0)
            case "junk":
                made = RefusedEntry(Reason.MALFORMED, "junk")
        items.append(made)
    return items


def test_batches_among_seals_and_junk_come_to_the_same_whatever_is_cut_and_replayed(seed: int) -> None:
    plan, draw = report_plan(rows=10, shuffle_min=2), random.Random(seed)
    seen: Counter[VerdictKind | Reason | None] = Counter()
    for _ in range(25):
        items, model = history(plan, draw, 60), Model(plan)
        expected = [model.pass_on(item) for item in items]
        seen.update(expected)
        whole = Bench(plan)
        assert whole.kinds(*items) == [kind for kind in expected if kind is not None], f"seed {seed}"
        bench = Bench(plan)
        while bench.fold.position < len(items):
            start = bench.fold.position
            part = items[start : start + draw.randint(1, 12)]
            wanted = [kind for kind in expected[start : start + len(part)] if kind is not None]
            assert bench.kinds(*part) == wanted, f"seed {seed}"
            if draw.random() < 0.3:
                bench.save()
            if draw.random() < 0.2:
                bench.crash()
        for each in (whole, bench):
            each.save()
            for window, values in model.sums.items():
                assert each.counted(window) == values, f"seed {seed}"  # nothing lost, nothing doubled
            assert {key.stream for key in each.stored.state.streams} == {*model.known}
        shape = plan.counters_shape
        assert described(bench.stored.load(shape)) == described(whole.stored.load(shape))
        assert bench.stored.verdicts == whole.stored.verdicts, f"seed {seed}"
    assert len(seen) == 11, seen  # every verdict there is, and seals


def test_whatever_their_order_batches_come_to_the_same_counts(plan: Plan, seed: int, rng: np.random.Generator) -> None:
    sent = [
        reports_of(plan, W, rng.integers(0, COUNTERS, 1 + stream % 70).tolist(), stream=stream) for stream in range(40)
    ]
    both = [*sent, *sent]
    states = []
    for _ in range(2):
        bench = Bench(plan)
        verdicts = bench.kinds(*(both[at] for at in rng.permutation(len(both))))
        assert Counter(verdicts) == {"counted": len(sent), "duplicate": len(sent)}, f"seed {seed}"
        states.append(bench.counted())
    expected = Counter(report for entry in sent for report in unpack(entry.batch, plan).reports.tolist())
    assert states == [expected, expected], f"seed {seed}"
