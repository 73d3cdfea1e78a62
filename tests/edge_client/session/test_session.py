"""The session brings every delta to a definitive answer over any wire, and keeps its promises on the way."""

import numpy as np
import pytest

from edge_client.config import Config
from edge_client.errors import PlanChangedError, SessionRefusedError
from edge_client.runtime import BackOff
from edge_client.session.session import EARLY_MAX, Answered, ConnectionNeeded, Disconnected, SendWindow, State
from edge_client.transport.interface import Disconnect
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import Reason
from hushsum.schedule import NEXT, Schedule
from hushsum_proto.answers import Answer, Fault, Refusal, ServiceReason, Status
from hushsum_proto.messages import Welcome
from tests.edge_client.session_world import MINUTES, START_MS, STREAM, World, answer, welcome

HISTORIES = 30
STEPS = 400


def opened_world(
    rng: np.random.Generator,
    in_flight_max: int = 64,
    config: Config | None = None,
    schedule: Schedule = MINUTES,
) -> World:
    world = World(rng, in_flight_max, config, schedule)
    world.service.trouble = 0.0
    world.begin()
    world.greet()
    return world


@pytest.mark.parametrize("sends_early", [False, True])
@pytest.mark.parametrize("in_flight_max", [1, 7, 64])
def test_over_any_wire_every_delta_gets_one_definitive_answer(seed: int, in_flight_max: int, sends_early: bool) -> None:
    resent = lost = early = 0
    for history in range(HISTORIES):
        world = World(np.random.default_rng([seed, history]), in_flight_max, sends_early=sends_early)
        try:
            world.begin()
            for _ in range(STEPS):
                world.step()
            world.calm_down()
            assert world.stopped is None
            assert sorted(world.settled) == list(range(world.end))
            assert world.settled == world.service.final
        except AssertionError as error:
            raise AssertionError(f"history {history}: {error}") from error
        resent += sum(count > 1 for count in world.service.received.values())
        lost += world.session.last_loss is not None
        early += world.early
    # The wire was as bad as it was meant to be.
    assert resent > 10 * HISTORIES
    assert lost > HISTORIES / 2
    assert (early > HISTORIES) is sends_early


def test_it_sends_nothing_64_or_more_above_the_lowest_number_without_a_durable_answer(rng: np.random.Generator) -> None:
    world = opened_world(rng)
    world.spool_some(200)
    assert world.in_flight == set(range(64))
    for _ in range(64):
        world.deliver_to_service()
    for _ in range(63):
        world.deliver_to_client(1)  # all but the first
    for sequence in range(1, 64):
        world.settle_durably(sequence)
    assert world.in_flight == {0}
    world.deliver_to_client(0)
    assert world.in_flight == set()  # answered, but a crash would make it unanswered again
    world.settle_durably(0)
    assert world.in_flight == set(range(64, 128))


def test_it_keeps_within_the_services_limit_where_that_is_lower(rng: np.random.Generator) -> None:
    world = opened_world(rng, in_flight_max=5)
    world.spool_some(20)
    assert world.in_flight == set(range(5))


def test_a_delta_refused_for_the_moment_waits_as_long_as_the_service_says_and_the_others_go_on(
    rng: np.random.Generator,
) -> None:
    world = opened_world(rng, in_flight_max=1)
    world.spool_some(2)
    wire = world.wire
    assert wire is not None
    world.in_flight.clear()
    refusal = Refusal.of(ServiceReason.OVERLOADED, "not now", 5000)
    world.tell(Answered(world.now, wire.number, answer(0, Status.REFUSED, refusal)))
    assert world.in_flight == {1}
    world.in_flight.clear()
    world.tell(Answered(world.now, wire.number, answer(1)))
    world.pass_time(4.99)
    assert world.in_flight == set()
    world.pass_time(0.01 + world.config.backoff_first_s)
    assert world.in_flight == {0}


