from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from aggregator.fold.fold import Fold
from aggregator.fold.state import BLOCK, FoldState
from aggregator.fold.verdicts import RememberedKind, Verdict, VerdictKind
from hushsum.delta import DeltaId, digest
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry, LogEntry, RefusedEntry, SealEntry
from tests.aggregator.deltas import COUNTERS, client_of, entry, tally, tally_plan, windowed_plan
from tests.doubles import StoredFold, described

W = 100
ALICE, BOB = "alice", "bob"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tally_plan()


@pytest.fixture(scope="module")
def bounded() -> Plan:
    return tally_plan(records_per_client=3)


class Bench:
    """A fold of one partition, its entries numbered as they come, and what a store would hold of it."""

    def __init__(self, plan: Plan, **options: bool) -> None:
        self.plan, self.options = plan, options
        state = FoldState(closed_through=W - 1)
        self.fold = Fold(plan, 0, 1, state, **options)
        self.stored = StoredFold(state, COUNTERS)

    def apply(self, *entries: LogEntry | RefusedEntry) -> Sequence[Verdict]:
        start = self.fold.position
        return self.fold.apply([*enumerate(entries, start)], start + len(entries))

    def kinds(self, *entries: LogEntry | RefusedEntry) -> list[VerdictKind | Reason]:
        return [verdict.reason or verdict.kind for verdict in self.apply(*entries)]

    def save(self) -> None:
        self.stored.add(self.fold.checkpoint())

    def crash(self) -> None:
        self.fold = Fold(self.plan, 0, 1, self.stored.load(self.plan.counters_shape), **self.options)

    def counts(self, window: int = W) -> dict[int, int]:
        """What is stored, by counter, where it is not 0."""
        flat = self.stored.sums[window].counters[0]
        return {int(index): int(flat[index]) for index in np.flatnonzero(flat)}


def seal(plan: Plan, window: int = W) -> SealEntry:
    return SealEntry(plan.id, window, 0)


def recalled(bench: Bench, delta: bytes, sequence: int, window: int = W, client: str = ALICE) -> tuple[object, object]:
    return bench.fold.recall(client, DeltaId(1, sequence), digest(delta), window)


def test_a_delta_is_counted_once_whatever_is_resent(plan: Plan) -> None:
    bench = Bench(plan)
    sent = entry(ALICE, tally(plan, 7, W, stream=1, sequence=0))
    assert bench.kinds(sent, sent, sent) == ["counted", "duplicate", "duplicate"]
    bench.save()
    assert bench.counts() == {7: 1}


def test_the_count_counter_is_set_from_the_declared_records(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 7, W, 1, 0, records=5)), entry(BOB, tally(plan, 8, W, 1, 0)))
    bench.save()
    assert bench.stored.sums[W].counts.tolist() == [6 * plan.privacy.mechanism.count_scale]


def test_two_clients_may_use_the_same_stream_and_number(plan: Plan) -> None:
    bench = Bench(plan)
    assert bench.kinds(*(entry(client, tally(plan, 7, W, 1, 0)) for client in (ALICE, BOB))) == ["counted", "counted"]


def test_the_same_id_with_other_bytes_is_refused_and_changes_nothing(plan: Plan) -> None:
    bench = Bench(plan)
    first, other = tally(plan, 7, W, 1, 0), tally(plan, 8, W, 1, 0)
    assert bench.kinds(entry(ALICE, first), entry(ALICE, other), entry(ALICE, first)) == [
        "counted",
        Reason.ID_REUSED,
        "duplicate",
    ]
    bench.save()
    assert bench.counts() == {7: 1}


def test_an_id_that_was_used_in_another_window_is_told_apart(plan: Plan) -> None:
    bench = Bench(plan)
    assert bench.kinds(entry(ALICE, tally(plan, 7, W, 1, 0)), entry(ALICE, tally(plan, 7, W + 1, 1, 0))) == [
        "counted",
        Reason.ID_OF_ANOTHER_WINDOW,
    ]


