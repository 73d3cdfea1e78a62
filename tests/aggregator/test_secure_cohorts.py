"""Cohorts as they form, and what they never do, whatever happens in which order."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.secure.cohorts import (
    PAUSE_MS,
    PAUSE_MS_MAX,
    Caller,
    Closed,
    CohortRules,
    Cohorts,
    Effect,
    Entered,
    InRound,
    Left,
    Replaced,
    RoundOver,
    Starts,
    TookPart,
    TooSoon,
    Waits,
    WindowOver,
    Woke,
)

RULES = CohortRules(size=4, least=3, wait_ms=1000, rounds_max=2)


def entered(cohorts: Cohorts, *names: str, window: int = 7, now_ms: int = 0, number: int = 0) -> list[Effect]:
    return [effect for name in names for effect in cohorts.handle(Entered(Caller(name, number), window, now_ms))]


def callers(*names: str, number: int = 0) -> tuple[Caller, ...]:
    return tuple(Caller(name, number) for name in names)


def over(members: str, back: str = "", spent: str = "", now_ms: int = 0, spoilers: str = "") -> RoundOver:
    return RoundOver(7, callers(*members), callers(*back), frozenset(spent), now_ms, frozenset(spoilers))


def started(effects: Iterable[Effect]) -> list[tuple[str, ...]]:
    return [tuple(caller.client_id for caller in effect.callers) for effect in effects if isinstance(effect, Starts)]


def test_a_full_cohort_starts_at_once() -> None:
    cohorts = Cohorts(RULES)
    assert started(entered(cohorts, "a", "b", "c")) == []
    assert started(entered(cohorts, "d")) == [("a", "b", "c", "d")]
    assert cohorts.waiting == 0


def test_each_that_waits_is_told_how_many_do() -> None:
    assert entered(Cohorts(RULES), "a", "b") == [Waits(Caller("a", 0), 1), Waits(Caller("b", 0), 2)]


def test_with_enough_clients_a_cohort_starts_once_the_first_has_waited_long_enough() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, "a", now_ms=100)
    entered(cohorts, "b", "c", now_ms=900)
    assert cohorts.wakes_ms == 1100
    assert cohorts.handle(Woke(1099)) == []
    assert started(cohorts.handle(Woke(1100))) == [("a", "b", "c")]


def test_too_few_wait_on_and_the_first_that_makes_them_enough_starts_the_cohort() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, "a", "b")
    assert cohorts.wakes_ms is None
    assert cohorts.handle(Woke(99_999)) == []
    assert started(entered(cohorts, "c", now_ms=100_000)) == [("a", "b", "c")]


def test_who_leaves_while_it_waits_is_in_no_cohort() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, "a", "b", "c")
    cohorts.handle(Left(Caller("a", 0), 7))
    assert started(entered(cohorts, "d")) == []
    assert started(cohorts.handle(Woke(1000))) == [("b", "c", "d")]


def test_while_it_waits_the_newest_call_of_a_client_stands_and_keeps_its_place() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, "a", now_ms=0)
    newest = Caller("a", 1)
    assert cohorts.handle(Entered(newest, 7, 500)) == [Replaced(Caller("a", 0)), Waits(newest, 1)]
    cohorts.handle(Left(Caller("a", 0), 7))  # the old one is noticed to be gone: the new one stays
    entered(cohorts, "b", "c", now_ms=600)
    (effect,) = cohorts.handle(Woke(1000))
    assert isinstance(effect, Starts)
    assert effect.callers[0] == newest


def test_from_the_start_of_its_round_on_nobody_pushes_a_client_out() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcd")
    assert entered(cohorts, "a", number=1) == [InRound(Caller("a", 1))]
    cohorts.handle(over("abcd"))
    assert entered(cohorts, "a", number=2) == [Waits(Caller("a", 2), 1)]


def test_a_client_whose_vector_was_taken_enters_its_window_never_again() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcd")
    cohorts.handle(over("abcd", spent="abc"))
    assert entered(cohorts, "a", number=1) == [TookPart(Caller("a", 1))]
    assert entered(cohorts, "a", number=2, window=8) == [Waits(Caller("a", 2), 1)]
    assert entered(cohorts, "d", number=3) == [Waits(Caller("d", 3), 1)]


def test_a_round_that_cost_nothing_starts_again_at_once_with_those_that_are_there() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcd")
    assert started(cohorts.handle(over("abcd", back="abd"))) == [("a", "b", "d")]


def test_too_few_for_another_round_wait_with_the_time_that_they_came_at() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcd", now_ms=100)
    entered(cohorts, "e", now_ms=900)
    effects = cohorts.handle(over("abcd", back="ab", now_ms=1000))
    assert effects[:2] == [Waits(Caller("a", 0), 3), Waits(Caller("b", 0), 3)]
    assert started(cohorts.handle(Woke(1100))) == [("a", "b", "e")]


def test_no_more_rounds_than_a_server_can_hold_and_the_oldest_clients_first() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcdefgh")
    assert started(entered(cohorts, *"ijklm")) == []
    assert cohorts.wakes_ms is None
    assert started(cohorts.handle(over("abcd"))) == [("i", "j", "k", "l")]
    assert cohorts.waiting == 1


def test_who_has_spoilt_a_round_is_in_no_cohort_while_enough_others_are_there() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"xabc")
    assert started(cohorts.handle(over("xabc", back="ab", spoilers="x"))) == []
    assert started(entered(cohorts, "d", now_ms=PAUSE_MS - 1)) == []
    assert started(entered(cohorts, "x", now_ms=PAUSE_MS)) == [("a", "b", "d")]  # not full, and without it
    assert cohorts.waiting == 1


def test_who_has_spoilt_a_round_is_taken_last_and_only_after_the_wait_where_it_is_needed() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"xyab")
    cohorts.handle(over("xyab", back="ab", spoilers="x"))
    for caller in callers("a", "b"):
        cohorts.handle(Left(caller, 7))
    entered(cohorts, "x", now_ms=5000)
    entered(cohorts, "a", "b", now_ms=5500, number=1)
    assert cohorts.wakes_ms == 6000
    assert cohorts.handle(Woke(5999)) == []
    (effect,) = cohorts.handle(Woke(6000))
    assert isinstance(effect, Starts)
    assert [caller.client_id for caller in effect.callers] == ["a", "b", "x"]


def test_the_pause_of_who_spoils_rounds_grows_and_other_windows_know_nothing_of_it() -> None:
    cohorts = Cohorts(RULES)
    pauses, now_ms = [], 0
    for number in range(16):
        entered(cohorts, *"xab", now_ms=now_ms, number=number)
        cohorts.handle(Woke(now_ms + 1000))
        members = callers(*"xab", number=number)
        cohorts.handle(RoundOver(7, members, (), frozenset(), now_ms + 1000, frozenset("x")))
        (effect,) = entered(cohorts, "x", now_ms=now_ms + 1000, number=99)
        assert isinstance(effect, TooSoon)
        pauses.append(effect.wait_ms)
        now_ms += 1000 + effect.wait_ms
    assert pauses[:4] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS, 8 * PAUSE_MS]
    assert pauses[-1] == PAUSE_MS_MAX
    assert entered(cohorts, "x", window=8, number=100)[0] == Waits(Caller("x", 100), 1)


def test_a_window_that_closes_tells_all_that_wait_for_it_and_nobody_else() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, "a", "b")
    entered(cohorts, "c", window=8)
    assert cohorts.handle(WindowOver(7)) == [Closed(Caller("a", 0)), Closed(Caller("b", 0))]
    assert cohorts.windows == (8,)


def test_a_round_that_ends_after_its_window_sends_nobody_into_another() -> None:
    cohorts = Cohorts(RULES)
    entered(cohorts, *"abcd")
    assert cohorts.handle(WindowOver(7)) == []
    assert cohorts.handle(over("abcd", back="abc")) == list(map(Closed, callers(*"abc")))


class World:
    """A whole history: what is under way, checked after every step."""

    def __init__(self) -> None:
        self.cohorts = Cohorts(RULES)
        self.now_ms = 0
        self.numbers = 0
        self.waiting: dict[tuple[int, str], Caller] = {}
        self.rounds: list[Starts] = []
        self.spent: set[tuple[int, str]] = set()
        self.spoilt: set[tuple[int, str]] = set()

    def enter(self, name: str, window: int) -> None:
        self.numbers += 1
        caller = Caller(name, self.numbers)
        effects = self.cohorts.handle(Entered(caller, window, self.now_ms))
        in_round = any(caller.client_id == name for each in self.of(window) for caller in each.callers)
        if (window, name) in self.spent:
            assert effects[0] == TookPart(caller)
        elif in_round:
            assert effects[0] == InRound(caller)
        elif isinstance(effects[0], TooSoon):
            assert (window, name) in self.spoilt
            assert (window, name) not in self.waiting
        else:
            old = self.waiting.get((window, name))
            assert effects[: 1 if old is None else 2] == [
                *([] if old is None else [Replaced(old)]),
                Waits(caller, len({*self.waited(window), name})),
            ]
            self.waiting[window, name] = caller
        self.follow(effects)

    def of(self, window: int) -> list[Starts]:
        return [each for each in self.rounds if each.window == window]

    def waited(self, window: int) -> list[str]:
        return [name for of, name in self.waiting if of == window]

    def leave(self, name: str, window: int) -> None:
        caller = self.waiting.pop((window, name), None)
        if caller is not None:
            assert self.cohorts.handle(Left(caller, window)) == []

    def end(self, back: int, spent: int) -> None:
        if self.rounds:
            ended = self.rounds.pop(0)
            members = ended.callers
            gone = frozenset(caller.client_id for caller in members[:spent])
            there = members[spent : spent + back] if not spent else ()
            self.spent |= {(ended.window, name) for name in gone}
            guilty = frozenset(caller.client_id for caller in members[spent + back :] if not spent)
            self.spoilt |= {(ended.window, name) for name in guilty}
            effects = self.cohorts.handle(RoundOver(ended.window, members, there, gone, self.now_ms, guilty))
            if any(isinstance(effect, Waits) for effect in effects):
                self.waiting |= {(ended.window, caller.client_id): caller for caller in there}
                there = ()  # whoever is in a cohort now has waited for it
            self.follow(effects, again=there)

    def wake(self, ms: int) -> None:
        self.now_ms += ms
        self.follow(self.cohorts.handle(Woke(self.now_ms)))

    def follow(self, effects: list[Effect], again: tuple[Caller, ...] = ()) -> None:
        for effect in effects:
            if isinstance(effect, Starts):
                assert RULES.least <= len(effect.callers) <= RULES.size
                names = [caller.client_id for caller in effect.callers]
                assert len(set(names)) == len(names), "a client is in a cohort once"
                busy = {caller.client_id for each in self.of(effect.window) for caller in each.callers}
                assert busy.isdisjoint(names), "a client is in one cohort of a window"
                assert not any((effect.window, name) in self.spent for name in names), "its vector was taken"
                fresh = [
                    name for name in {*self.waited(effect.window), *names} if (effect.window, name) not in self.spoilt
                ]
                if not again and len(fresh) >= RULES.least:
                    assert set(names) <= set(fresh), "who has spoilt rounds is not needed"
                for caller in effect.callers:
                    assert caller in again or self.waiting.pop((effect.window, caller.client_id)) == caller
                self.rounds.append(effect)
        assert len(self.rounds) <= RULES.rounds_max
        assert self.cohorts.waiting == len(self.waiting)
        if len(self.rounds) < RULES.rounds_max:
            fresh_of = [
                [name for name in self.waited(window) if (window, name) not in self.spoilt] for window in (1, 2)
            ]
            assert all(len(fresh) < RULES.size for fresh in fresh_of), "a full cohort waits for nothing"


NAMES = st.sampled_from("abcdefghij")
WINDOWS = st.sampled_from([1, 2])
STEPS = st.one_of(
    st.tuples(st.just("enter"), NAMES, WINDOWS),
    st.tuples(st.just("enter"), NAMES, WINDOWS),
    st.tuples(st.just("leave"), NAMES, WINDOWS),
    st.tuples(st.just("wake"), st.integers(0, 1500)),
    st.tuples(st.just("end"), st.integers(0, 4), st.sampled_from([0, 0, 3])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_in_any_order_each_client_is_in_one_cohort_of_a_window_and_nobody_is_lost(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