def test_no_service_holds_a_delta_or_a_client_for_longer_than_an_hour(rng: np.random.Generator) -> None:
    for asked_ms in (3_600_001, 2**32 - 1, 10**400):
        world = opened_world(rng)
        world.spool_some(1)
        wire = world.wire
        assert wire is not None
        world.in_flight.clear()
        busy = Refusal.of(ServiceReason.OVERLOADED, "not now", asked_ms)
        world.tell(Answered(world.now, wire.number, answer(0, Status.REFUSED, busy)))
        world.pass_time(3599.99)
        assert world.in_flight == set()
        world.pass_time(0.02 + world.config.backoff_first_s)
        assert world.in_flight == {0}
        began = world.now
        world.lose(Disconnect("not now", busy))
        world.until_connected()
        assert 3600 <= world.now - began <= 3600 + world.config.backoff_longest_s


@pytest.mark.parametrize(("length_s", "ahead", "due_s"), [(600, 1, [600]), (600, 2, [1200]), (5400, 1, [3600, 5400])])
def test_where_late_deltas_move_one_whose_window_has_not_begun_is_held_until_then_and_no_hour_longer(
    rng: np.random.Generator, length_s: int, ahead: int, due_s: list[int]
) -> None:
    schedule = Schedule(1000 * length_s, START_MS, 0, late=NEXT)  # window 0 begins with the world
    world = opened_world(rng, schedule=schedule)
    begun = world.now
    world.spool_some(1)
    early = answer(0, Status.REFUSED, Refusal.of(Reason.WINDOW_IN_FUTURE, "not yet"))
    assert world.wire is not None
    for at_s in due_s:
        world.in_flight.clear()
        world.tell(Answered(world.now, world.wire.number, early, ahead))
        world.pass_time(begun + at_s - 0.01 - world.now)
        assert world.in_flight == set()
        world.pass_time(1.0)
        assert world.in_flight == {0}
    assert not world.settling


@pytest.mark.parametrize(
    ("schedule", "window", "reason"),
    [
        (Schedule(600_000, START_MS, 0, late=NEXT), 3, Reason.WINDOW_IN_FUTURE),
        (Schedule(600_000, START_MS, 0, late=NEXT), None, Reason.WINDOW_IN_FUTURE),
        (Schedule(600_000, START_MS, 0), 1, Reason.WINDOW_IN_FUTURE),
        (Schedule(600_000, START_MS, 0, late=NEXT), 1, Reason.WINDOW_IN_PAST),
    ],
)
def test_no_other_refusal_without_a_retry_holds_a_delta(
    rng: np.random.Generator, schedule: Schedule, window: int | None, reason: Reason
) -> None:
    world = opened_world(rng, schedule=schedule)
    world.spool_some(1)
    refused = answer(0, Status.REFUSED, Refusal.of(reason, "no"))
    assert world.wire is not None
    world.tell(Answered(world.now, world.wire.number, refused, window))
    assert world.settling == {0: refused}


@pytest.mark.parametrize("status", [Status.ACKNOWLEDGED, Status.COUNTED, Status.LATE, Status.UNKNOWN, Status.REFUSED])
def test_each_definitive_answer_settles_its_delta_once(rng: np.random.Generator, status: Status) -> None:
    world = opened_world(rng)
    world.spool_some(1)
    wire = world.wire
    assert wire is not None
    refusal = Refusal.of(Reason.ID_REUSED, "used") if status is Status.REFUSED else None
    for _ in range(2):  # a second copy of an answer is nothing new
        world.tell(Answered(world.now, wire.number, answer(0, status, refusal)))
    assert world.settling == {0: answer(0, status, refusal)}


def test_a_reason_that_only_a_newer_service_knows_follows_its_own_word_on_retrying(rng: np.random.Generator) -> None:
    for retry in (False, True):
        world = opened_world(rng)
        world.spool_some(1)
        wire = world.wire
        assert wire is not None
        refusal = Refusal(None, "new", Fault.SERVICE, retry)
        world.tell(Answered(world.now, wire.number, answer(0, Status.REFUSED, refusal)))
        assert (0 in world.settling) is not retry


def test_what_an_old_connection_says_late_is_void(rng: np.random.Generator) -> None:
    world = opened_world(rng)
    world.spool_some(1)
    old = world.wire
    assert old is not None
    world.lose()
    world.tell(Answered(world.now, old.number, answer(0)))
    world.tell(Disconnected(world.now, old.number, Disconnect("again")))
    assert world.settling == {}
    assert world.state is State.WAITING


