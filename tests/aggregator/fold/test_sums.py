"""Cohort sums in the fold: each counts once, and none that its plan does not allow."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from aggregator.fold.fold import Fold, contributor_of
from aggregator.fold.state import BLOCK, Contribution, FoldState
from aggregator.fold.verdicts import RememberedKind, Verdict, VerdictKind
from hushsum.delta import Delta, DeltaId, Run, digest
from hushsum.errors import Reason
from hushsum.families import Increments
from hushsum.plan import Plan
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, LogEntry, RefusedEntry, SealEntry
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.aggregator.sums import LEAST, MOST, cohort_sum, dense, packed, round_of, secure_plan, sum_of
from tests.doubles import StoredFold, described

W = 100
COUNTERS = 5000  # two blocks, the last one not full


@pytest.fixture(scope="module")
def plan() -> Plan:
    return secure_plan(counters=COUNTERS)


class Bench:
    """A fold of one partition of one, its entries numbered as they come, and what a store would hold of it."""

    def __init__(self, plan: Plan, size: int = COUNTERS) -> None:
        self.plan = plan
        state = FoldState(closed_through=W - 1)
        self.fold = Fold(plan, 0, 1, state, retain_verdicts=True)
        self.stored = StoredFold(state, size)

    def apply(self, *entries: LogEntry | RefusedEntry) -> Sequence[Verdict]:
        start = self.fold.position
        return self.fold.apply([*enumerate(entries, start)], start + len(entries))

    def kinds(self, *entries: LogEntry | RefusedEntry) -> list[VerdictKind | Reason]:
        return [verdict.reason or verdict.kind for verdict in self.apply(*entries)]

    def save(self) -> None:
        self.stored.add(self.fold.checkpoint())

    def crash(self) -> None:
        self.fold = Fold(self.plan, 0, 1, self.stored.load(self.plan.counters_shape), retain_verdicts=True)

    def recalled(self, sent: CohortSumEntry) -> tuple[RememberedKind, Reason | None]:
        return self.fold.recall("", sent.id, digest(sent.sum), sent.window)

    def cohorts(self, window: int = W) -> dict[str, int]:
        """Submissions of what is stored of a window, by contributor."""
        self.save()
        return {key.client_id: n for key, n in self.stored.state.contributions.items() if key.window == window}


def seal(plan: Plan, window: int = W) -> SealEntry:
    return SealEntry(plan.id, window, 0)


def test_a_sum_is_counted_once_whatever_is_resent(plan: Plan) -> None:
    bench = Bench(plan)
    sent = cohort_sum(plan, W, {7: -3, COUNTERS - 1: 5}, [-2])
    again = sent._replace(arrived_ms=77)
    assert bench.kinds(sent, sent, again) == ["counted", "duplicate", "duplicate"]
    bench.save()
    bench.crash()
    assert bench.kinds(sent) == ["duplicate"]
    sums = bench.stored.sums[W]
    assert (sums.counters.reshape(plan.counters_shape) == dense(plan, {7: -3, COUNTERS - 1: 5})).all()
    assert sums.counts.tolist() == [-2]


def test_sums_of_several_cohorts_add_up_with_their_signs(plan: Plan) -> None:
    bench = Bench(plan)
    first = cohort_sum(plan, W, {0: -3, 1: 4}, [6], number=0, submissions=LEAST)
    second = cohort_sum(plan, W, {0: -1, 1: -5}, [-1], number=1)
    other = cohort_sum(plan, W + 1, {0: 9}, [1], number=2)
    assert bench.kinds(first, second, other) == ["counted"] * 3
    assert bench.cohorts() == {
        contributor_of(first.round): LEAST,
        contributor_of(second.round): MOST,
    }
    assert (bench.stored.sums[W].counters.reshape(plan.counters_shape) == dense(plan, {0: -4, 1: -1})).all()
    assert bench.stored.sums[W].counts.tolist() == [5]
    assert bench.stored.sums[W + 1].counts.tolist() == [1]


def test_every_class_has_its_counters_and_its_count() -> None:
    plan = secure_plan(counters=50, classes=3)
    bench = Bench(plan, 50)
    bench.apply(cohort_sum(plan, W, {3: 1, 50 + 4: -2, 100 + 5: 3}, [1, -2, 3]))
    bench.save()
    sums = bench.stored.sums[W]
    assert [sums.counters[n].reshape(-1)[n + 3] for n in range(3)] == [1, -2, 3]
    assert np.count_nonzero(sums.counters) == 3
    assert sums.counts.tolist() == [1, -2, 3]


def test_the_verdict_names_the_sum_and_no_client(plan: Plan) -> None:
    sent = cohort_sum(plan, W, {})
    (verdict,) = Bench(plan).apply(sent)
    assert verdict == Verdict(VerdictKind.COUNTED, None, sent.id, None, W, 0)
    assert sent.id.sequence == 0


def test_the_same_round_with_another_sum_is_refused_and_changes_nothing(plan: Plan) -> None:
    bench = Bench(plan)
    first, other = cohort_sum(plan, W, {7: 1}), cohort_sum(plan, W, {8: 1})
    assert first.id == other.id
    assert bench.kinds(first, other, first) == ["counted", Reason.ID_REUSED, "duplicate"]
    bench.save()
    assert (bench.stored.sums[W].counters.reshape(plan.counters_shape) == dense(plan, {7: 1})).all()
    assert bench.recalled(other) == (RememberedKind.REFUSED, Reason.ID_REUSED)


def test_what_stands_before_the_seal_is_in_and_what_stands_after_is_late(plan: Plan) -> None:
    bench = Bench(plan)
    before, after = (cohort_sum(plan, W, {number: 1}, number=number) for number in (0, 1))
    assert bench.kinds(before, seal(plan), after, before, seal(plan)) == ["counted", "late", "duplicate"]
    assert bench.recalled(before) == (RememberedKind.COUNTED, None)
    assert bench.recalled(after) == (RememberedKind.LATE, None)
    assert bench.cohorts() == {contributor_of(before.round): MOST}
    bench.crash()
    assert bench.recalled(before) == (RememberedKind.COUNTED, None)


def test_what_was_never_seen_of_an_open_window_is_not_called_late(plan: Plan) -> None:
    assert Bench(plan).recalled(cohort_sum(plan, W, {})) == (RememberedKind.UNKNOWN, None)


def test_all_of_a_sum_is_forgotten_with_its_window(plan: Plan) -> None:
    bench = Bench(plan)
    old, new = cohort_sum(plan, W, {1: 1}), cohort_sum(plan, W + 1, {2: 2})
    bench.apply(old, new, seal(plan))
    bench.fold.forget(W)
    assert bench.cohorts() == {}
    assert [key.stream for key in bench.stored.state.streams] == [new.id.stream]
    assert {key.client_id for key in bench.stored.state.streams} == {""}
    assert bench.recalled(old) == (RememberedKind.UNKNOWN, None)
    assert bench.kinds(old) == ["late"]
    assert bench.cohorts(W + 1) == {contributor_of(new.round): MOST}


def with_padding(plan: Plan) -> bytes:
    """A packed sum whose last bit, after the last word, is set."""
    data = packed(plan, {1: 1})
    assert plan.words.count_bits * plan.words.classes % 8, "no padding to set"
    return data[:-1] + bytes([data[-1] | 0x01])


def planted(plan: Plan) -> dict[str, tuple[CohortSumEntry, Reason]]:
    good = packed(plan, {5: 1}, [1])
    return {
        "another plan": (cohort_sum(secure_plan(counters=51), W, {}), Reason.WRONG_PLAN),
        "a byte too few": (sum_of(plan, W, good[:-1]), Reason.WRONG_SHAPE),
        "a byte too many": (sum_of(plan, W, good + b"\0"), Reason.WRONG_SHAPE),
        "nothing": (sum_of(plan, W, b""), Reason.WRONG_SHAPE),
        "bits after the last word": (sum_of(plan, W, with_padding(plan)), Reason.MALFORMED),
        "too few submissions": (sum_of(plan, W, good, submissions=LEAST - 1), Reason.IMPOSSIBLE_COUNTS),
        "too many submissions": (sum_of(plan, W, good, submissions=MOST + 1), Reason.IMPOSSIBLE_COUNTS),
    }


@pytest.mark.parametrize("name", planted(secure_plan(counters=COUNTERS)))
def test_what_the_plan_does_not_allow_is_refused_changes_nothing_and_uses_up_no_id(plan: Plan, name: str) -> None:
    bad, reason = planted(plan)[name]
    bench = Bench(plan)
    assert bench.kinds(bad) == [reason]
    change = bench.fold.checkpoint()
    assert (change.blocks, change.streams, change.contributions, change.position) == ((), {}, {}, 1)
    assert bench.kinds(cohort_sum(plan, W, {5: 1}, [1])) == ["counted"]


@pytest.mark.parametrize("submissions", [LEAST, MOST])
def test_all_and_the_least_survivors_of_a_cohort_are_counted(plan: Plan, submissions: int) -> None:
    assert Bench(plan).kinds(cohort_sum(plan, W, {}, submissions=submissions)) == ["counted"]


def test_a_sum_is_of_the_partition_of_its_id(plan: Plan) -> None:
    fold = Fold(plan, 2, 4)
    own, foreign = (cohort_sum(plan, W, {partition: 1}, place=(partition, 4)) for partition in (2, 3))
    verdicts = fold.apply([(0, foreign), (1, own)], 2)
    assert [verdict.reason or verdict.kind for verdict in verdicts] == [Reason.WRONG_PARTITION, "counted"]


def test_a_sum_for_a_plan_without_cohorts_is_refused() -> None:
    plan = tally_plan()
    bench = Bench(plan, 10_000)
    round_id = round_of(plan.id, W, 0, 0, 1)
    assert bench.kinds(CohortSumEntry(plan.id, W, round_id, MOST, bytes(100), 0)) == [Reason.WRONG_MODE]
    change = bench.fold.checkpoint()
    assert (change.streams, change.contributions) == ({}, {})


def delta_of(plan: Plan, number: int, sequence: int) -> DeltaEntry:
    """A plain delta, as a client of a central plan would send it."""
    run = Run(0, 1, Increments(np.array([number]), np.array([1])))
    packed_delta = Delta(plan.id, W, DeltaId(1, sequence), (run,)).pack(plan)
    return DeltaEntry(client_of(0, 1), packed_delta, 0)


@pytest.mark.parametrize("count", [1, 40])
def test_plain_deltas_for_a_secure_plan_are_refused_together_as_one_by_one(plan: Plan, count: int) -> None:
    bench = Bench(plan)
    deltas = [delta_of(plan, number, number) for number in range(count)]
    assert bench.kinds(*deltas) == [Reason.WRONG_MODE] * count
    assert bench.kinds(*deltas[:1], cohort_sum(plan, W, {}), *deltas) == [
        Reason.WRONG_MODE,
        "counted",
        *[Reason.WRONG_MODE] * count,
    ]
    change = bench.fold.checkpoint()
    assert len(change.streams) == len(change.contributions) == 1
    assert change.counts[W].tolist() == [0]


def test_a_plain_delta_of_another_plan_is_told_so(plan: Plan) -> None:
    central = tally_plan()
    assert Bench(plan).kinds(entry(client_of(0, 1), tally(central, 1, W, 1, 0))) == [Reason.WRONG_PLAN]


def test_a_sealed_window_cannot_be_written_any_more(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(cohort_sum(plan, W, {1: 1}))
    counters = bench.fold._window(W).counters
    bench.apply(seal(plan))
    with pytest.raises(ValueError, match="read-only"):
        counters[0, 0, 0] = 5


def test_a_checkpoint_holds_every_block_of_a_window_that_a_sum_came_to(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(cohort_sum(plan, W, {1: 1}))
    first = bench.fold.checkpoint()
    assert [(block.number, len(block.values)) for block in first.blocks] == [(0, BLOCK), (1, COUNTERS - BLOCK)]
    assert first.contributions == {Contribution(W, contributor_of(round_of(plan.id, W, 0, 0, 1))): MOST}
    assert bench.fold.checkpoint().blocks == ()


# ------------------------------------------------------------------------------------------------------- histories


class Model:
    """What a partition must come to, remembering everything: verdicts, counters by window, cohorts by window."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.closed = plan, W - 1
        self.known: dict[DeltaId, bytes] = {}
        self.sums: dict[int, Counter[int]] = {}
        self.cohorts: dict[Contribution, int] = {}

    def pass_on(self, item: LogEntry | RefusedEntry, values: dict[int, int]) -> VerdictKind | Reason | None:
        match item:
            case SealEntry():
                self.closed = max(self.closed, item.window)
                return None
            case CohortSumEntry():
                return self._known(item) or self._flaw(item) or self._count(item, values)
            case RefusedEntry():
                return item.reason
        return Reason.WRONG_MODE

    def _known(self, item: CohortSumEntry) -> VerdictKind | Reason | None:
        if item.id in self.known:
            return VerdictKind.DUPLICATE if self.known[item.id] == item.sum else Reason.ID_REUSED
        return VerdictKind.LATE if item.window <= self.closed else None

    def _flaw(self, item: CohortSumEntry) -> Reason | None:
        if len(item.sum) != self.plan.words.bytes:
            return Reason.WRONG_SHAPE
        return None if LEAST <= item.submissions <= MOST else Reason.IMPOSSIBLE_COUNTS

    def _count(self, item: CohortSumEntry, values: dict[int, int]) -> VerdictKind:
        self.known[item.id] = item.sum
        self.sums.setdefault(item.window, Counter()).update(values)
        self.cohorts[Contribution(item.window, contributor_of(item.round))] = item.submissions
        return VerdictKind.COUNTED