def test_what_stands_before_the_seal_is_in_and_what_stands_after_is_late(plan: Plan) -> None:
    bench = Bench(plan)
    before, after = (entry(ALICE, tally(plan, number, W, 1, number)) for number in (0, 1))
    assert bench.kinds(before, seal(plan), after, seal(plan), after) == ["counted", "late", "late"]
    bench.save()
    assert bench.counts() == {0: 1}


def test_a_resend_of_a_counted_delta_after_the_seal_is_remembered_as_counted(plan: Plan) -> None:
    bench = Bench(plan)
    counted, late = tally(plan, 0, W, 1, 0), tally(plan, 1, W, 1, 1)
    assert bench.kinds(entry(ALICE, counted), seal(plan), entry(ALICE, counted), entry(ALICE, late)) == [
        "counted",
        "duplicate",
        "late",
    ]
    assert recalled(bench, counted, 0) == (RememberedKind.COUNTED, None)
    assert recalled(bench, late, 1) == (RememberedKind.LATE, None)
    bench.save()
    bench.crash()
    assert recalled(bench, counted, 0) == (RememberedKind.COUNTED, None)
    assert recalled(bench, late, 1) == (RememberedKind.LATE, None)


def test_after_forgetting_nothing_is_called_late_for_it_may_have_been_counted(plan: Plan) -> None:
    bench = Bench(plan)
    counted = tally(plan, 0, W, 1, 0)
    bench.apply(entry(ALICE, counted), seal(plan))
    bench.fold.forget(W)
    assert recalled(bench, counted, 0) == (RememberedKind.UNKNOWN, None)
    assert recalled(bench, tally(plan, 1, W, 1, 1), 1) == (RememberedKind.UNKNOWN, None)
    assert bench.kinds(entry(ALICE, counted)) == ["late"]


def test_an_id_below_reach_is_told_apart_when_it_is_asked_for(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(*(entry(ALICE, tally(plan, number, W, 1, number)) for number in range(70)))
    for other in (3, 4):
        assert recalled(bench, tally(plan, other, W, 1, 3), 3) == (RememberedKind.OUT_OF_REACH, None)
    bench.apply(seal(plan))
    assert recalled(bench, tally(plan, 3, W, 1, 3), 3) == (RememberedKind.OUT_OF_REACH, None)
    assert bench.kinds(entry(ALICE, tally(plan, 3, W, 1, 3))) == ["duplicate"]


def test_other_bytes_are_recalled_as_refused(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 0, W, 1, 0)), seal(plan))
    assert recalled(bench, tally(plan, 1, W, 1, 0), 0) == (RememberedKind.REFUSED, Reason.ID_REUSED)
    other = recalled(bench, tally(plan, 0, W + 1, 1, 0), 0, window=W + 1)
    assert other == (RememberedKind.REFUSED, Reason.ID_OF_ANOTHER_WINDOW)


def test_what_the_fold_has_never_seen_in_an_open_window_is_not_called_late(plan: Plan) -> None:
    assert recalled(Bench(plan), tally(plan, 0, W, 1, 0), 0) == (RememberedKind.UNKNOWN, None)


def test_a_seal_closes_older_windows_too(plan: Plan) -> None:
    bench = Bench(plan)
    assert bench.kinds(seal(plan, W + 3), *(entry(ALICE, tally(plan, n, W + n, 1, n)) for n in (0, 2, 3, 4))) == [
        "late",
        "late",
        "late",
        "counted",
    ]


def test_nothing_is_counted_before_the_first_window(plan: Plan) -> None:
    assert Bench(plan).kinds(entry(ALICE, tally(plan, 0, W - 1, 1, 0))) == ["late"]


def test_a_seal_of_another_plan_closes_nothing(plan: Plan, bounded: Plan) -> None:
    bench = Bench(plan)
    assert bench.kinds(seal(bounded), entry(ALICE, tally(plan, 0, W, 1, 0))) == ["counted"]


def test_a_sealed_window_cannot_be_written_any_more(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 0, W, 1, 0)))
    counters = bench.fold._window(W).counters
    bench.apply(seal(plan))
    with pytest.raises(ValueError, match="read-only"):
        counters[0, 0, 0] = 5


