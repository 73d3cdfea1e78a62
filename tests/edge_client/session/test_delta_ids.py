"""Ids are the spool's own by its stream, and what has no place in flight is no reason to wake."""

from collections.abc import Iterable

from edge_client.config import Config
from edge_client.session.session import (
    Answered,
    Begun,
    Connected,
    Effect,
    Send,
    SendWindow,
    Session,
    SetTimer,
    Settle,
    Settled,
    Spooled,
    TimerFired,
)
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from tests.edge_client.session_world import MINUTES, PLAN_ID, STREAM, answer, welcome


def sent(effects: list[Effect]) -> list[int]:
    return [number for effect in effects if isinstance(effect, Send) for number in effect.sequences]


def session_of(unanswered: Iterable[int], batches: dict[int, int] | None = None) -> Session:
    return Session(
        config=Config(),
        plan_id=PLAN_ID,
        stream=STREAM,
        schedule=MINUTES,
        unanswered=unanswered,
        entropy=ReplayableEntropy(b""),
        batches=batches,
    )


def settled(session: Session, stream: int, number: int) -> list[int]:
    effects = session.handle(Answered(0.0, 1, Answer(DeltaId(stream, number), Status.ACKNOWLEDGED)))
    return [effect.sequence for effect in effects if isinstance(effect, Settle)]


def test_an_id_of_the_spools_stream_has_its_sequence_number_and_others_have_none() -> None:
    for number in (0, 1, 2**63 - 1):
        session = session_of([number])
        session.handle(Begun(0.0))
        session.handle(Connected(0.0, 1, welcome(), welcome().now_ms))
        assert settled(session, STREAM ^ 1, number) == []
        assert settled(session, STREAM, number) == [number]
        assert settled(session, STREAM, number) == []  # another copy of the answer


def test_a_batch_of_reports_is_known_by_its_own_stream_until_it_is_answered() -> None:
    session = session_of([3, 4], batches={3: 77, 4: 78})
    session.handle(Begun(0.0))
    session.handle(Connected(0.0, 1, welcome(), welcome().now_ms))
    session.handle(Spooled(0.0, (5,), ((5, 79),)))
    assert settled(session, STREAM, 3) == settled(session, 77, 3) == settled(session, 80, 0) == []
    for stream, number in ((78, 4), (79, 5), (77, 3)):
        assert settled(session, stream, 0) == [number]
        assert settled(session, stream, 0) == []
        session.handle(Settled(0.0, number))


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
    session = session_of(range(1000))
    session.handle(Begun(0.0))
    assert sent(session.handle(Connected(0.0, 1, welcome(in_flight_max=5), welcome().now_ms))) == list(range(5))
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1000)
    assert sent(session.handle(Answered(0.0, 1, answer(2, Status.REFUSED, busy)))) == [5]
    effects = session.handle(TimerFired(5.0))
    assert sent(effects) == []
    assert [effect.at for effect in effects if isinstance(effect, SetTimer) and effect.at <= 5.0] == []
    assert sent(session.handle(Answered(5.0, 1, answer(0))) + session.handle(Settled(5.0, 0))) == [2]
