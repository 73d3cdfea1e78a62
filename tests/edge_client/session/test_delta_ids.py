"""Ids are the spool's own by its stream, and what has no place in flight is no reason to wake."""

from edge_client.config import Config
from edge_client.session.session import (
    Answered,
    Begun,
    Connected,
    DeltaNumbers,
    Effect,
    Send,
    SendWindow,
    Session,
    SetTimer,
    Settled,
    TimerFired,
)
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum_proto.answers import Refusal, ServiceReason, Status
from tests.edge_client.session_world import PLAN_ID, STREAM, answer, welcome


def sent(effects: list[Effect]) -> list[int]:
    return [number for effect in effects if isinstance(effect, Send) for number in effect.sequences]


def test_an_id_of_the_spools_stream_has_its_sequence_number_and_others_have_none() -> None:
    ids = DeltaNumbers(STREAM)
    for number in (0, 1, 2**63 - 1):
        assert ids.number_of(DeltaId(STREAM, number)) == number
        assert ids.number_of(DeltaId(STREAM ^ 1, number)) is None


def test_everything_below_a_number_is_answered_once_the_lowest_that_waits_is_not() -> None:
    send_window = SendWindow(range(3))
    assert send_window.pick(0.0, 64) == (0, 1, 2)
    for number in (2, 0):
        send_window.settle(number)
        assert not send_window.is_answered(number + 1)  # until that is durable
        send_window.settled(number)
    assert send_window.is_answered(1)
    assert not send_window.is_answered(2)
    send_window.settle(1)
    send_window.settled(1)
    assert send_window.is_answered(send_window.end)


def test_deltas_that_may_be_sent_again_but_have_no_place_wake_nobody() -> None:
    session = Session(
        config=Config(),
        plan_id=PLAN_ID,
        stream=STREAM,
        lateness_ms=0,
        unanswered=range(1000),
        entropy=ReplayableEntropy(b""),
    )
    session.handle(Begun(0.0))
    assert sent(session.handle(Connected(0.0, 1, welcome(in_flight_max=5), welcome().now_ms))) == list(range(5))
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1000)
    assert sent(session.handle(Answered(0.0, 1, answer(2, Status.REFUSED, busy)))) == [5]
    effects = session.handle(TimerFired(5.0))
    assert sent(effects) == []
    assert [effect.at for effect in effects if isinstance(effect, SetTimer) and effect.at <= 5.0] == []
    assert sent(session.handle(Answered(5.0, 1, answer(0))) + session.handle(Settled(5.0, 0))) == [2]
