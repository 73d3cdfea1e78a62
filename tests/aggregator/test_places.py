"""Places of calls that nobody signs in for: who comes new always gets one, at the cost of the address with the most."""

from contextlib import ExitStack

import pytest

from aggregator.callers.places import Places, SharedPlaces
from aggregator.errors import AggregatorError
from aggregator.refusals import RefusedError


class Call:
    def __init__(self) -> None:
        self.told = ""

    def end(self, error: AggregatorError) -> bool:
        self.told = str(error)
        return True


def test_an_address_that_takes_every_place_makes_room_for_another() -> None:
    places, flood, probe = SharedPlaces(4, "health checks"), [Call() for _ in range(6)], Call()
    with ExitStack() as stack:
        for call in flood:
            stack.enter_context(places.taken("ipv4:203.0.113.9", call))
        stack.enter_context(places.taken("ipv4:10.0.0.1", probe))
        assert [bool(call.told) for call in flood] == [True] * 3 + [False] * 3, "its own oldest calls go first"
        for call in (flood_on := [Call() for _ in range(9)]):
            stack.enter_context(places.taken("ipv4:203.0.113.9", call))
        assert not probe.told, "no address takes another's place"
        assert flood[-1].told
        assert [bool(call.told) for call in flood_on] == [True] * 6 + [False] * 3
    assert "at most 4 health checks at once" in flood[0].told


def test_many_addresses_with_one_call_each_leave_the_newest() -> None:
    places, calls = SharedPlaces(3, "health checks"), [Call() for _ in range(10)]
    with ExitStack() as stack:
        for number, call in enumerate(calls):
            stack.enter_context(places.taken(f"ipv4:203.0.113.{number}", call))
        assert [bool(call.told) for call in calls] == [True] * 7 + [False] * 3
    with places.taken("ipv4:10.0.0.1", late := Call()):
        assert not late.told, "what has ended holds nothing"


def test_places_of_known_callers_are_refused_once_they_are_taken() -> None:
    places = Places(1, "watchers of releases")
    with places.taken(), pytest.raises(RefusedError, match="at most 1 watchers of releases"), places.taken():
        pass