def test_malformed_entries_are_refused_counted_and_passed(plan: Plan) -> None:
    bench = Bench(plan)
    verdicts = bench.apply(RefusedEntry(Reason.MALFORMED, "no entry"), entry(ALICE, b"\x01no delta"), entry(ALICE, b""))
    assert [(verdict.kind, verdict.reason, verdict.id) for verdict in verdicts] == [
        (VerdictKind.REFUSED, Reason.MALFORMED, None)
    ] * 3
    assert [verdict.client_id for verdict in verdicts] == [None, ALICE, ALICE]
    assert [verdict.position for verdict in verdicts] == [0, 1, 2]
    assert bench.kinds(entry(ALICE, tally(plan, 0, W, 1, 0))) == ["counted"]


def planted(plan: Plan, bounded: Plan) -> Iterator[tuple[bytes, Reason]]:
    good = tally(plan, 5, W, 1, 0)
    yield tally(bounded, 5, W, 1, 0), Reason.WRONG_PLAN
    yield b"\x09" + good[1:], Reason.NEWER_FORMAT
    yield good + b"\x00", Reason.MALFORMED
    yield tally(plan, COUNTERS + 1, W, 1, 0), Reason.BUCKET_OUT_OF_RANGE
    yield good + bytes(plan.delta_bytes_max), Reason.TOO_LARGE


def test_what_the_plan_does_not_allow_is_refused_again_here_and_changes_nothing(plan: Plan, bounded: Plan) -> None:
    for data, reason in planted(plan, bounded):
        bench = Bench(plan)
        assert bench.kinds(entry(ALICE, data)) == [reason]
        change = bench.fold.checkpoint()
        assert (change.blocks, change.streams, change.position) == ((), {}, 1)


def test_a_refused_delta_does_not_use_up_its_id(plan: Plan) -> None:
    bench = Bench(plan)
    bad, good = tally(plan, COUNTERS + 1, W, 1, 0), tally(plan, 5, W, 1, 0)
    assert bench.kinds(entry(ALICE, bad), entry(ALICE, good)) == [Reason.BUCKET_OUT_OF_RANGE, "counted"]


def test_a_client_of_another_partition_is_refused(plan: Plan) -> None:
    fold = Fold(plan, 2, 4)
    own, foreign = client_of(2, 4), client_of(3, 4)
    verdicts = fold.apply([(0, entry(foreign, tally(plan, 0, W, 1, 0))), (1, entry(own, tally(plan, 0, W, 1, 0)))], 2)
    assert [verdict.reason or verdict.kind for verdict in verdicts] == [Reason.WRONG_PARTITION, "counted"]


def test_the_contribution_bound_covers_all_streams_and_refuses_whole_deltas(bounded: Plan) -> None:
    bench = Bench(bounded)
    sent = [
        entry(ALICE, tally(bounded, 0, W, stream=1, sequence=0, records=2)),
        entry(ALICE, tally(bounded, 1, W, stream=2, sequence=0, records=2)),  # 4 of 3
        entry(ALICE, tally(bounded, 2, W, stream=3, sequence=0, records=1)),  # 3 of 3: the refused one took nothing
        entry(ALICE, tally(bounded, 3, W, stream=1, sequence=1, records=1)),
        entry(BOB, tally(bounded, 4, W, stream=1, sequence=0, records=3)),
        entry(ALICE, tally(bounded, 5, W + 1, stream=1, sequence=2, records=3)),
    ]
    beyond = Reason.TOO_MANY_RECORDS
    assert bench.kinds(*sent) == ["counted", beyond, "counted", beyond, "counted", "counted"]
    bench.save()
    assert bench.counts() == {0: 2, 2: 1, 4: 3}


