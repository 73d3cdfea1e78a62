"""Noised whole deltas in the fold: one a client and window, whatever comes after it."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from aggregator.fold.fold import Fold
from aggregator.fold.state import Contribution, FoldState
from aggregator.fold.verdicts import RememberedKind, Verdict, VerdictKind
from hushsum.delta import DeltaId, digest, read_header, renumbered
from hushsum.delta_decoder import reader_of
from hushsum.errors import Reason
from hushsum.local.silo import unpack
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry, LogEntry, RefusedEntry, SealEntry
from tests.aggregator.deltas import client_of, tally, tally_plan
from tests.aggregator.reports import report_plan, reports_of, silo_of, silo_plan
from tests.doubles import StoredFold, described

W = 100
ALICE, BOB, CAROL = (client_of(0, 1, number) for number in range(3))
Sums = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@pytest.fixture(scope="module", params=["client", "record"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return silo_plan(unit=request.param)


class Bench:
    """A fold of one partition of one, its entries numbered as they come, and what a store would hold of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        state = FoldState(closed_through=W - 1)
        self.fold = Fold(plan, 0, 1, state, retain_verdicts=True)
        self.stored = StoredFold(state, int(np.prod(plan.counters_shape[1:])))

    def apply(self, *entries: LogEntry | RefusedEntry) -> Sequence[Verdict]:
        start = self.fold.position
        return self.fold.apply([*enumerate(entries, start)], start + len(entries))

    def kinds(self, *entries: LogEntry | RefusedEntry) -> list[VerdictKind | Reason]:
        return [verdict.reason or verdict.kind for verdict in self.apply(*entries)]

    def save(self) -> None:
        self.stored.add(self.fold.checkpoint())

    def crash(self) -> None:
        self.fold = Fold(self.plan, 0, 1, self.stored.load(self.plan.counters_shape), retain_verdicts=True)

    def recalled(self, sent: DeltaEntry) -> tuple[RememberedKind, Reason | None]:
        header = read_header(sent.delta)
        return self.fold.recall(sent.client_id, header.id, digest(sent.delta), header.window)

    def is_sum_of(self, *counted: DeltaEntry, window: int = W) -> bool:
        """Whether what is stored of a window is the sum of these, and their clients its contributors."""
        self.save()
        assert self.contributions(window) == dict.fromkeys((sent.client_id for sent in counted), 1)
        sums = self.stored.sums[window]
        counters, counts = total(self.plan, counted)
        same = (sums.counters.reshape(counters.shape) == counters).all() and (sums.counts == counts).all()
        return bool(same)

    def contributions(self, window: int = W) -> dict[str, int]:
        held = self.stored.state.contributions
        return {key.client_id: records for key, records in held.items() if key.window == window}


def total(plan: Plan, entries: Sequence[DeltaEntry]) -> Sums:
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    for sent in entries:
        unpack(sent.delta, plan).add_to(counters, counts)
    return counters, counts


def seal(plan: Plan, window: int = W) -> SealEntry:
    return SealEntry(plan.id, window, 0)


def test_a_submission_is_counted_once_whatever_is_resent(plan: Plan) -> None:
    bench = Bench(plan)
    sent = silo_of(plan, ALICE, W, {7: 3})
    assert bench.kinds(sent, sent, sent._replace(arrived_ms=77)) == ["counted", "duplicate", "duplicate"]
    assert bench.is_sum_of(sent)
    bench.crash()
    assert bench.kinds(sent) == ["duplicate"]
    assert bench.is_sum_of(sent)
    assert [verdict.client_id for verdict in bench.stored.verdicts] == [ALICE] * 4


def test_the_submissions_of_clients_add_up_in_their_windows(plan: Plan) -> None:
    bench = Bench(plan)
    sent = [silo_of(plan, client, W, {number: 9}) for number, client in enumerate((ALICE, BOB, CAROL))]
    later = silo_of(plan, ALICE, W + 1, {}, sequence=1)
    assert bench.kinds(*sent, later) == ["counted"] * 4
    assert bench.is_sum_of(*sent)
    assert bench.is_sum_of(later, window=W + 1)


