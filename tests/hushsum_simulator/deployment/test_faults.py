"""A run with faults finds what is planted: a delta that is lost, one that counts twice, an answer taken back."""

from collections.abc import Callable

import numpy as np
import pytest

from hushsum import Sketch
from hushsum.delta import DeltaId, encode
from hushsum.sketch import Counters
from hushsum_proto.answers import Status
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.deployment.faults import FaultSummary, Means, StrikeSampler, fault_plan
from hushsum_simulator.deployment.journal import Account, Added, FleetJournal
from hushsum_simulator.deployment.senders import Sender
from hushsum_simulator.deployment.verdicts import VerdictTally, by_id, read_from_release

PLAN = fault_plan()
WINDOW = 5
DELTAS = 400
LATE = 7  # of them, the last ones
RIGHT = VerdictTally(sent=DELTAS, counted=DELTAS - LATE, dropped=LATE)
Sums = tuple[Counters, Counters]


class Sent:
    """What one client sent for a window, and the answers that it received."""

    def __init__(self, rng: np.random.Generator) -> None:
        added = [Added(WINDOW, number, number, 1, 1) for number in range(DELTAS)]
        late = dict.fromkeys(range(DELTAS - LATE, DELTAS), Status.LATE)
        answers = {DeltaId(1, number): late.get(number, Status.ACKNOWLEDGED).value for number in range(DELTAS)}
        self.answers = answers
        self.journal = FleetJournal(PLAN.hex_id, WINDOW, 1, 0.0, {"alice": Account(1, added, answers=answers)})
        self.cells = {}
        for id in answers:
            delta, _ = encode(PLAN, rng.uniform(0, 10, (1, 2)), window=WINDOW, id=id)
            assert delta is not None
            self.cells[SentDelta("alice", id)] = np.asarray(delta.runs[0].increments.indices)

    def release(self, **more: int) -> Sums:
        """What a service that does everything right releases, and so many times more of these deltas."""
        sketch = Sketch(PLAN)
        for number in range(DELTAS):
            times = (number < DELTAS - LATE) + more.get(f"delta_{number}", 0)
            sketch.counters.reshape(-1)[self.cells[SentDelta("alice", DeltaId(1, number))]] += times
            sketch.counts[0] += times * PLAN.privacy.mechanism.count_scale
        return sketch.counters, sketch.counts

    def judged(self, counters: Counters, counts: Counters) -> tuple[VerdictTally, bool]:
        verdicts, is_explained = read_from_release(PLAN, self.journal, self.cells, counters, counts)
        return by_id(self.journal, verdicts, lenient=True)[WINDOW], is_explained


@pytest.fixture
def sent(rng: np.random.Generator) -> Sent:
    return Sent(rng)


def test_a_right_release_is_found_right(sent: Sent) -> None:
    assert sent.judged(*sent.release()) == (RIGHT, True)


@pytest.mark.parametrize(
    ("number", "times", "lost", "doubled"),
    [(3, -1, 1, 0), (3, 1, 0, 1), (3, 2, 0, 2), (DELTAS - 1, 1, 0, 1)],
    ids=["lost", "twice", "three times", "late and yet counted"],
)
def test_a_planted_fault_is_counted(sent: Sent, number: int, times: int, lost: int, doubled: int) -> None:
    found, is_explained = sent.judged(*sent.release(**{f"delta_{number}": times}))
    assert (found.lost, found.doubled, is_explained) == (lost, doubled, True)


def test_one_lost_and_one_doubled_do_not_cancel_out(sent: Sent) -> None:
    found, is_explained = sent.judged(*sent.release(delta_3=-1, delta_4=1))
    assert (found.lost, found.doubled, is_explained) == (1, 1, True)


def test_a_sum_of_anything_else_is_unexplained(sent: Sent) -> None:
    counters, counts = sent.release()
    assert not sent.judged(counters, counts + 1)[1]
    counters.reshape(-1)[17] += 1
    assert not sent.judged(counters, counts)[1]


def test_a_delta_that_was_answered_as_unknown_may_be_in_the_release_once_or_not_at_all(sent: Sent) -> None:
    sent.answers[DeltaId(1, 3)] = Status.UNKNOWN.value
    assert sent.judged(*sent.release()) == (RIGHT, True)
    missing = VerdictTally(sent=DELTAS, counted=DELTAS - LATE - 1, dropped=LATE, untold=1)
    assert sent.judged(*sent.release(delta_3=-1)) == (missing, True)
    assert sent.judged(*sent.release(delta_3=1))[0].doubled == 1


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
    sender, id = Sender(PLAN, 0, ["localhost:1"], 1.0, 1), DeltaId(1000, 0)
    sender.note(id, first)
    sender.note(id, then)
    assert (sender.contradicted, sender.account.answers) == (contradicted, {id: first.value})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda summary: setattr(summary, "deltas", VerdictTally(lost=1)),
        lambda summary: setattr(summary, "deltas", VerdictTally(doubled=1)),
        lambda summary: setattr(summary, "contradicted", 1),
        lambda summary: setattr(summary, "redrawn", 1),
        lambda summary: setattr(summary, "unexplained", 1),
        lambda summary: summary.ended.append("worker 1: because"),
        lambda summary: summary.traces.append("worker 1"),
    ],
)
def test_a_summary_with_any_fault_is_not_clean(spoil: Callable[[FaultSummary], None]) -> None:
    summary = FaultSummary(rounds=1, deltas=VerdictTally(sent=6, counted=5, dropped=1))
    assert summary.is_clean
    spoil(summary)
    assert not summary.is_clean


def test_every_victim_is_struck_by_every_means_about_equally_often(seed: int) -> None:
    victims = ["a", "b", "c", "d"]
    sampler = StrikeSampler(victims, seed)
    rounds = [sampler.strikes(2, 10.0) for _ in range(8)]
    for strikes in rounds:
        assert len({strike.victim for strike in strikes}) == 2
        assert [strike.after_s for strike in strikes] == sorted(strike.after_s for strike in strikes)
    struck = [(strike.victim, strike.means) for strikes in rounds for strike in strikes]
    assert all(1 <= struck.count((victim, means)) <= 3 for victim in victims for means in Means)