def test_an_answer_of_another_stream_settles_nothing(rng: np.random.Generator) -> None:
    world = opened_world(rng)
    world.spool_some(1)
    assert world.wire is not None
    world.tell(Answered(world.now, world.wire.number, Answer(DeltaId(STREAM + 1, 0), Status.ACKNOWLEDGED)))
    assert world.settling == {}


def test_the_waits_after_failures_double_up_to_their_limit_with_full_jitter() -> None:
    backoff = BackOff(0.5, 8.0, ReplayableEntropy(b"jitter"))
    limits = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for _ in range(200):
        backoff.reset()
        assert all(0.0 <= backoff.next_s() < limit for limit in limits)
    backoff.reset()
    waits = [backoff.jitter_s(100) for _ in range(1000)]
    assert max(waits) > 7.5  # a uniform draw from 8 s stays below this with probability (15/16)^1000 < 1e-27
    assert min(waits) < 0.5


def test_a_service_that_is_away_is_tried_ever_less_often_and_an_answer_makes_it_quick_again(
    rng: np.random.Generator,
) -> None:
    world = World(rng)
    world.service.trouble = 0.0
    world.spool_some(1)
    waits = []
    for _ in range(12):
        began = world.now
        world.lose()
        world.until_connected()
        waits.append(world.now - began)
    assert max(waits) <= world.config.backoff_longest_s
    assert sum(waits) > 10 * world.config.backoff_first_s
    world.greet()
    world.deliver_to_service()
    world.deliver_to_client(0)
    began = world.now
    world.lose()
    assert world.wake_at is not None
    assert world.wake_at - began <= world.config.backoff_first_s


def test_nothing_to_send_is_no_reason_to_connect_again(rng: np.random.Generator) -> None:
    world = opened_world(rng)
    world.lose()
    world.pass_time(1e6)
    assert (world.state, world.wire) == (State.IDLE, None)
    world.spool_some(1)
    assert world.wire is not None


def test_a_connection_that_is_needed_is_made_and_kept_with_nothing_to_send(rng: np.random.Generator) -> None:
    world = opened_world(rng, config=Config(idle_s=30.0))
    world.tell(ConnectionNeeded(world.now, is_needed=True))
    world.pass_time(1e6)
    assert world.state is State.OPEN
    for _ in range(3):
        world.lose()
        assert world.session.next_attempt_at is not None
        world.until_connected()
    world.greet()
    world.tell(ConnectionNeeded(world.now, is_needed=False))
    world.pass_time(30.0)
    assert (world.state, world.wire) == (State.IDLE, None)
    world.tell(ConnectionNeeded(world.now, is_needed=True))
    assert world.wire is not None


def test_a_connection_that_gives_no_answer_is_given_up(rng: np.random.Generator) -> None:
    world = opened_world(rng, config=Config(answer_wait_s=20.0))
    world.spool_some(1)
    first = world.wire
    world.pass_time(19.0)
    assert world.wire is first
    world.pass_time(1.0)
    assert world.wire is None
    world.calm_down()
    assert list(world.settled) == [0]


def test_three_streams_without_an_answer_make_way_for_calls_of_their_own(rng: np.random.Generator) -> None:
    world = World(rng)
    world.service.trouble = 0.0
    world.spool_some(1)
    for _ in range(4):
        world.until_connected()
        world.greet()
        world.lose()
    assert world.opened == [False, False, False, True]


def test_so_do_they_where_a_connection_is_needed_with_nothing_to_send(rng: np.random.Generator) -> None:
    world = World(rng)
    world.service.trouble = 0.0
    world.tell(ConnectionNeeded(world.now, is_needed=True))
    for _ in range(4):
        world.until_connected()
        world.greet()
        world.lose()
    assert world.opened == [False, False, False, True]


def test_a_service_that_no_stream_tells_of_is_greeted_anew_when_its_connection_is_needed(
    rng: np.random.Generator,
) -> None:
    world = opened_world(rng, config=Config(unary=True))
    first = world.wire
    world.tell(ConnectionNeeded(world.now, is_needed=True))
    assert (world.state, world.wire is first) == (State.GREETING, False)
    world.greet()
    second = world.wire
    world.tell(ConnectionNeeded(world.now, is_needed=True))
    assert (world.state, world.wire is second) == (State.OPEN, True), "once for all that need it meanwhile"


