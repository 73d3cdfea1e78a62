"""The oracle of the fault runs finds what is planted: a delta that is lost, one that counts twice, one taken back."""

from collections.abc import Callable

import numpy as np
import pytest

from hushsum import Sketch
from hushsum.delta import DeltaId, encode
from hushsum.sketch import Counters
from hushsum_proto.answers import Status
from hushsum_simulator.chaos.run import ChaosTally, Deck, Means, fault_plan
from hushsum_simulator.chaos.senders import SenderJournal, SentRecord, Verdict

PLAN = fault_plan()
DELTAS = 400
LATE = 7  # of them, the last ones
Sums = tuple[Counters, Counters]


@pytest.fixture
def journal(rng: np.random.Generator) -> SenderJournal:
    journal = SenderJournal(PLAN, window=5)
    for number in range(DELTAS):
        delta, _ = encode(PLAN, rng.uniform(0, 10, (1, 2)), window=5, id=DeltaId(1, number))
        assert delta is not None
        cells = np.asarray(delta.runs[0].increments.indices)
        sent = SentRecord("alice", delta.id, delta.pack(PLAN), cells)
        journal.sent.append(sent)
        journal.answered(sent, Status.LATE if number >= DELTAS - LATE else Status.ACKNOWLEDGED)
    return journal


def release_of(journal: SenderJournal) -> Sums:
    """What a service that does everything right releases."""
    sketch = Sketch(PLAN)
    for sent in journal.sent[:-LATE]:
        add(sketch, sent)
    return sketch.counters, sketch.counts


def add(sketch: Sketch, sent: SentRecord, times: int = 1) -> None:
    sketch.counters.reshape(-1)[sent.cells] += times
    sketch.counts[0] += times * PLAN.privacy.mechanism.count_scale


def test_a_right_release_is_found_right(journal: SenderJournal) -> None:
    assert journal.judge(*release_of(journal)) == Verdict(DELTAS - LATE, 0, 0, unexplained=False)


def changed(journal: SenderJournal, number: int, times: int) -> Sums:
    counters, counts = release_of(journal)
    sketch = Sketch.of_counters(PLAN, counters, counts)
    add(sketch, journal.sent[number], times)
    return sketch.counters, sketch.counts


@pytest.mark.parametrize(
    ("number", "times", "lost", "doubled"),
    [(3, -1, 1, 0), (3, 1, 0, 1), (3, 2, 0, 2), (DELTAS - 1, 1, 0, 1)],
    ids=["lost", "twice", "three times", "late and yet counted"],
)
def test_a_planted_fault_is_counted(journal: SenderJournal, number: int, times: int, lost: int, doubled: int) -> None:
    assert journal.judge(*changed(journal, number, times)) == Verdict(DELTAS - LATE, lost, doubled, unexplained=False)


def test_one_lost_and_one_doubled_do_not_cancel_out(journal: SenderJournal) -> None:
    counters, counts = release_of(journal)
    sketch = Sketch.of_counters(PLAN, counters, counts)
    add(sketch, journal.sent[3], -1)
    add(sketch, journal.sent[4])
    verdict = journal.judge(sketch.counters, sketch.counts)
    assert (verdict.lost, verdict.doubled, verdict.unexplained) == (1, 1, False)


def test_a_sum_of_anything_else_is_unexplained(journal: SenderJournal) -> None:
    counters, counts = release_of(journal)
    counters.reshape(-1)[17] += 1
    assert journal.judge(counters, counts).unexplained


def test_what_nobody_can_know_may_be_in_the_release_once_or_not_at_all(journal: SenderJournal) -> None:
    journal.sent[3].status = Status.UNKNOWN
    right = Verdict(DELTAS - LATE - 1, 0, 0, unexplained=False)
    assert journal.judge(*release_of(journal)) == right
    assert journal.judge(*changed(journal, 3, -1)) == right
    assert journal.judge(*changed(journal, 3, 1)).doubled == 1


@pytest.mark.parametrize(
    ("first", "then", "contradicted"),
    [
        (Status.ACKNOWLEDGED, Status.COUNTED, 0),
        (Status.ACKNOWLEDGED, Status.UNKNOWN, 0),
        (Status.ACKNOWLEDGED, Status.LATE, 1),
        (Status.LATE, Status.ACKNOWLEDGED, 1),
    ],
)
def test_an_answer_that_takes_another_back_is_counted(first: Status, then: Status, contradicted: int) -> None:
    journal, sent = SenderJournal(PLAN, 5), SentRecord("alice", DeltaId(1, 0), b"", np.zeros(0, np.int64))
    journal.answered(sent, first)
    journal.answered(sent, then)
    assert (journal.contradicted, sent.status) == (contradicted, first)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tally: setattr(tally, "lost", 1),
        lambda tally: setattr(tally, "doubled", 1),
        lambda tally: setattr(tally, "contradicted", 1),
        lambda tally: setattr(tally, "redrawn", 1),
        lambda tally: setattr(tally, "unexplained", 1),
        lambda tally: tally.ended.append("worker 1: because"),
        lambda tally: tally.traces.append("worker 1"),
    ],
)
def test_a_tally_with_any_fault_is_not_clean(spoil: Callable[[ChaosTally], None]) -> None:
    tally = ChaosTally(rounds=1, acknowledged=5, late=1)
    assert tally.clean
    spoil(tally)
    assert not tally.clean


def test_every_victim_is_struck_by_every_means_about_equally_often(seed: int) -> None:
    victims = ["a", "b", "c", "d"]
    deck = Deck(victims, seed)
    rounds = [deck.strikes(2, 10.0) for _ in range(8)]
    for strikes in rounds:
        assert len({strike.victim for strike in strikes}) == 2
        assert [strike.after_s for strike in strikes] == sorted(strike.after_s for strike in strikes)
    struck = [(strike.victim, strike.means) for strikes in rounds for strike in strikes]
    assert all(1 <= struck.count((victim, means)) <= 3 for victim in victims for means in Means)