def test_every_class_has_its_counters_and_its_count() -> None:
    plan = silo_plan(classes=3)
    bench = Bench(plan)
    sent = [silo_of(plan, client, W, {3: 4, 60: 5, 149: 6}) for client in (ALICE, BOB)]
    assert bench.kinds(*sent) == ["counted"] * 2
    assert bench.is_sum_of(*sent)


@pytest.mark.parametrize(
    "what", ["another draw", "the same under another id", "another stream", "no submission at all"]
)
def test_a_second_id_of_a_client_and_window_is_refused_whatever_it_holds(plan: Plan, what: str) -> None:
    bench = Bench(plan)
    first = silo_of(plan, ALICE, W, {7: 3})
    second = {
        "another draw": silo_of(plan, ALICE, W, {7: 3}, sequence=1),
        "the same under another id": first._replace(delta=renumbered(first.delta, id_after(first))),
        "another stream": silo_of(plan, ALICE, W, {}, stream=2),
        "no submission at all": first._replace(delta=renumbered(first.delta, id_after(first))[:-3]),
    }[what]
    expected = ["counted", Reason.SECOND_DELTA, "duplicate", "duplicate"]
    assert bench.kinds(first, second, second, first) == expected
    assert bench.is_sum_of(first)
    bench.crash()
    assert bench.kinds(second) == ["duplicate"]
    assert bench.kinds(silo_of(plan, ALICE, W, {}, stream=9)) == [Reason.SECOND_DELTA]  # the client is remembered too
    assert bench.kinds(seal(plan), silo_of(plan, BOB, W, {})) == ["late"]
    assert bench.recalled(first) == (RememberedKind.COUNTED, None)
    assert bench.recalled(second) == (RememberedKind.REFUSED, Reason.SECOND_DELTA)
    assert bench.is_sum_of(first)


def id_after(sent: DeltaEntry) -> DeltaId:
    id = read_header(sent.delta).id
    return DeltaId(id.stream, id.sequence + 1)


def test_the_same_id_with_other_bytes_or_another_window_is_refused(plan: Plan) -> None:
    bench = Bench(plan)
    first, again = silo_of(plan, ALICE, W, {7: 3}), silo_of(plan, ALICE, W, {7: 3})
    elsewhere = silo_of(plan, ALICE, W + 1, {7: 3})
    assert first.delta != again.delta, "noise is drawn once: another draw is another submission"
    assert bench.kinds(first, again, elsewhere) == ["counted", Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW]
    assert bench.is_sum_of(first)


def test_what_stands_after_the_seal_is_late_and_no_contribution(plan: Plan) -> None:
    bench = Bench(plan)
    before, after = silo_of(plan, ALICE, W, {1: 1}), silo_of(plan, BOB, W, {2: 2})
    assert bench.kinds(before, seal(plan), after, before) == ["counted", "late", "duplicate"]
    assert bench.is_sum_of(before)


def test_bytes_that_are_no_submission_make_no_contributor_and_use_up_no_id(plan: Plan) -> None:
    bench = Bench(plan)
    good = silo_of(plan, ALICE, W, {1: 1})
    for bad, reason in (
        (good.delta[:-1], Reason.MALFORMED),
        (good.delta + b"\0", Reason.MALFORMED),
        (good.delta + bytes(plan.upload_bytes_max), Reason.TOO_LARGE),
        (b"", Reason.MALFORMED),
        (b"\x02" + good.delta[1:], Reason.NEWER_FORMAT),
        (silo_of(silo_plan(counters=51), ALICE, W, {}).delta, Reason.WRONG_PLAN),
    ):
        assert bench.kinds(good._replace(delta=bad)) == [reason]
    change = bench.fold.checkpoint()
    assert (change.streams, change.contributions, change.blocks) == ({}, {}, ())
    assert bench.kinds(good) == ["counted"]


def test_a_plain_delta_is_no_submission(plan: Plan) -> None:
    data = tally(tally_plan(counters=50), 1, W, 1, 0)
    sent = DeltaEntry(ALICE, data[:1] + plan.id + data[33:], 0)
    assert Bench(plan).kinds(sent) == [Reason.MALFORMED]


def test_a_client_of_another_partition_is_refused(plan: Plan) -> None:
    foreign, own = client_of(0, 2), client_of(1, 2)
    fold = Fold(plan, 1, 2, FoldState(closed_through=W - 1))
    verdicts = fold.apply([*enumerate(silo_of(plan, client, W, {}) for client in (foreign, own))], 2)
    assert [verdict.reason or verdict.kind for verdict in verdicts] == [Reason.WRONG_PARTITION, "counted"]


