"""Clients of a round with what they bring, and a server that has invited them: real machines, small numbers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy, ReplayableEntropy
from hushsum.noise import DiscreteGaussian, Sampler
from hushsum.privacy.modular_words import Words
from hushsum.secure_sum.client import ClientRound
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server import ServerRound
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey

Int64 = npt.NDArray[np.int64]
PLAN_ID, ROUND = bytes(range(32)), bytes(range(100, 132))


class NoNoise(DiscreteGaussian):
    """A share of nothing, so that a sum can be compared exactly."""

    def __init__(self) -> None:
        super().__init__(Fraction(1))

    def sample(self, size: int, entropy: Entropy) -> Int64:
        return np.zeros(size, np.int64)


@dataclass(frozen=True)
class Recorded:
    """A sampler that remembers what it drew, for tests alone."""

    sampler: Sampler = field(default_factory=lambda: DiscreteGaussian(Fraction(9)))
    drawn: list[Int64] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:  # the rest of a sampler
        return getattr(self.sampler, name)

    def sample(self, size: int, entropy: Entropy) -> Int64:
        self.drawn.append(self.sampler.sample(size, entropy))
        return self.drawn[-1]


def small_parameters(members: int = 8, *, gone: int = 2, corrupt: int = 1, **others: Any) -> RoundParameters:
    """A round of a few clients, on a complete graph unless told otherwise."""
    degree = others.pop("degree", members - 1)
    fields: dict[str, Any] = {
        "plan_id": PLAN_ID,
        "window": -3,
        "round": ROUND,
        "members_max": members,
        "members_min": members - gone,
        "corrupt": corrupt,
        "honest": members - gone - corrupt,
        "degree": degree,
        "threshold": min((degree + corrupt) // 2 + 1, members - gone - 1),
        "window_survivors": 0,
        "words": Words(18, 40, 21, 2),
        "counter_max": 500,
        "count_max": 5000,
    }
    return RoundParameters(**(fields | others))


def ids_of(members: int) -> tuple[str, ...]:
    return tuple(f"device-{number:02}" for number in range(members))


def signing_keys(ids: Iterable[str]) -> dict[str, SigningKey]:
    return {client_id: SigningKey(client_id.encode().ljust(32, b".")) for client_id in ids}


def directory_of(keys: Mapping[str, SigningKey]) -> Directory:
    return Directory({id: DirectoryKey(id, Role.CLIENT, key.verify_key) for id, key in keys.items()})


@dataclass
class Fleet:
    """Clients of a round with what they bring; every part may be replaced before they are joined.

    Attributes:
        clients: Their machines.
        counters: What each brings.
        counts: The same.
        shares: The samplers that they draw from.
        server: The machine of the server.
    """

    parameters: RoundParameters
    keys: dict[str, SigningKey]
    directory: Directory | None
    clients: dict[str, ClientRound]
    counters: dict[str, Int64]
    counts: dict[str, Int64]
    shares: dict[str, Sampler]
    server: ServerRound

    def sum_of(self, ids: Iterable[str]) -> tuple[Int64, Int64]:
        """What the counters and counts of some clients come to, with the noise that they recorded."""
        words = self.parameters.words
        counters, counts = np.zeros(words.size, np.int64), np.zeros(words.classes, np.int64)
        for client_id in ids:
            counters += self.counters[client_id]
            counts += self.counts[client_id]
            share = self.shares[client_id]
            for drawn in share.drawn if isinstance(share, Recorded) else ():
                counters += drawn[: words.size]
                counts += drawn[words.size :]
        return counters, counts


def fleet(
    parameters: RoundParameters,
    rng: np.random.Generator,
    *,
    members: int | None = None,
    with_directory: bool = True,
    share: Callable[[], Sampler] = NoNoise,
    entropy: Callable[[str], Entropy] | None = None,
) -> Fleet:
    """Clients with random counters, and a server that has invited them."""
    ids = ids_of(members or parameters.members_max)
    keys = signing_keys(ids)
    directory = directory_of(keys) if with_directory else None
    words = parameters.words
    low, high = parameters.counter_max or 500, parameters.count_max or 5000
    counters = {id: rng.integers(-low, low, words.size, np.int64, endpoint=True) for id in ids}
    counts = {id: rng.integers(0, high, words.classes, np.int64, endpoint=True) for id in ids}
    shares = {id: share() for id in ids}
    base = rng.bytes(16)
    clients = {
        id: ClientRound(
            parameters,
            client_id=id,
            key=keys[id],
            directory=directory,
            counters=counters[id],
            counts=counts[id],
            share=shares[id],
            entropy=entropy(id) if entropy else ReplayableEntropy(base + id.encode()),
        )
        for id in ids
    }
    server = ServerRound(parameters, ids, directory)
    return Fleet(parameters, keys, directory, clients, counters, counts, shares, server)