def history(plan: Plan, draw: random.Random, length: int) -> list[tuple[LogEntry | RefusedEntry, dict[int, int]]]:
    """Entries, and what each would add: sums of a few rounds again and again, some altered, among seals and junk."""
    items: list[tuple[LogEntry | RefusedEntry, dict[int, int]]] = []
    last = W
    for number in range(length):
        window = last + draw.choice([-1, 0, 0, 1])
        values = {draw.randrange(50): draw.randint(-9, 9) for _ in range(3)}
        made: LogEntry | RefusedEntry = cohort_sum(plan, window, values, number=draw.randrange(8))
        match draw.choice(["new", "new", "again", "again", "short", "few", "seal", "delta", "junk"]):
            case "again" if items:
                made, values = draw.choice(items)
            case "short":
                made = sum_of(plan, window, bytes(plan.words.bytes - 1), number=draw.randrange(8))
            case "few":
                made = cohort_sum(plan, window, values, number=draw.randrange(8), submissions=LEAST - 1)
            case "seal" if draw.random() < 0.5:
                made, last = seal(plan, last), last + 1
            case "delta":
                made = delta_of(plan, number % 50, number)
            case "junk":
                made = RefusedEntry(Reason.MALFORMED, "junk")
        items.append((made, values))
    return items