def test_no_compiled_loop_reads_what_local_plans_collect(plan: Plan) -> None:
    assert reader_of(plan) is None
    assert reader_of(report_plan()) is None
    assert Fold(plan, 0, 1)._reader is None
    assert Fold(report_plan(), 0, 1)._reader is None


def test_reports_for_such_a_plan_are_refused(plan: Plan) -> None:
    sent = reports_of(report_plan(), W, [1], stream=5)
    sent = sent._replace(batch=sent.batch[:1] + plan.id + sent.batch[33:])
    assert Bench(plan).kinds(sent) == [Reason.WRONG_MODE]


def test_all_of_a_client_is_forgotten_with_its_window(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(silo_of(plan, ALICE, W, {1: 1}), silo_of(plan, BOB, W + 1, {1: 1}), seal(plan))
    bench.fold.forget(W)
    bench.save()
    assert {key.client_id for key in bench.stored.state.streams} == {BOB}
    assert {*bench.stored.state.contributions} == {Contribution(W + 1, BOB)}


# ------------------------------------------------------------------------------------------------------- histories


class Model:
    """What a partition must come to, remembering everything."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.closed = plan, W - 1
        self.known: dict[tuple[str, int, int], tuple[bytes, int]] = {}
        self.counted: dict[tuple[int, str], DeltaEntry] = {}

    def pass_on(self, item: LogEntry | RefusedEntry) -> VerdictKind | Reason | None:
        if isinstance(item, SealEntry):
            self.closed = max(self.closed, item.window)
            return None
        assert isinstance(item, DeltaEntry)
        header = read_header(item.delta)
        key = item.client_id, header.id.stream, header.id.sequence
        if key in self.known:
            data, window = self.known[key]
            if window != header.window:
                return Reason.ID_OF_ANOTHER_WINDOW
            return VerdictKind.DUPLICATE if data == item.delta else Reason.ID_REUSED
        if header.window <= self.closed:
            return VerdictKind.LATE
        second = (header.window, item.client_id) in self.counted
        if not second and len(item.delta) < len(silo_of(self.plan, ALICE, W, {}, stream=1).delta):
            return Reason.MALFORMED
        self.known[key] = item.delta, header.window
        if not second:
            self.counted[header.window, item.client_id] = item
        return Reason.SECOND_DELTA if second else VerdictKind.COUNTED


def history(plan: Plan, draw: random.Random, length: int) -> list[LogEntry | RefusedEntry]:
    """Submissions of three clients again and again, some cut, in a few streams, among seals."""
    items: list[LogEntry | RefusedEntry] = []
    last = W
    for _ in range(length):
        window, client = last + draw.choice([-1, 0, 0, 1]), draw.choice([ALICE, BOB, CAROL])
        stream, sequence = draw.randint(1, 2), draw.randrange(3)
        sent = silo_of(plan, client, window, {draw.randrange(50): 5}, stream=stream, sequence=sequence)
        match draw.choice(["new", "again", "again", "cut", "seal"]):
            case "again" if items:
                items.append(draw.choice(items))
            case "cut":
                items.append(sent._replace(delta=sent.delta[:-5]))
            case "seal" if draw.random() < 0.5:
                items.append(seal(plan, last))
                last += 1
            case _:
                items.append(sent)
    return items


def test_submissions_among_seals_come_to_the_same_whatever_is_cut_and_replayed(plan: Plan, seed: int) -> None:
    draw = random.Random(seed)
    seen: Counter[VerdictKind | Reason | None] = Counter()
    for _ in range(15):
        items, model = history(plan, draw, 50), Model(plan)
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
            for window in {window for window, _ in model.counted}:
                counted = [sent for (of, _), sent in model.counted.items() if of == window]
                assert each.is_sum_of(*counted, window=window), f"seed {seed}"  # nothing lost, nothing doubled
        shape = plan.counters_shape
        assert described(bench.stored.load(shape)) == described(whole.stored.load(shape))
        assert bench.stored.verdicts == whole.stored.verdicts, f"seed {seed}"
    assert len(seen) == 8, seen  # every verdict there is, and seals
