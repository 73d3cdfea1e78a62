"""Cohorts as they form, and what they never do, whatever happens in which order."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.secure.cohorts import (
    PAUSE_MS,
    CallKey,
    CohortRules,
    Cohorts,
    Effect,
    EndReason,
    Ends,
    Entered,
    Left,
    RoundOver,
    Starts,
    Waits,
    WindowOver,
    Woke,
)
from hushsum.entropy import ReplayableEntropy
from hushsum.privacy.cohort import ATTEMPTS_MAX

RULES = CohortRules(size=4, least=3, wait_ms=1000, rounds_max=2)
POOLED = CohortRules(size=4, least=3, wait_ms=1000, rounds_max=2, pool=7)


def cohorts_of(rules: CohortRules = RULES, key: bytes = b"") -> Cohorts:
    """Cohorts whose draws can be repeated."""
    return Cohorts(rules, ReplayableEntropy(key.ljust(32, b"k")))


def entered(cohorts: Cohorts, *names: str, window: int = 7, now_ms: int = 0, number: int = 0) -> list[Effect]:
    return [effect for name in names for effect in cohorts.handle(Entered(CallKey(name, number), window, now_ms))]


def callers(*names: str, number: int = 0) -> tuple[CallKey, ...]:
    return tuple(CallKey(name, number) for name in names)


def over(members: str, back: str = "", spent: str = "", now_ms: int = 0, spoilers: str = "") -> RoundOver:
    return RoundOver(7, callers(*members), callers(*back), frozenset(spent), now_ms, frozenset(spoilers))


def started(effects: Iterable[Effect]) -> list[tuple[str, ...]]:
    starts = [effect for effect in effects if isinstance(effect, Starts)]
    return [tuple(sorted(caller.client_id for caller in effect.callers)) for effect in starts]


def test_a_full_cohort_starts_at_once() -> None:
    cohorts = cohorts_of()
    assert started(entered(cohorts, "a", "b", "c")) == []
    assert started(entered(cohorts, "d")) == [("a", "b", "c", "d")]
    assert cohorts.waiting == 0


def test_nobody_that_waits_is_told_how_many_do() -> None:
    assert entered(cohorts_of(), "a", "b") == [Waits(CallKey("a", 0)), Waits(CallKey("b", 0))]


def test_with_enough_clients_a_cohort_starts_once_the_first_has_waited_long_enough() -> None:
    cohorts = cohorts_of()
    entered(cohorts, "a", now_ms=100)
    entered(cohorts, "b", "c", now_ms=900)
    assert cohorts.wakes_ms == 1100
    assert cohorts.handle(Woke(1099)) == []
    assert started(cohorts.handle(Woke(1100))) == [("a", "b", "c")]


def test_too_few_wait_on_and_the_first_that_makes_them_enough_starts_the_cohort() -> None:
    cohorts = cohorts_of()
    entered(cohorts, "a", "b")
    assert cohorts.wakes_ms is None
    assert cohorts.handle(Woke(99_999)) == []
    assert started(entered(cohorts, "c", now_ms=100_000)) == [("a", "b", "c")]


def test_who_leaves_while_it_waits_is_in_no_cohort() -> None:
    cohorts = cohorts_of()
    entered(cohorts, "a", "b", "c")
    cohorts.handle(Left(CallKey("a", 0), 7))
    assert started(entered(cohorts, "d")) == []
    assert started(cohorts.handle(Woke(1000))) == [("b", "c", "d")]


def test_while_it_waits_the_newest_call_of_a_client_stands_and_keeps_its_place() -> None:
    cohorts = cohorts_of()
    entered(cohorts, "a", now_ms=0)
    newest = CallKey("a", 1)
    assert cohorts.handle(Entered(newest, 7, 500)) == [Ends(CallKey("a", 0), EndReason.REPLACED), Waits(newest)]
    cohorts.handle(Left(CallKey("a", 0), 7))  # the old one is noticed to be gone: the new one stays
    entered(cohorts, "b", "c", now_ms=600)
    (effect,) = cohorts.handle(Woke(1000))
    assert isinstance(effect, Starts)
    assert newest in effect.callers


def test_from_the_start_of_its_round_on_nobody_pushes_a_client_out() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcd")
    assert entered(cohorts, "a", number=1) == [Ends(CallKey("a", 1), EndReason.IN_ROUND)]
    cohorts.handle(over("abcd"))
    assert entered(cohorts, "a", number=2) == [Waits(CallKey("a", 2))]


def test_a_client_whose_vector_was_taken_enters_its_window_never_again() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcd")
    cohorts.handle(over("abcd", spent="abc"))
    assert entered(cohorts, "a", number=1) == [Ends(CallKey("a", 1), EndReason.TOOK_PART)]
    assert entered(cohorts, "a", number=2, window=8) == [Waits(CallKey("a", 2))]
    assert entered(cohorts, "d", number=3) == [Waits(CallKey("d", 3))]


def test_a_round_that_cost_nothing_starts_again_at_once_with_those_that_are_there() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcd")
    assert started(cohorts.handle(over("abcd", back="abd"))) == [("a", "b", "d")]


def test_too_few_for_another_round_wait_with_the_time_that_they_came_at() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcd", now_ms=100)
    entered(cohorts, "e", now_ms=900)
    effects = cohorts.handle(over("abcd", back="ab", now_ms=1000))
    assert effects[:2] == [Waits(CallKey("a", 0)), Waits(CallKey("b", 0))]
    assert started(cohorts.handle(Woke(1100))) == [("a", "b", "e")]


def test_no_more_rounds_than_a_server_can_hold() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcdefgh")
    assert started(entered(cohorts, *"ijklm")) == []
    assert cohorts.wakes_ms is None
    (members,) = started(cohorts.handle(over("abcd")))
    assert len(members) == RULES.size
    assert set(members) < set("ijklm")
    assert cohorts.waiting == 1


def test_who_has_spoilt_a_round_waits_like_all_others_after_its_pause() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"xabc")
    assert started(cohorts.handle(over("xabc", back="ab", spoilers="x"))) == []
    assert entered(cohorts, "x", now_ms=PAUSE_MS - 1) == [Ends(CallKey("x", 0), EndReason.TOO_SOON, 1)]
    assert started(entered(cohorts, "x", now_ms=PAUSE_MS)) == [("a", "b", "x")]


def test_the_pause_of_who_spoils_rounds_doubles_and_other_windows_know_nothing_of_it() -> None:
    cohorts = cohorts_of()
    pauses, now_ms = [], 0
    for number in range(ATTEMPTS_MAX):
        others = (f"a{number}", f"b{number}")
        entered(cohorts, "x", *others, now_ms=now_ms)
        assert started(cohorts.handle(Woke(now_ms + 1000))) == [(*others, "x")]
        members = callers("x", *others)
        cohorts.handle(RoundOver(7, members, (), frozenset(), now_ms + 1000, frozenset("x")))
        (effect,) = entered(cohorts, "x", now_ms=now_ms + 1000, number=99)
        assert isinstance(effect, Ends)
        assert effect.reason is EndReason.TOO_SOON
        pauses.append(effect.wait_ms)
        now_ms += 1000 + effect.wait_ms
    assert pauses == [PAUSE_MS << number for number in range(ATTEMPTS_MAX)]
    assert entered(cohorts, "x", window=8, number=100)[0] == Waits(CallKey("x", 100))


def test_a_client_is_drawn_into_no_more_cohorts_of_a_window_than_its_promise_counts() -> None:
    cohorts = cohorts_of()
    for number in range(ATTEMPTS_MAX):
        others = (f"b{number}", f"c{number}", f"d{number}")
        assert started(entered(cohorts, "a", *others)) == [("a", *others)]
        effects = cohorts.handle(RoundOver(7, callers("a", *others), callers("a"), frozenset(), 0))
        is_last = number == ATTEMPTS_MAX - 1
        assert effects == [Ends(CallKey("a", 0), EndReason.DRAWN_TOO_OFTEN) if is_last else Waits(CallKey("a", 0))]
        cohorts.handle(Left(CallKey("a", 0), 7))
    assert entered(cohorts, "a", "e") == [Ends(CallKey("a", 0), EndReason.DRAWN_TOO_OFTEN), Waits(CallKey("e", 0))]
    assert entered(cohorts, "a", window=8) == [Waits(CallKey("a", 0))]


def test_with_a_pool_nobody_is_drawn_before_so_many_wait_however_long() -> None:
    cohorts = cohorts_of(POOLED)
    assert started(entered(cohorts, *"abcdef")) == []
    assert cohorts.wakes_ms is None
    assert started(cohorts.handle(Woke(10**9))) == []
    assert entered(cohorts, "a", number=1) == [
        Ends(CallKey("a", 0), EndReason.REPLACED),
        Waits(CallKey("a", 1)),
    ]  # it counts once
    (members,) = started(entered(cohorts, "g"))
    assert len(members) == POOLED.size
    assert cohorts.waiting == POOLED.pool - POOLED.size


def test_a_round_of_a_pool_that_cost_nothing_goes_on_without_anybody_in_place_of_the_lost() -> None:
    cohorts = cohorts_of(POOLED)
    (members,) = started(entered(cohorts, *"abcdefg"))
    left = members[:3]
    assert started(cohorts.handle(over("".join(members), back="".join(left)))) == [left]
    effects = cohorts.handle(RoundOver(7, callers(*left), callers(*left[:2]), frozenset(), 0))
    assert effects == [Waits(CallKey(name, 0)) for name in left[:2]]  # too few: they wait, with the others, for P


ABOUT_ONE_CALL: list[Callable[[CallKey], Effect]] = [
    Waits,
    *(partial(Ends, reason=reason) for reason in EndReason),
]


def test_two_effects_about_one_call_are_equal_only_where_they_are_of_one_kind() -> None:
    effects = [kind(CallKey("a", 0)) for kind in ABOUT_ONE_CALL]
    assert len(set(effects)) == len(ABOUT_ONE_CALL)
    assert effects == [kind(CallKey("a", 0)) for kind in ABOUT_ONE_CALL]


def chi_square(counts: Iterable[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in counts)


def test_every_set_of_members_is_drawn_equally_often(rng: np.random.Generator) -> None:
    drawn: Counter[tuple[str, ...]] = Counter()
    trials, names = 70_000, "abcdefg"
    for _ in range(trials):  # they come in one order, so that a draw by place in the line shows
        (members,) = started(entered(cohorts_of(POOLED, rng.bytes(32)), *names))
        drawn[members] += 1
    # 35 sets of 4 of 7: chi-square with 34 degrees of freedom passes 95.4 with a probability of 10^-7.
    assert len(drawn) == 35
    assert chi_square(drawn.values(), trials / 35) < 95.4


def test_an_attacker_who_comes_first_with_all_its_clients_gets_no_more_than_its_share(
    rng: np.random.Generator,
) -> None:
    rules = CohortRules(size=20, least=15, wait_ms=1000, rounds_max=1, pool=200)
    corrupt = [f"corrupt-{number}" for number in range(19)]
    taken: Counter[int] = Counter()
    for _ in range(2000):
        cohorts = cohorts_of(rules, rng.bytes(32))
        entered(cohorts, *corrupt, "victim")
        (members,) = started(entered(cohorts, *(f"honest-{number}" for number in range(180))))
        if "victim" in members:
            taken[sum(name in members for name in corrupt)] += 1
    # Hypergeometric(199, 19, 19) passes 12 with a probability of 8e-12 a draw; first in, first out gave it all 19.
    assert sum(taken.values()) > 100
    assert max(taken) <= 12


def test_a_window_that_closes_tells_all_that_wait_for_it_and_nobody_else() -> None:
    cohorts = cohorts_of()
    entered(cohorts, "a", "b")
    entered(cohorts, "c", window=8)
    assert cohorts.handle(WindowOver(7)) == [
        Ends(CallKey("a", 0), EndReason.CLOSED),
        Ends(CallKey("b", 0), EndReason.CLOSED),
    ]
    assert cohorts.windows == (8,)


def test_a_round_that_ends_after_its_window_sends_nobody_into_another() -> None:
    cohorts = cohorts_of()
    entered(cohorts, *"abcd")
    assert cohorts.handle(WindowOver(7)) == []
    assert cohorts.handle(over("abcd", back="abc")) == [Ends(caller, EndReason.CLOSED) for caller in callers(*"abc")]


class World:
    """A whole history: what is under way, checked after every step."""

    def __init__(self) -> None:
        self.cohorts = cohorts_of()
        self.now_ms = 0
        self.numbers = 0
        self.waiting: dict[tuple[int, str], CallKey] = {}
        self.rounds: list[Starts] = []
        self.spent: set[tuple[int, str]] = set()
        self.spoilt: set[tuple[int, str]] = set()
        self.draws: Counter[tuple[int, str]] = Counter()

    def enter(self, name: str, window: int) -> None:
        self.numbers += 1
        caller = CallKey(name, self.numbers)
        effects = self.cohorts.handle(Entered(caller, window, self.now_ms))
        in_round = any(caller.client_id == name for each in self.of(window) for caller in each.callers)
        if (window, name) in self.spent:
            assert effects[0] == Ends(caller, EndReason.TOOK_PART)
        elif in_round:
            assert effects[0] == Ends(caller, EndReason.IN_ROUND)
        elif isinstance(effects[0], Ends) and effects[0].reason is EndReason.TOO_SOON:
            assert (window, name) in self.spoilt
            assert (window, name) not in self.waiting
        else:
            old = self.waiting.get((window, name))
            replaced = [] if old is None else [Ends(old, EndReason.REPLACED)]
            is_out = self.draws[window, name] >= ATTEMPTS_MAX
            last = Ends(caller, EndReason.DRAWN_TOO_OFTEN) if is_out else Waits(caller)
            assert effects[: len(replaced) + 1] == [*replaced, last]
            if not is_out:
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
            out = EndReason.DRAWN_TOO_OFTEN
            effects = self.cohorts.handle(RoundOver(ended.window, members, there, gone, self.now_ms, guilty))
            waits = [effect.caller for effect in effects if isinstance(effect, Waits)]
            if waits or any(isinstance(effect, Ends) and effect.reason is out for effect in effects):
                self.waiting |= {(ended.window, caller.client_id): caller for caller in waits}
                there = ()  # whoever is in a cohort now has waited for it
            self.follow(effects, again=there)

    def wake(self, ms: int) -> None:
        self.now_ms += ms
        self.follow(self.cohorts.handle(Woke(self.now_ms)))

    def follow(self, effects: list[Effect], again: tuple[CallKey, ...] = ()) -> None:
        for effect in effects:
            if isinstance(effect, Starts):
                assert RULES.least <= len(effect.callers) <= RULES.size
                names = [caller.client_id for caller in effect.callers]
                assert len(set(names)) == len(names), "a client is in a cohort once"
                busy = {caller.client_id for each in self.of(effect.window) for caller in each.callers}
                assert busy.isdisjoint(names), "a client is in one cohort of a window"
                assert not any((effect.window, name) in self.spent for name in names), "its vector was taken"
                for caller in effect.callers:
                    if caller not in again:
                        self.draws[effect.window, caller.client_id] += 1
                        assert self.waiting.pop((effect.window, caller.client_id)) == caller
                self.rounds.append(effect)
        assert len(self.rounds) <= RULES.rounds_max
        assert self.cohorts.waiting == len(self.waiting)
        if len(self.rounds) < RULES.rounds_max:
            full = [window for window in (1, 2) if len(self.waited(window)) >= RULES.size]
            assert not full, "a full cohort waits for nothing"


NAMES = st.sampled_from("abcdefghij")
WINDOWS = st.sampled_from([1, 2])
STEPS = st.one_of(
    st.tuples(st.just("enter"), NAMES, WINDOWS),
    st.tuples(st.just("enter"), NAMES, WINDOWS),
    st.tuples(st.just("leave"), NAMES, WINDOWS),
    st.tuples(st.just("wake"), st.integers(0, 1500)),
    st.tuples(st.just("end"), st.integers(0, 4), st.sampled_from([0, 0, 3])),
)


# Most lists of free length are so short that no round ends in them.
@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=50, max_size=80))
def test_in_any_order_each_client_is_in_one_cohort_of_a_window_and_nobody_is_lost(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
