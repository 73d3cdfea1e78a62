"""Presence goes first: no backlog of records holds it up, and no records of a client go before it has an answer."""

import numpy as np
import pytest

from edge_client.config import Config
from edge_client.lanes import Lanes, id_of, is_presence, number_of, presence_number, presence_stream
from edge_client.session import Session
from edge_client.session_events import Answered, Begun, Effect, Greeted, Send, Settled, Spooled, Wake, Woke
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from tests.edge_client.session_world import PLAN_ID, STREAM, welcome


def session_with(numbers: range, in_flight_max: int = 64, kept: int = 1) -> tuple[Session, list[Effect]]:
    session = Session(
        config=Config(),
        plan_id=PLAN_ID,
        stream=STREAM,
        lateness_ms=0,
        unanswered=numbers,
        entropy=ReplayableEntropy(b""),
        kept=kept,
    )
    session.handle(Begun(0.0))
    return session, session.handle(Greeted(0.0, 1, welcome(in_flight_max), welcome().now_ms))


def sent(effects: list[Effect]) -> list[int]:
    return [number for effect in effects if isinstance(effect, Send) for number in effect.sequences]


def answered(session: Session, number: int, now: float = 0.0) -> list[int]:
    """An answer comes and is durable; returns what is sent thereupon."""
    before = session.handle(Answered(now, 1, Answer(id_of(number, STREAM), Status.ACKNOWLEDGED)))
    return sent(before) + sent(session.handle(Settled(now, number)))


def test_numbers_and_ids_of_both_streams_go_over_into_each_other() -> None:
    assert presence_stream(presence_stream(STREAM)) == STREAM != presence_stream(STREAM)
    for number in (0, 1, 2**63 - 1, -1, -2, -(2**63)):
        assert number_of(id_of(number, STREAM), STREAM) == number
        assert is_presence(number) is (id_of(number, STREAM).stream == presence_stream(STREAM))
    assert id_of(presence_number(3), STREAM) == DeltaId(presence_stream(STREAM), 3)
    assert number_of(DeltaId(STREAM + 2, 3), STREAM) is None


def test_a_presence_overtakes_any_backlog_of_records_and_they_wait_for_its_answer() -> None:
    session, effects = session_with(range(1000))
    assert sent(effects) == list(range(63))
    assert sent(session.handle(Spooled(0.0, (-1,)))) == [-1]  # no answer came since
    assert sent(session.handle(Spooled(0.0, (-2, -3)))) == []  # no more in flight than the service allows
    assert answered(session, 5) == [-3]
    assert answered(session, 0) == [-2]
    assert answered(session, 1) == []
    assert [answered(session, number) for number in (-1, -2, -3)] == [[], [], [63, 64, 65]]


def test_where_nothing_is_shown_records_take_every_place() -> None:
    session, effects = session_with(range(1000), kept=0)
    assert sent(effects) == list(range(64))
    assert answered(session, 0) == [64]


def test_where_one_may_be_in_flight_presence_is_next_after_the_answer_that_is_outstanding() -> None:
    session, effects = session_with(range(9), in_flight_max=1)
    assert sent(effects) == [0]
    assert sent(session.handle(Spooled(0.0, (-1,)))) == []
    assert answered(session, 0) == [-1]
    assert answered(session, -1) == [1]


@pytest.mark.parametrize("in_flight_max", [1, 5, 64])
def test_the_newest_presence_goes_first_however_many_others_wait(in_flight_max: int) -> None:
    session, effects = session_with(range(-64, 5), in_flight_max)
    assert sent(effects) == list(range(-64, -64 + in_flight_max))
    session.handle(Spooled(0.0, (-65,)))  # out of reach while number -1 has no answer
    if in_flight_max == 64:
        assert answered(session, -1) == [-65]