def test_one_record_of_a_client_decides_which_of_its_other_deltas_fit(bounded: Plan) -> None:
    first, near, far = (
        entry(ALICE, tally(bounded, counter, W, stream=1, sequence=counter, records=records))
        for counter, records in enumerate((1, 3, 2))
    )
    sums = []
    for sent, verdicts in (
        ((first, near, far), ["counted", Reason.TOO_MANY_RECORDS, "counted"]),
        ((near, far), ["counted", Reason.TOO_MANY_RECORDS]),
    ):
        bench = Bench(bounded)
        assert bench.kinds(*sent) == verdicts
        bench.save()
        sums.append(bench.counts())
    assert sums == [{0: 1, 2: 2}, {1: 3}], "six records apart, two bounds"


def test_a_delta_beyond_the_bound_is_remembered_as_refused(bounded: Plan) -> None:
    bench = Bench(bounded)
    first, beyond = tally(bounded, 0, W, 1, 0, records=3), tally(bounded, 1, W, 1, 1)
    assert bench.kinds(*(entry(ALICE, each) for each in (first, beyond, beyond))) == [
        "counted",
        Reason.TOO_MANY_RECORDS,
        "duplicate",
    ]
    bench.save()
    bench.crash()
    assert recalled(bench, beyond, 1) == (RememberedKind.REFUSED, Reason.TOO_MANY_RECORDS)


def test_the_bound_survives_a_crash(bounded: Plan) -> None:
    bench = Bench(bounded)
    bench.apply(entry(ALICE, tally(bounded, 0, W, 1, 0, records=3)))
    bench.save()
    bench.crash()
    assert bench.kinds(entry(ALICE, tally(bounded, 1, W, 2, 0))) == [Reason.TOO_MANY_RECORDS]


# ------------------------------------------------------------------------------------------------- windows of a client


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_a_client_counts_in_so_many_windows_for_the_plan_s_life(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    plan = windowed_plan(2)
    bench, beyond = Bench(plan), Reason.TOO_MANY_WINDOWS

    def sent(client: str, window: int, stream: int = 1, records: int = 1) -> DeltaEntry:
        return entry(client, tally(plan, 0, window, stream, sequence=window - W, records=records))

    assert bench.kinds(sent(ALICE, W), sent(ALICE, W, stream=2), sent(ALICE, W + 2), sent(ALICE, W + 1)) == [
        *["counted"] * 3,
        beyond,
    ]
    assert bench.kinds(sent(ALICE, W + 1), sent(ALICE, W + 2, stream=2), sent(BOB, W + 1)) == [
        "duplicate",
        *["counted"] * 2,
    ]
    refused = tally(plan, 0, W + 1, 1, sequence=1)
    assert recalled(bench, refused, 1, W + 1) == (RememberedKind.REFUSED, beyond)
    bench.apply(seal(plan, W + 2))
    bench.fold.forget(W + 2)
    bench.save()
    bench.crash()  # everything of these windows is forgotten, but in how many a client is
    assert not bench.stored.state.contributions
    assert [bench.fold.is_barred(client, W + 3) for client in (ALICE, BOB)] == [True, False]
    assert bench.kinds(sent(ALICE, W + 3), sent(BOB, W + 3), sent(BOB, W + 4)) == [beyond, "counted", beyond]


def test_a_delta_that_is_refused_takes_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = windowed_plan(1, records_per_client=2)
    for kernels in ("fast", "plain"):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        bench = Bench(plan)
        bench.apply(seal(plan))
        sent = [
            entry(ALICE, tally(plan, 0, W, 1, 0)),  # late
            entry(ALICE, tally(plan, 0, W + 1, 1, 1, records=3)),  # too many records
            entry(ALICE, tally(plan, 0, W + 2, 1, 2, records=2)),
        ]
        assert bench.kinds(*sent) == ["late", Reason.TOO_MANY_RECORDS, "counted"]


# ---------------------------------------------------------------------------------------------------------- clients


def clients(bench: Bench, window: int = W) -> dict[str, int]:
    """Who is in a window by what is stored, and with how many records."""
    bench.save()
    return {key.client_id: n for key, n in bench.stored.state.contributions.items() if key.window == window}


@pytest.mark.parametrize("bound", [None, 3])
def test_clients_are_tallied_over_their_streams_where_the_plan_asks_for_a_number_of_them(bound: int | None) -> None:
    plan = tally_plan(min_clients=2, records_per_client=bound)
    bench = Bench(plan)
    twice = entry(ALICE, tally(plan, 0, W, 1, 0))
    bench.apply(twice, twice, entry(ALICE, tally(plan, 1, W, 2, 0)), entry(BOB, tally(plan, 2, W, 1, 0)))
    bench.apply(entry(BOB, tally(plan, 3, W + 1, 1, 1)), seal(plan), entry("late", tally(plan, 4, W, 1, 0)))
    assert clients(bench) == {ALICE: 2, BOB: 1}
    bench.crash()
    bench.apply(entry(ALICE, tally(plan, 5, W + 1, 1, 1)))
    assert clients(bench, W + 1) == {ALICE: 1, BOB: 1}
    bench.fold.forget(W)
    assert clients(bench) == {}
    assert clients(bench, W + 1) == {ALICE: 1, BOB: 1}


def test_without_a_bound_and_min_clients_nobody_is_tallied() -> None:
    plan = tally_plan()
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 0, W, 1, 0)))
    assert clients(bench) == {}