def test_a_service_without_the_stream_gets_calls_of_their_own_at_once(rng: np.random.Generator) -> None:
    world = opened_world(rng)
    world.spool_some(1)
    world.lose(Disconnect("unimplemented", no_stream=True))
    world.calm_down()
    assert world.opened == [False, True]
    assert list(world.settled) == [0]


def test_a_delta_whose_id_the_service_cannot_read_is_sent_alone_in_the_end_so_that_the_answer_finds_it(
    rng: np.random.Generator,
) -> None:
    world = World(rng)
    world.spool_some(1)
    refusal = Refusal.of(Reason.MALFORMED, "no id")
    for _ in range(3):
        world.until_connected()
        world.greet()
        assert world.wire is not None
        world.tell(Answered(world.now, world.wire.number, Answer(None, Status.REFUSED, refusal)))
        assert world.wire is None
    world.service.trouble = 0.0
    world.calm_down()
    assert world.opened == [False, False, False, True]


def test_another_plan_stops_the_session_and_drops_nothing(rng: np.random.Generator) -> None:
    world = World(rng)
    world.spool_some(3)
    world.greet(welcome(plan_id=bytes(32)))
    assert isinstance(world.stopped, PlanChangedError)
    assert world.state is State.STOPPED
    assert world.settling == {}
    assert len(world.session.send_window) == 3


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.WRONG_PLAN, PlanChangedError),
        (ServiceReason.UNAUTHENTICATED, SessionRefusedError),
        (ServiceReason.PROTOCOL_VERSION, SessionRefusedError),
    ],
)
def test_a_refusal_of_the_whole_session_stops_it_and_drops_nothing(
    rng: np.random.Generator, reason: Reason | ServiceReason, error: type[Exception]
) -> None:
    refusal = Refusal.of(reason, "no")
    by_answer, by_status = opened_world(rng), opened_world(rng)
    by_answer.spool_some(1)
    by_status.spool_some(1)
    assert by_answer.wire is not None
    by_answer.tell(Answered(by_answer.now, by_answer.wire.number, answer(0, Status.REFUSED, refusal)))
    by_status.lose(Disconnect("status", refusal))
    for world in (by_answer, by_status):
        assert isinstance(world.stopped, error)
        assert world.settling == {}
        assert len(world.session.send_window) == 1


def test_a_protocol_version_that_is_not_spoken_here_stops_the_session(rng: np.random.Generator) -> None:
    world = World(rng)
    world.begin()
    world.greet(welcome(version=2))
    assert type(world.stopped) is SessionRefusedError


def test_clocks_further_apart_than_the_lateness_are_told_once(rng: np.random.Generator) -> None:
    world = World(rng)
    world.begin()
    world.greet(welcome(now_ms=0))
    world.lose()
    world.spool_some(1)
    world.pass_time(60.0)
    world.greet(welcome(now_ms=0))
    assert world.warned == 1
    agreeing = opened_world(rng)
    assert agreeing.warned == 0


def test_outstanding_numbers_may_have_gaps_but_only_grow() -> None:
    send_window = SendWindow([8, 70, 71, 72])
    assert send_window.pick(0.0, 64) == (8, 70, 71)
    with pytest.raises(AssertionError):
        send_window.append([72])


def early_world(rng: np.random.Generator, config: Config | None = None) -> World:
    """A device that was given twelve deltas while it was offline, and says Hello."""
    world = World(rng, config=config, sends_early=True)
    world.service.trouble = 0.0
    world.spool_some(12)
    return world


def test_the_first_deltas_go_with_the_hello_and_the_others_after_the_welcome(rng: np.random.Generator) -> None:
    world = early_world(rng)
    assert world.wire is not None
    assert world.opened == [False]
    assert world.in_flight == set(range(EARLY_MAX))
    world.spool_some(1)
    assert world.in_flight == set(range(EARLY_MAX))
    world.greet()
    assert world.in_flight == set(range(13))
    assert world.opened == [False]  # the same stream
    world.calm_down()
    assert set(world.service.received.values()) == {1}


def test_what_is_added_while_the_hello_is_under_way_goes_after_it_at_once(rng: np.random.Generator) -> None:
    world = World(rng, sends_early=True)
    world.begin()
    assert world.opened == []
    world.spool_some(1)
    assert world.in_flight == {0}
    assert world.opened == [False]


