"""What is lost, doubled or in a wrong window is found, wherever it is planted; nothing else is."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from aggregator.fold.verdicts import Verdict, VerdictKind
from edge_client import Counts
from hushsum.delta import DeltaId
from hushsum_simulator.deployment.journal import Account, Added, FleetJournal
from hushsum_simulator.deployment.verdicts import (
    VerdictTally,
    by_id,
    by_number,
    by_submission,
    counted_batches,
    submitted,
)
from hushsum_simulator.errors import JourneyError

ALL_TOLD = ("acknowledged",) * 3


def journal(ann: Sequence[str] = ALL_TOLD, bob: Sequence[str] = ALL_TOLD) -> FleetJournal:
    """Two clients, two windows, three deltas each, and what they were told of each; an empty word: nothing."""
    added = [Added(10, 0, 0, 1, 4, 4), Added(10, 1, 1, 1, 4, 4), Added(11, 2, 2, 1, 4, 4)]
    accounts = {}
    for stream, (name, words) in enumerate({"ann": ann, "bob": bob}.items(), start=1):
        answers = {DeltaId(stream, number): word for number, word in enumerate(words) if word}
        accounts[name] = Account(stream, list(added), Counts(records=12, deltas=3), answers)
    return FleetJournal("ab" * 32, 10, 2, 1.0, accounts)


def verdicts(*, anonymous: bool = False) -> list[Verdict]:
    """All of these are counted."""
    of_window = {0: 10, 1: 10, 2: 11}
    return [
        Verdict(VerdictKind.COUNTED, None, DeltaId(stream, number), None if anonymous else name, window, 3 * stream)
        for stream, name in enumerate(("ann", "bob"), start=1)
        for number, window in of_window.items()
    ]


def total(of: dict[int, VerdictTally]) -> VerdictTally:
    return sum(of.values(), VerdictTally())


Judge = Callable[[FleetJournal, Iterable[Verdict]], dict[int, VerdictTally]]
JUDGES = [pytest.param(by_id, False, id="by-id"), pytest.param(by_number, True, id="by-number")]


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_what_is_all_there_is_in_order(judge: Judge, anonymous: bool) -> None:
    all_of_it = verdicts(anonymous=anonymous)
    copies = [verdict._replace(kind=VerdictKind.DUPLICATE) for verdict in all_of_it]
    assert judge(journal(), [*all_of_it, *copies]) == {10: VerdictTally(4, 4), 11: VerdictTally(2, 2)}


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_lost_delta_is_found(judge: Judge, anonymous: bool) -> None:
    assert judge(journal(), verdicts(anonymous=anonymous)[1:])[10] == VerdictTally(sent=4, counted=3, lost=1)


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_doubled_delta_is_found(judge: Judge, anonymous: bool) -> None:
    all_of_it = verdicts(anonymous=anonymous)
    assert judge(journal(), [*all_of_it, all_of_it[2]])[11] == VerdictTally(sent=2, counted=2, doubled=1)


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_delta_of_nobody_is_found(judge: Judge, anonymous: bool) -> None:
    all_of_it = verdicts(anonymous=anonymous)
    assert total(judge(journal(), [*all_of_it, all_of_it[0]._replace(id=DeltaId(9, 0))])).doubled == 1


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_delta_in_a_wrong_window_is_found(judge: Judge, anonymous: bool) -> None:
    all_of_it = verdicts(anonymous=anonymous)
    found = total(judge(journal(), [all_of_it[0]._replace(window=11), *all_of_it[1:]]))
    assert (found.lost, found.doubled, found.wrong) == (0, 0, 1)


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_delta_that_came_late_and_was_told_so_is_not_lost(judge: Judge, anonymous: bool) -> None:
    told = journal(("acknowledged", "acknowledged", "late"), ("refused", "acknowledged", "acknowledged"))
    all_of_it = verdicts(anonymous=anonymous)
    assert total(judge(told, [all_of_it[0], all_of_it[1], *all_of_it[4:]])) == VerdictTally(
        sent=6, counted=4, dropped=2
    )


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
def test_a_delta_that_counts_although_its_client_was_told_that_it_is_late_is_found(
    judge: Judge, anonymous: bool
) -> None:
    told = journal(("late", "acknowledged", "acknowledged"))
    assert total(judge(told, verdicts(anonymous=anonymous))) == VerdictTally(sent=6, counted=6, doubled=1)


@pytest.mark.parametrize(("judge", "anonymous"), JUDGES)
@pytest.mark.parametrize("word", ["acknowledged", "counted", "unknown", ""])
def test_whatever_else_clients_were_told_a_delta_that_was_not_told_as_dropped_and_counts_nowhere_is_lost(
    judge: Judge, anonymous: bool, word: str
) -> None:
    """Of the same client, and of another, a delta was told late and counts."""
    told, all_of_it = journal(("late", word, "acknowledged"), ("late", *ALL_TOLD[1:])), verdicts(anonymous=anonymous)
    found = total(judge(told, [all_of_it[0], *all_of_it[2:]]))
    assert (found.lost, found.doubled, found.dropped, found.wrong) == (1, 2, 0, 0)


@pytest.mark.parametrize("judge", [by_id, by_number])
def test_what_nobody_was_told_of_is_lost(judge: Judge) -> None:
    assert total(judge(journal(["unknown"] * 3, ["unknown"] * 3), [])) == VerdictTally(sent=6, lost=6)
    assert total(judge(journal([""] * 3, [""] * 3), [])) == VerdictTally(sent=6, lost=6)


def test_only_batches_that_are_counted_are_in_a_release() -> None:
    found = counted_batches(journal(), verdicts()[1:], 10)
    assert found == {"ann": [1], "bob": [0, 1]}


def of_cohorts(results: Sequence[dict[int, str]]) -> FleetJournal:
    accounts = {f"client-{number}": Account(results=each) for number, each in enumerate(results)}
    return FleetJournal("ab" * 32, 10, 1, 1.0, accounts)


FATES = [{10: "counted"}, {10: "counted"}, {10: "aborted"}, {10: "unknown"}, {}]


@pytest.mark.parametrize(
    ("released", "expected"),
    [
        pytest.param(2, VerdictTally(sent=4, counted=2, dropped=1, untold=1), id="all-as-told"),
        pytest.param(3, VerdictTally(sent=4, counted=3, dropped=1), id="the-unknown-one-counts"),
        pytest.param(1, VerdictTally(sent=4, counted=1, lost=1, dropped=1, untold=1), id="lost"),
        pytest.param(4, VerdictTally(sent=4, counted=4, dropped=1, doubled=1), id="doubled"),
    ],
)
def test_submissions_are_held_against_what_clients_were_told(released: int, expected: VerdictTally) -> None:
    assert by_submission(of_cohorts(FATES), {10: released}) == {10: expected}


def test_clients_whose_submission_counts_are_those_that_were_told_so() -> None:
    assert submitted(of_cohorts(FATES), 10) == ({"client-0", "client-1"}, {"client-3"})


def test_a_journal_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = journal(("late", "acknowledged", ""))
    written.accounts["ann"].results[10] = "counted"
    written.accounts["ann"].stream = 2**64 - 1
    written.accounts["ann"].answers[DeltaId(2**64 - 1, 5)] = "acknowledged"
    written.save(tmp_path / "sent.json")
    assert FleetJournal.load(tmp_path / "sent.json") == written


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "accounts": {"a": {}}}', '{"format": 1}'])
def test_a_damaged_journal_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "sent.json").write_text(text)
    with pytest.raises(JourneyError, match=r"sent\.json: "):
        FleetJournal.load(tmp_path / "sent.json")