def test_a_client_whose_deltas_are_all_refused_is_not_one_of_the_clients() -> None:
    plan = tally_plan(min_clients=2, records_per_client=3)
    bench = Bench(plan)
    sent = [entry(ALICE, tally(plan, 0, W, 1, 0, records=4)), entry(BOB, tally(plan, COUNTERS + 1, W, 1, 0))]
    assert bench.kinds(*sent) == [Reason.TOO_MANY_RECORDS, Reason.BUCKET_OUT_OF_RANGE]
    assert clients(bench) == {}


def test_a_stream_is_forgotten_with_the_last_window_that_it_touched(plan: Plan) -> None:
    bench = Bench(plan)
    both = [tally(plan, 0, W, 1, 0), tally(plan, 1, W + 1, 1, 1)]
    bench.apply(*(entry(ALICE, each) for each in both), entry(BOB, tally(plan, 2, W, 1, 0)), seal(plan))
    bench.fold.forget(W)
    bench.save()
    assert [key.client_id for key in bench.stored.state.streams] == [ALICE]
    bench.apply(seal(plan, W + 1))
    bench.fold.forget(W + 1)
    bench.save()
    assert bench.stored.state.streams == {}
    assert bench.kinds(*(entry(ALICE, each) for each in both)) == ["late", "late"]


def test_a_contribution_is_forgotten_with_its_window(bounded: Plan) -> None:
    bench = Bench(bounded)
    bench.apply(*(entry(ALICE, tally(bounded, n, W + n, 1, n)) for n in (0, 1)), seal(bounded))
    bench.fold.forget(W)
    bench.save()
    assert [key.window for key in bench.stored.state.contributions] == [W + 1]


def test_a_checkpoint_holds_what_changed_and_nothing_else(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 1, W, 1, 0)), entry(BOB, tally(plan, BLOCK, W, 1, 0)))
    first = bench.fold.checkpoint()
    assert [block.number for block in first.blocks] == [0, 1]
    assert len(first.streams) == 2
    bench.apply(entry(BOB, tally(plan, COUNTERS - 1, W, 1, 1)))
    second = bench.fold.checkpoint()
    assert [(block.number, len(block.values)) for block in second.blocks] == [(2, COUNTERS - 2 * BLOCK)]
    assert [key.client_id for key in second.streams] == [BOB]
    assert bench.fold.changed is False
    assert bench.fold.checkpoint().blocks == ()


def test_a_checkpoint_is_a_copy(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 1, W, 1, 0)))
    change = bench.fold.checkpoint()
    bench.apply(entry(ALICE, tally(plan, 1, W, 1, 1)))
    assert change.blocks[0].values[1] == 1
    assert change.counts[W].tolist() == [plan.privacy.mechanism.count_scale]