def test_deltas_beyond_this_clients_own_limit_do_not_go_with_the_hello(rng: np.random.Generator) -> None:
    assert early_world(rng, Config(in_flight_max=2)).in_flight == {0, 1}


def test_nothing_goes_with_a_hello_where_each_delta_is_a_call_of_its_own(rng: np.random.Generator) -> None:
    assert early_world(rng, Config(unary=True)).in_flight == set()


def test_a_service_that_takes_deltas_and_refuses_the_hello_is_sent_them_once(rng: np.random.Generator) -> None:
    world = early_world(rng)
    for _ in range(EARLY_MAX):
        world.deliver_to_service()
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 1000)
    for _ in range(5):
        world.lose(Disconnect("not now", busy))
        world.until_connected()
        assert world.in_flight == set()  # until a Hello was answered
    assert world.settling == {}
    world.calm_down()
    assert sorted(world.settled) == list(range(12))
    assert world.settled == world.service.final  # what the service took the first time is no new delta
    world.pass_time(world.config.idle_s)
    world.spool_some(1)
    assert world.in_flight == {12}  # trusted again since it has answered


@pytest.mark.parametrize(
    ("reply", "error"),
    [(welcome(plan_id=bytes(32)), PlanChangedError), (welcome(version=2), SessionRefusedError)],
)
def test_a_welcome_that_stops_the_session_settles_nothing_of_what_went_with_the_hello(
    rng: np.random.Generator, reply: Welcome, error: type[Exception]
) -> None:
    world = early_world(rng)
    old = world.wire
    assert old is not None
    world.deliver_to_service()
    world.greet(reply)
    assert type(world.stopped) is error
    world.tell(Answered(world.now, old.number, old.to_client[0]))
    assert world.settling == {}
    assert len(world.session.send_window) == 12


def test_a_hello_that_is_refused_for_good_stops_the_session_and_settles_nothing(rng: np.random.Generator) -> None:
    world = early_world(rng)
    world.deliver_to_service()
    world.lose(Disconnect("who?", Refusal.of(ServiceReason.UNAUTHENTICATED, "who?")))
    assert isinstance(world.stopped, SessionRefusedError)
    assert world.settling == {}
    assert len(world.session.send_window) == 12


def test_streams_that_break_after_the_welcome_make_way_for_calls_of_their_own(rng: np.random.Generator) -> None:
    world = early_world(rng)
    for _ in range(4):
        world.until_connected()
        world.greet()
        world.lose()
    assert world.opened == [False, False, False, True]


def test_answers_are_waited_for_from_the_welcome_on(rng: np.random.Generator) -> None:
    world = early_world(rng, Config(answer_wait_s=20.0))
    first = world.wire
    world.pass_time(30.0)
    world.greet()
    world.pass_time(19.0)
    assert world.wire is first
    world.pass_time(1.0)
    assert world.wire is not first


def test_a_connection_is_ended_once_nothing_was_unanswered_for_the_idle_time(rng: np.random.Generator) -> None:
    world = opened_world(rng, config=Config(idle_s=30.0))
    world.pass_time(29.0)
    world.spool_some(1)
    world.deliver_to_service()
    world.deliver_to_client(0)
    world.pass_time(29.0)
    assert world.state is State.OPEN  # its answer is not durable yet
    world.settle_durably(0)
    world.pass_time(29.9)
    assert world.state is State.OPEN
    world.pass_time(0.1)
    assert (world.state, world.wire, world.session.failures) == (State.IDLE, None, 0)
    world.pass_time(1e6)
    assert (world.state, world.wire) == (State.IDLE, None)
    world.spool_some(1)
    assert world.wire is not None
    world.calm_down()
    assert sorted(world.settled) == [0, 1]


def test_a_connection_with_a_delta_that_waits_for_its_time_is_kept(rng: np.random.Generator) -> None:
    world = opened_world(rng, config=Config(idle_s=30.0))
    world.spool_some(1)
    wire = world.wire
    assert wire is not None
    world.in_flight.clear()
    busy = Refusal.of(ServiceReason.OVERLOADED, "not now", 600_000)
    world.tell(Answered(world.now, wire.number, answer(0, Status.REFUSED, busy)))
    world.pass_time(599.0)
    assert world.wire is wire
