"""What the server holds says nothing of one client's counters beyond the sum: exactly in part, and by distribution.

Four clients, of whom the last is corrupt and hands the server its secrets. Two worlds differ in what the first and the
second bring, and have the same sum. All words of a round are samples: their masks are to be independent and uniform.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.privacy.modular_words import Words
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server import Done
from tests.hushsum.secure_sum import planted
from tests.hushsum.secure_sum.fleets import Fleet, NoNoise, Recorded, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Network
from tests.hushsum.secure_sum.planted import LyingServer

VICTIM, SECOND, THIRD, CORRUPT = "device-00", "device-01", "device-02", "device-03"
SIZE = 1 << 15
VALUES = 8  # of what is looked at of a word: all of a narrow one, the highest three bits of a wide one
#: Of a χ² with as many degrees of freedom; each test looks at no more than ten.
FALSE_ALARM = 1e-7
Values = npt.NDArray[np.int64]
Mistake = Callable[[pytest.MonkeyPatch], None]


def of_width(bits: int, **others: Any) -> RoundParameters:
    return small_parameters(4, gone=1, corrupt=1, threshold=2, words=Words(bits, 8, SIZE, 1), **others)


NARROW, WIDE = of_width(3), of_width(32)


def world(parameters: RoundParameters, brought: int, drawn: bytes, share: Callable[[], Any] = NoNoise) -> Fleet:
    """A cohort in which the victim brings this to every counter, and the second as much less."""
    made = fleet(
        parameters,
        np.random.default_rng(3),
        share=share,
        entropy=lambda client_id: ReplayableEntropy(drawn + client_id.encode()),
    )
    for client_id, value in ((VICTIM, brought), (SECOND, -brought), (THIRD, 1), (CORRUPT, 0)):
        made.counters[client_id][:] = value
        made.counts[client_id][:] = 5
    return made


@dataclass
class View:
    """What a server has of the honest clients when it has taken off all masks that it can: (SIZE,) of 0 to 7 each."""

    victim: Values
    second: Values
    third: Values


def view(parameters: RoundParameters, brought: int, drawn: bytes, *, dropped: bool = False) -> View:
    """Of one round, in which the victim is in the sum, or has sent its vector and is called dropped."""
    made = world(parameters, brought, drawn)
    server = LyingServer(made)
    of_corrupt = server.clients[CORRUPT]._secrets._mask_seed
    server.grant()
    survivors = [client_id for client_id in server.ids if not (dropped and client_id == VICTIM)]
    revealed = server.shares(survivors, server.consents(survivors, survivors))
    seen = []
    for client_id in (VICTIM, SECOND, THIRD):
        words, bits = parameters.words.unpack(server.vectors[client_id]), parameters.words.bits
        seed = server.seed(client_id, revealed)
        assert seed is not None
        if client_id in survivors:
            server.without_pair_masks(words, CORRUPT, of_corrupt, [client_id])
            server.without_self_mask(words, client_id, seed)
        else:
            server.without_own_pair_masks(words, client_id, seed)
        seen.append(words[:SIZE].astype(np.int64) % (1 << bits) >> (bits - 3))
    return View(*seen)


def surprise(*values: Values) -> float:
    """How likely joint values would be further from uniform, were they independent and uniform."""
    from scipy import stats

    cells = np.ravel_multi_index(values, (VALUES,) * len(values))
    return float(stats.chisquare(np.bincount(cells, minlength=VALUES ** len(values))).pvalue)


def difference(one: tuple[Values, ...], other: tuple[Values, ...]) -> float:
    """How likely two samples of joint values would differ more, were their distributions the same."""
    from scipy import stats

    tables = [
        np.bincount(np.ravel_multi_index(values, (VALUES,) * len(values)), minlength=VALUES ** len(values))
        for values in (one, other)
    ]
    table = np.array(tables)[:, np.sum(tables, axis=0) > 0]
    return float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def survivors_leak(parameters: RoundParameters, base: bytes) -> float:
    """The least of what is likely of the honest clients' words in two worlds with the same sum."""
    worlds = [view(parameters, brought << (parameters.words.bits - 3), base + b"%d" % brought) for brought in (0, 3)]
    for seen in worlds:
        if parameters is NARROW:
            assert set((seen.victim + seen.second + seen.third) % VALUES) == {1}, "the sum is what it is"
    pairs = [(seen.victim, seen.second) for seen in worlds]
    rows = [(seen.victim[:-1], seen.victim[1:]) for seen in worlds]
    uniform = [surprise(*pair) for pair in (*pairs, *rows)]
    return min(*uniform, difference(*pairs), difference(*rows))


def dropouts_leak(parameters: RoundParameters, base: bytes) -> float:
    """The same of the vector of a victim that is called dropped, whose mask key comes out."""
    worlds = [view(parameters, brought, base + b"%d" % brought, dropped=True).victim for brought in (0, 3)]
    return min(surprise(worlds[0]), surprise(worlds[1]), difference((worlds[0],), (worlds[1],)))


def rounds_leak(parameters: RoundParameters, base: bytes) -> float:
    """The same of two rounds of the same clients, who draw the very randomness that they drew before."""
    again = replace(parameters, round=bytes(32))
    first, second = (view(each, 3, base) for each in (parameters, again))
    return min(surprise(first.victim, second.victim), surprise(first.second, second.second))


LEAKS = [survivors_leak, dropouts_leak, rounds_leak]


@pytest.mark.statistical
@pytest.mark.parametrize("parameters", [NARROW, WIDE], ids=["3 bits", "32 bits"])
@pytest.mark.parametrize("leak", LEAKS)
def test_what_the_server_holds_is_distributed_the_same_whatever_a_client_brought(
    leak: Callable[[RoundParameters, bytes], float], parameters: RoundParameters, rng: np.random.Generator
) -> None:
    assert leak(parameters, rng.bytes(16)) > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("mistake", "leak", "parameters"),
    [
        (planted.no_pairwise_masks, survivors_leak, NARROW),
        (planted.masks_of_31_bits, survivors_leak, WIDE),
        (planted.masks_of_31_bits, dropouts_leak, WIDE),
        (planted.no_self_masks, dropouts_leak, NARROW),
        (planted.masks_of_the_clients_alone, rounds_leak, NARROW),
    ],
)
def test_a_planted_leak_is_seen(
    mistake: Mistake,
    leak: Callable[[RoundParameters, bytes], float],
    parameters: RoundParameters,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    assert leak(parameters, rng.bytes(16)) < FALSE_ALARM


def test_all_but_the_vectors_is_the_same_to_the_byte_whatever_a_client_brought(rng: np.random.Generator) -> None:
    """And what it brought is added to its vector, and does nothing else to it: the noise and the masks are the same."""
    drawn = rng.bytes(16)
    networks = []
    for brought in (0, 3):
        network = Network(world(NARROW, brought, drawn, Recorded))
        assert isinstance(network.run(), Done)
        networks.append(network)
    ends = [network.end for network in networks]
    assert isinstance(ends[0], Done)
    assert isinstance(ends[1], Done)
    assert (ends[0].sum.words % 8 == ends[1].sum.words % 8).all()
    said = [[each for each in network.passed if each.kind is not None] for network in networks]
    assert said[0] == said[1]
    for client_id, added in ((VICTIM, 3), (SECOND, -3), (THIRD, 0), (CORRUPT, 0)):
        zero, three = (NARROW.words.unpack(network.said(client_id, None)[0]) for network in networks)
        assert ((three - zero)[:SIZE] % 8 == added % 8).all()
        assert (three[SIZE:] == zero[SIZE:]).all()