def test_a_seal_or_forgetting_makes_a_checkpoint_due(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 1, W, 1, 0)))
    assert (bench.fold.changed, bench.fold.must_checkpoint) == (True, False)
    bench.apply(seal(plan))
    assert bench.fold.must_checkpoint
    bench.save()
    assert not bench.fold.changed
    bench.fold.forget(W)
    assert bench.fold.must_checkpoint


def test_sealed_counters_leave_the_fold_with_the_checkpoint_that_stores_them(plan: Plan) -> None:
    bench = Bench(plan)
    bench.apply(entry(ALICE, tally(plan, 1, W, 1, 0)), seal(plan))
    assert bench.fold._windows._closed
    bench.save()
    assert not bench.fold._windows._closed
    assert not bench.fold._windows._open


def test_verdicts_are_retained_only_when_told(plan: Plan) -> None:
    for retained in (False, True):
        bench = Bench(plan, retain_verdicts=retained)
        sent = entry(ALICE, tally(plan, 1, W, 1, 0))
        verdicts = bench.apply(sent, sent, seal(plan))
        bench.save()
        bench.save()
        assert bench.stored.verdicts == (verdicts if retained else [])


def test_positions_rise_to_the_end_and_may_leave_gaps(plan: Plan) -> None:
    fold, junk = Fold(plan, 0, 1), RefusedEntry(Reason.MALFORMED, "")
    assert [verdict.position for verdict in fold.apply([(1, junk), (5, junk)], 9)] == [1, 5]
    assert fold.position == 9
    assert fold.apply([], 12) == []
    assert fold.position == 12
    for positions, end in (([11], 13), ([12, 12], 13), ([13, 12], 14), ([13], 13), ([], 11)):
        with pytest.raises(AssertionError, match="do not rise"):
            Fold(plan, 0, 1, FoldState(position=12)).apply([(position, junk) for position in positions], end)


def test_an_entry_that_was_refused_before_the_fold_keeps_its_reason(plan: Plan) -> None:
    fold = Fold(plan, 0, 1)
    assert fold.apply([(0, RefusedEntry(Reason.TOO_LARGE, ""))], 1) == [
        Verdict(VerdictKind.REFUSED, Reason.TOO_LARGE, None, None, None, 0)
    ]


def test_only_a_closed_window_can_be_forgotten(plan: Plan) -> None:
    with pytest.raises(AssertionError, match="closed"):
        Bench(plan).fold.forget(W)


def test_a_fold_that_was_loaded_is_the_fold_that_was_stored(bounded: Plan) -> None:
    bench = Bench(bounded)
    bench.apply(*(entry(ALICE, tally(bounded, n, W + n % 2, n, 0)) for n in range(4)))
    bench.save()
    before = described(bench.stored.load(bounded.counters_shape))
    bench.crash()
    bench.save()
    assert described(bench.stored.load(bounded.counters_shape)) == before


@pytest.mark.parametrize("client", ["a\0b", "", "a\nb", "e\u0301", "x" * 129])
@pytest.mark.parametrize("retain", [False, True])
def test_what_is_no_client_id_is_refused_and_leaves_no_text_that_a_database_may_refuse(
    client: str, *, retain: bool
) -> None:
    """PostgreSQL takes no text with a NUL: whoever writes one into an unsigned log would stop the fold."""
    plan = tally_plan(min_clients=1)
    fold = Fold(plan, 0, 1, retain_verdicts=retain)
    good = entry("good", tally(plan, 1, 100, 1, 0))
    entries = [entry(client, tally(plan, 0, 100, 1, 0)), entry(client, b"junk"), good]
    verdicts = fold.apply([*enumerate([*entries, *entries])], 6)
    assert [(each.kind, each.reason, each.client_id) for each in verdicts][:2] == [
        (VerdictKind.REFUSED, Reason.MALFORMED, None)
    ] * 2
    change = fold.checkpoint()
    assert {key[0] for key in change.streams} == {"good"}
    assert {key[1] for key in change.contributions} == {"good"}
    assert {each.client_id for each in change.verdicts} <= {"good", None}