@pytest.mark.parametrize("in_flight_max", [1, 7, 64])
def test_the_newest_of_a_long_backlog_goes_as_soon_as_the_service_would_know_it(in_flight_max: int) -> None:
    lanes = Lanes(range(-300, 0))
    order: list[int] = []
    while picked := lanes.pick(0.0, in_flight_max):
        order += picked
        for number in picked:
            lanes.settle(number)
            lanes.settled(number)
    assert sorted(order) == list(range(-300, 0))
    ahead = order[: order.index(-300)]
    assert set(ahead) >= set(range(-236, 0))  # those 64 or more below it, without which it would count as a duplicate
    assert len(ahead) < 236 + in_flight_max


def test_records_that_may_be_sent_again_but_have_no_place_wake_nobody() -> None:
    session, effects = session_with(range(1000))
    assert sent(effects) == list(range(63))
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1000)
    refused = Answered(0.0, 1, Answer(id_of(5, STREAM), Status.REFUSED, busy))
    assert sent(session.handle(refused)) == [63]
    effects = session.handle(Woke(5.0))
    assert sent(effects) == []
    assert [effect.at for effect in effects if isinstance(effect, Wake) and effect.at <= 5.0] == []
    assert answered(session, 0, 5.0) == [5]


def test_a_presence_that_is_refused_for_the_moment_holds_records_back_until_it_is_counted() -> None:
    session, effects = session_with(range(-2, 3))
    assert sent(effects) == [-2, -1]
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1000)
    refused = Answered(0.0, 1, Answer(id_of(-1, STREAM), Status.REFUSED, busy))
    assert sent(session.handle(refused)) == []
    assert answered(session, -2) == []
    effects = session.handle(Begun(5.0))
    assert sent(effects) == [-1]
    assert answered(session, -1, 5.0) == [0, 1, 2]


def test_an_answer_that_is_not_durable_lets_no_records_go() -> None:
    session, _ = session_with(range(-1, 1))
    assert sent(session.handle(Answered(0.0, 1, Answer(id_of(-1, STREAM), Status.ACKNOWLEDGED)))) == []
    assert sent(session.handle(Settled(0.0, -1))) == [0]


def test_what_was_withdrawn_is_never_sent_and_nobody_waits_for_it() -> None:
    session, _ = session_with(range(-1, 4))
    mark = session.outstanding.mark
    session.handle(Answered(0.0, 1, Answer(id_of(-1, STREAM), Status.LATE)))
    assert sent(session.handle(Settled(0.0, -1, (0, 1, 3)))) == [2]
    assert len(session.outstanding) == 1
    assert not session.outstanding.is_answered(mark)
    answered(session, 2)
    assert session.outstanding.is_answered(mark)


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("in_flight_max", [1, 7, 64])
def test_over_any_answers_each_stream_keeps_its_window_and_presence_comes_first(
    rng: np.random.Generator, in_flight_max: int, kept: int
) -> None:
    lanes = Lanes(kept=kept)
    ends = {True: 0, False: 0}
    unanswered: set[int] = set()
    flying: list[int] = []
    for _ in range(1500):
        if rng.random() < 0.05:
            kind = bool(rng.random() < 0.4)
            new = [presence_number(ends[kind] + i) if kind else ends[kind] + i for i in range(int(rng.integers(1, 40)))]
            ends[kind] += len(new)
            lanes.append(new)
            unanswered |= set(new)
        picked = lanes.pick(0.0, in_flight_max)
        presences = {number for number in unanswered if is_presence(number)}
        assert presences >= set(picked) or not presences
        for number in picked:
            lane = [id_of(other, STREAM).sequence for other in unanswered if is_presence(other) is is_presence(number)]
            assert id_of(number, STREAM).sequence < min(lane) + 64
        flying += picked
        assert len(flying) == lanes.in_flight <= in_flight_max
        records = [number for number in flying if not is_presence(number)]
        assert len(records) <= max(1, in_flight_max - kept)
        assert lanes.has_room(in_flight_max) is (
            len(flying) < in_flight_max if presences else len(records) < max(1, in_flight_max - kept)
        )
        if rng.random() < 0.05:
            lanes.lose_connection()
            flying.clear()
        elif flying:
            number = flying.pop(int(rng.integers(len(flying))))
            lanes.settle(number)
            lanes.settled(number)
            unanswered.remove(number)
    assert len(lanes) == len(unanswered)
    assert min(ends.values()) > 64
