"""Places of calls that nobody signs in for: who comes new always gets one, at the cost of the address with the most."""

from contextlib import ExitStack

import pytest

from aggregator.api.admission_control import CancellableCall, SharedConcurrencyLimit
from aggregator.errors import AggregatorError, RefusedError
from aggregator.rate_limits import ConcurrencyLimit


class Call(CancellableCall):
    """A call that ends when it is told to, unless its reply is not read."""

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__()
        self.told = ""
        self.reads = reads

    def end(self, error: AggregatorError) -> bool:
        self.told = str(error)
        return self.reads


class Held:
    """Calls that hold a place, from addresses, each on a connection of its own."""

    def __init__(self, most: int) -> None:
        self.cut: list[str] = []
        self._places = SharedConcurrencyLimit(most, "health checks", self.cut.append)
        self._stacks: dict[Call, ExitStack] = {}

    def take(self, caller: str, number: int = 1, *, reads: bool = True) -> list[Call]:
        calls = [Call(reads=reads) for _ in range(number)]
        for call in calls:
            stack = ExitStack()
            stack.enter_context(self._places.taken(f"{caller}:{id(call)}", caller, call))
            self._stacks[call] = stack
            self.end([each for each in self._stacks if each.told and each.reads])
        return calls

    def end(self, calls: list[Call]) -> None:
        for call in calls:
            self._stacks.pop(call).close()


def told(calls: list[Call]) -> list[bool]:
    return [bool(call.told) for call in calls]


def test_an_address_that_takes_every_place_makes_room_for_another() -> None:
    held = Held(4)
    flood = held.take("203.0.113.9", 6)
    (probe,) = held.take("10.0.0.1")
    assert told(flood) == [True] * 3 + [False] * 3, "its own oldest calls go first"
    more = held.take("203.0.113.9", 9)
    assert not probe.told, "no address takes another's place"
    assert told(more) == [True] * 6 + [False] * 3
    assert "at most 4 health checks at once" in flood[0].told


def test_who_has_as_many_as_another_gives_up_one_of_its_own() -> None:
    held = Held(4)
    first, second = held.take("10.0.0.1", 2), held.take("10.0.0.2", 1)
    second += held.take("10.0.0.2", 1)
    second += held.take("10.0.0.2", 1)
    assert told(first) == [False] * 2
    assert told(second) == [True, False, False]


def test_many_addresses_with_one_call_each_leave_the_newest() -> None:
    held = Held(3)
    calls = [call for number in range(10) for call in held.take(f"203.0.113.{number}")]
    assert told(calls) == [True] * 7 + [False] * 3
    held.end(calls[7:])
    (late,) = held.take("10.0.0.1")
    assert not late.told, "what has ended holds nothing"


def test_a_call_whose_reply_is_not_read_keeps_its_place_and_loses_its_connection() -> None:
    held = Held(3)
    deaf = held.take("203.0.113.9", 3, reads=False)
    held.take("203.0.113.9", 3, reads=False)
    assert held.cut == [], "a reply may be on its way"
    with pytest.raises(RefusedError, match="at most 3 health checks"):
        held.take("10.0.0.1")
    assert set(held.cut) == {f"203.0.113.9:{id(call)}" for call in deaf}, "their connections are to be closed"
    held.end(deaf)  # their connections are closed
    (probe,) = held.take("10.0.0.1")
    assert not probe.told


def test_places_of_known_callers_are_refused_once_they_are_taken() -> None:
    places = ConcurrencyLimit(1, "watchers of releases")
    with places.taken(), pytest.raises(RefusedError, match="at most 1 watchers of releases"), places.taken():
        pass
