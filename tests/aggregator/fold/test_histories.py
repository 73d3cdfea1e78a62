"""The fold as a state machine: random histories of deltas, resends, reorderings, cheats, seals and crashes."""

from dataclasses import replace

import pytest

from aggregator.errors import StaleCheckpointError
from aggregator.fold.fold import Fold
from aggregator.fold.state import Checkpoint, FoldState
from aggregator.fold.verdicts import VerdictKind
from hushsum.errors import Reason
from hushsum.plan import Plan
from tests.aggregator.deltas import COUNTERS, tally_plan
from tests.aggregator.histories import FIRST, REACH, History
from tests.doubles import StoredFold, described

HISTORIES = 10
STEPS = 500


@pytest.fixture(scope="module", params=[None, 4], ids=["record", "client"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return tally_plan(records_per_client=request.param)


def history(plan: Plan, partitions: int, seed: int) -> History:
    made = History(plan, partitions, seed)
    made.run(STEPS)
    return made


@pytest.mark.parametrize("partitions", [1, 4])
def test_every_delta_is_counted_once_or_never_as_an_oracle_without_crashes_says(
    plan: Plan, partitions: int, seed: int
) -> None:
    met: set[object] = set()
    for number in range(HISTORIES):
        made = history(plan, partitions, seed + number)
        assert made.outcomes == made.counted(), f"seed {seed + number}"
        assert set(made.outcomes.values()) <= {1}
        met.update(verdict for part in made.parts for verdict in part.oracle.verdicts)
    expected = {*VerdictKind, Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW, Reason.MALFORMED} - {VerdictKind.REFUSED}
    if partitions > 1:
        expected.add(Reason.WRONG_PARTITION)
    if plan.privacy.records_per_client is not None:
        expected.add(Reason.TOO_MANY_RECORDS)
    assert met - {None} == expected  # the histories meet everything that can be met


def test_retained_verdicts_are_one_for_each_delta_whatever_crashed(plan: Plan, seed: int) -> None:
    made = history(plan, 4, seed)
    for part in made.parts:
        kept = {verdict.position: verdict.reason or verdict.kind for verdict in part.stored.verdicts}
        assert len(kept) == len(part.stored.verdicts)
        assert kept == {at: verdict for at, verdict in enumerate(part.oracle.verdicts) if verdict is not None}


def test_a_batch_equals_its_entries_one_by_one(plan: Plan, seed: int) -> None:
    made = history(plan, 1, seed)
    entries = [(position, item) for position, (item, _) in enumerate(made.parts[0].log)]
    batched, single = (Fold(plan, 0, 1, FoldState(closed_through=FIRST - 1)) for _ in range(2))
    one_by_one = [verdict for each in entries for verdict in single.apply([each], each[0] + 1)]
    assert batched.apply(entries, len(entries)) == one_by_one
    states = []
    for fold in (batched, single):
        stored = StoredFold(FoldState(closed_through=FIRST - 1), COUNTERS)
        stored.add(fold.checkpoint())
        states.append((described(stored.load(plan.counters_shape)), sums(stored)))
    assert states[0] == states[1]


def test_checkpoints_in_between_change_nothing(plan: Plan, seed: int) -> None:
    made = history(plan, 1, seed)
    entries = [(position, item) for position, (item, _) in enumerate(made.parts[0].log)]
    whole, cut = (
        Fold(plan, 0, 1, FoldState(closed_through=FIRST - 1)),
        Fold(plan, 0, 1, FoldState(closed_through=FIRST - 1)),
    )
    once, often = (StoredFold(FoldState(closed_through=FIRST - 1), COUNTERS) for _ in range(2))
    whole.apply(entries, len(entries))
    once.add(whole.checkpoint())
    for start in range(0, len(entries), 7):
        cut.apply(entries[start : start + 7], min(start + 7, len(entries)))
        often.add(cut.checkpoint())
    assert described(once.load(plan.counters_shape)) == described(often.load(plan.counters_shape))
    assert sums(once) == sums(often)


def sums(stored: StoredFold) -> dict[int, list[int]]:
    return {window: each.counters.reshape(-1).tolist() for window, each in stored.sums.items()}


def test_the_histories_pass_the_reach_of_the_mask(seed: int) -> None:
    made = history(tally_plan(), 1, seed)
    assert max(stream.next_sequence for stream in made.streams) > REACH


@pytest.mark.parametrize("bug", ["stream states apart", "position apart", "counts apart", "seal ignored"])
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str, seed: int) -> None:
    honest = Fold.checkpoint

    def checkpoint(fold: Fold) -> Checkpoint:
        change = honest(fold)
        if bug == "stream states apart":
            return replace(change, streams={})
        if bug == "position apart":
            return replace(change, position=max(change.position - 3, 0))
        if bug == "counts apart":
            return replace(change, blocks=change.blocks[1:])
        return change

    monkeypatch.setattr(Fold, "checkpoint", checkpoint)
    if bug == "seal ignored":
        monkeypatch.setattr(Fold, "_seal", lambda fold, item: None)
    with pytest.raises((AssertionError, StaleCheckpointError)):
        check_histories(seed)


def check_histories(seed: int) -> None:
    for number in range(HISTORIES):
        made = history(tally_plan(), 4, seed + number)
        assert made.outcomes == made.counted()
