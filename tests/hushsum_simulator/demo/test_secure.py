"""Which clients drop out of a secure sum, and when."""

from collections import Counter

from hushsum_simulator.demo.secure import draw_dropouts
from hushsum_simulator.progress import Stage

CLIENTS = [f"client-{number}" for number in range(200)]


def test_the_rate_says_how_many_vanish_half_of_them_before_their_vector() -> None:
    chosen = draw_dropouts(CLIENTS, 0.1, seed=3)
    spent = Counter(stage >= Stage.UPLOAD for stage in chosen.values())
    assert (len(chosen), spent[True], spent[False]) == (20, 10, 10)
    assert chosen.keys() <= set(CLIENTS)
    assert not {Stage.ADDING, Stage.DONE, Stage.DROPPED} & set(chosen.values())
    assert draw_dropouts(CLIENTS, 0.0, seed=3) == {}


def test_the_seed_decides_who_it_is() -> None:
    assert draw_dropouts(CLIENTS, 0.1, seed=3) == draw_dropouts(CLIENTS, 0.1, seed=3)
    assert draw_dropouts(CLIENTS, 0.1, seed=3) != draw_dropouts(CLIENTS, 0.1, seed=4)