def test_sums_among_seals_and_junk_come_to_the_same_whatever_is_cut_and_replayed(seed: int) -> None:
    plan, draw = secure_plan(counters=50), random.Random(seed)
    for _ in range(25):
        items, model = history(plan, draw, 60), Model(plan)
        expected = [model.pass_on(*item) for item in items]
        whole = Bench(plan, 50)
        came = whole.kinds(*(item for item, _ in items))
        assert came == [kind for kind in expected if kind is not None], f"seed {seed}"
        bench = Bench(plan, 50)
        while bench.fold.position < len(items):
            start = bench.fold.position
            part = items[start : start + draw.randint(1, 12)]
            wanted = [kind for kind in expected[start : start + len(part)] if kind is not None]
            assert bench.kinds(*(item for item, _ in part)) == wanted, f"seed {seed}"
            if draw.random() < 0.3:
                bench.save()
            if draw.random() < 0.2:
                bench.crash()
        for each in (whole, bench):
            each.save()
        for window, values in model.sums.items():
            flat = bench.stored.sums[window].counters.reshape(-1)
            assert {n: int(flat[n]) for n in np.flatnonzero(flat)} == {n: v for n, v in values.items() if v}
        assert bench.stored.state.contributions == model.cohorts
        shape = plan.counters_shape
        assert described(bench.stored.load(shape)) == described(whole.stored.load(shape))
        assert bench.stored.verdicts == whole.stored.verdicts, f"seed {seed}"
