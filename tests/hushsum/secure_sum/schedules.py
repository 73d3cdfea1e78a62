"""Seeded random schedules of secure sums: who dies when, who is silent, who lies, what the server garbles on its way.

Each ends in the exact sum of its survivors, with the very shares of noise that they drew, or in a clean failure that
says truly what was spent; and whatever was said to whom, nobody signs or reveals twice, or under two views.

    python -m tests.hushsum.secure_sum.schedules --schedules 10000 --seed 1
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from hushsum.privacy.modular_words import Words
from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.key_agreement import KeyPair
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server import Done, Failed, ServerRound
from hushsum.signing import VerifyKey
from tests.hushsum.secure_sum.fleets import Fleet, Recorded, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Kill, Network, Passing

ATTEMPTS_MAX = 8
HEAD = 74
_STEPS = [step for step in ClientStep if step not in (ClientStep.NEW, ClientStep.REFUSED)]
_LATE = _STEPS[_STEPS.index(ClientStep.READY) :]


@dataclass
class Outcome:
    """What became of a schedule.

    Attributes:
        end: Of its last round.
        rounds: How many rounds there were.
        died: How many clients died.
        disturbed: Whether anything at all happened but the protocol.
    """

    end: Done | Failed
    rounds: int
    died: int
    disturbed: bool

    @property
    def text(self) -> str:
        """In a few words, without numbers."""
        if isinstance(self.end, Done):
            return "exact sum"
        words = "".join(letter for letter in self.end.reason if not letter.isdigit()).split()
        return f"{'free' if self.end.again else 'spent'}: {' '.join(words)}"


@dataclass
class Disturbance:
    """What happens to messages of one round, and what passed of it.

    Attributes:
        rng: Decides.
        silent: Clients whose message of a kind never arrives.
        liars: Clients that reveal shares which they were never given.
        garbled: How many messages, of those that may be, become something else.
        granted: Clients that were asked for their vector.
    """

    rng: np.random.Generator
    silent: dict[str, Kind | None] = field(default_factory=dict)
    liars: frozenset[str] = frozenset()
    garbled: int = 0
    granted: list[str] = field(default_factory=list)
    last: dict[Kind, bytes] = field(default_factory=dict)

    def __call__(self, each: Passing) -> list[Passing]:
        """What arrives instead."""
        if each.kind is Kind.GRANT and not each.to_server:
            self.granted.append(each.client_id)
        if each.to_server and each.client_id in self.silent and self.silent[each.client_id] is each.kind:
            return []
        if each.to_server and each.client_id in self.liars and each.kind is Kind.UNMASKING:
            return [replace(each, data=each.data[:HEAD] + self.rng.bytes(len(each.data) - HEAD))]
        if each.kind is None or not self.garbled or self.rng.random() > 0.1:
            return [each]
        self.garbled -= 1
        other, self.last[each.kind] = self.last.get(each.kind, each.data), each.data
        return [each, each] if self.rng.random() < 0.1 else [replace(each, data=self._garble(each.data, other))]

    def _garble(self, data: bytes, other: bytes) -> bytes:
        """Another client's, a byte changed anywhere, cut, or longer."""
        at = int(self.rng.integers(len(data)))
        changed = data[:at] + bytes([data[at] ^ (1 << self.rng.integers(8))]) + data[at + 1 :]
        return (other, changed, data[:at], data + self.rng.bytes(1))[self.rng.choice(4, p=(0.3, 0.5, 0.1, 0.1))]


@contextmanager
def remembered() -> Generator[None]:
    """Signatures are verified once and pairs of keys agree once, with the same results: most of a round's time."""
    verified: dict[tuple[bytes, ...], bool] = {}
    agreed: dict[frozenset[bytes], bytes] = {}
    verifies, shared = VerifyKey.verifies, KeyPair.shared

    def verifies_once(self: VerifyKey, signature: bytes, *parts: bytes) -> bool:
        key = (self.raw, signature, *parts)
        if key not in verified:
            verified[key] = verifies(self, signature, *parts)
        return verified[key]

    def shared_once(self: KeyPair, public: bytes) -> bytes:
        pair = frozenset((self.public, public))
        if pair not in agreed:
            agreed[pair] = shared(self, public)
        return agreed[pair]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerifyKey, "verifies", verifies_once)
        patch.setattr(KeyPair, "shared", shared_once)
        yield


def run(seed: int) -> Outcome:
    """One schedule.

    Raises:
        AssertionError: It ends in anything else than it may.
    """
    rng = np.random.default_rng(seed)
    parameters = some_parameters(rng)
    members = int(rng.integers(parameters.members_min, parameters.members_max + 1))
    living = fleet(parameters, rng, members=members).server._owing
    late = bool(rng.random() < 0.7)
    died, disturbed, rounds = 0, False, 0
    while True:
        rounds += 1
        parameters = replace(parameters, round=rng.bytes(32))
        made = some_fleet(parameters, rng, members, sorted(living))
        kills, disturbance = some_trouble(parameters, rng, sorted(living), late=late)
        disturbed |= bool(kills or disturbance.silent or disturbance.liars or disturbance.garbled)
        honest = not disturbance.garbled
        network = Network(made, rng=rng, meddle=disturbance, kills=kills)
        end = network.run()
        check(network, end, disturbance, honest=honest)
        died += len(network._dead)
        living = living - network._dead - set(network.refused)
        over = isinstance(end, Done) or not end.again or len(living) < parameters.members_min
        if over or rounds == ATTEMPTS_MAX:
            break
    assert disturbed or isinstance(end, Done), "nothing happened to it"
    return Outcome(end, rounds, died, disturbed)


def some_parameters(rng: np.random.Generator) -> RoundParameters:
    """A cohort of 5 to 14, on a ring or a complete graph, which survives some."""
    members = int(rng.integers(5, 15))
    corrupt = int(rng.integers(0, 2 + (members > 9)))
    gone = int(rng.integers(1, max(2, members // 3)))
    words = Words(int(rng.integers(17, 34)), 20, int(rng.integers(1, 70)), 1 + int(rng.integers(3)))
    if members >= 9 and rng.random() < 0.5:
        ring: dict[str, Any] = {"degree": 6, "threshold": 3, "window_survivors": int(rng.integers(0, 3))}
        return small_parameters(members, gone=gone, corrupt=corrupt, words=words, **ring)
    return small_parameters(members, gone=gone, corrupt=corrupt, words=words)


def some_fleet(parameters: RoundParameters, rng: np.random.Generator, members: int, living: list[str]) -> Fleet:
    """Those who are still there, each with new counters and a recorded share of noise."""
    made = fleet(parameters, rng, members=members, share=Recorded)
    made.clients = {client_id: made.clients[client_id] for client_id in living}
    uploads = int(rng.integers(1, 4))
    made.server = ServerRound(parameters, tuple(living), made.directory, uploads_max=uploads)
    return made


def some_trouble(
    parameters: RoundParameters, rng: np.random.Generator, living: list[str], *, late: bool
) -> tuple[dict[str, Kill], Disturbance]:
    """Who dies when, up to the plan's rate and beyond; who is silent; who reveals what it was never given."""
    steps = _LATE if late else _STEPS
    chosen = [str(client_id) for client_id in rng.permutation(living)]
    dying = int(rng.integers(0, parameters.members_max - parameters.members_min + 3))
    kills = {client_id: Kill(steps[rng.integers(len(steps))], bool(rng.integers(2))) for client_id in chosen[:dying]}
    disturbance = Disturbance(rng)
    if rng.random() < 0.2:
        kinds = (Kind.ADVERTISEMENT, Kind.OPENING, Kind.SHARES, None, Kind.CONSENT, Kind.UNMASKING)
        disturbance.silent = {chosen[-1]: kinds[rng.integers(2 * late, len(kinds))]}
    if rng.random() < 0.3:
        disturbance.liars = frozenset(chosen[dying : dying + int(rng.integers(1, parameters.corrupt + 2))])
    if rng.random() < 0.2:
        disturbance.garbled = int(rng.integers(1, 4))
    return kills, disturbance


def check(network: Network, end: Done | Failed, disturbance: Disturbance, *, honest: bool) -> None:
    """That this is how a round may end.

    Raises:
        AssertionError: It is not.
    """
    made = network.fleet
    granted = disturbance.granted
    assert len(granted) == len(set(granted)), "asked for two vectors"
    assert set(network.spent) <= set(granted), "spent without a grant"
    assert not network.refused or not honest, f"refused in an honest round: {network.refused}"
    for said in (network.attempts, network.spent, network.revealed):
        assert len(said) == len(set(said)), "done twice"
    views = {(_transcript(network, id), made.clients[id]._survivors) for id in network.revealed}
    assert len(views) <= 1, "revealed under two views"
    if isinstance(end, Failed):
        assert end.spent == len(granted), "spent is not what was granted"
        assert end.again is (not granted), "again, though something was spent"
        assert not (end.again and network.spent), "free, though a vector was paid for"
        return
    sum_ = end.sum
    assert sum_.spent == len(granted)
    assert sum_.submissions == len(sum_.survivors) >= made.parameters.members_min
    assert list(sum_.survivors) == sorted(set(sum_.survivors) & set(network.spent)), "survivors who sent nothing"
    drawn = [made.shares[id].drawn for id in sum_.survivors]  # type: ignore[attr-defined]  # they were made to remember
    assert all(len(once) == 1 for once in drawn), "not one share of noise each"
    counters, counts = made.parameters.words.centred(sum_.words)
    expected = made.sum_of(sum_.survivors)
    assert (counters == expected[0]).all(), "another sum than that of the survivors"
    assert (counts == expected[1]).all(), "other counts than those of the survivors"


def _transcript(network: Network, client_id: str) -> bytes:
    graph = network.fleet.clients[client_id]._graph
    assert graph is not None, "it has revealed"
    return graph.transcript


def main(arguments: list[str] | None = None) -> int:
    """Runs schedules and says how they ended; the seed of the first that ends wrongly."""
    parser = argparse.ArgumentParser(description="Random schedules of secure sums.")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    began, ends, rounds, died = time.monotonic(), Counter[str](), 0, 0
    for done in range(1, given.schedules + 1):
        seed = given.seed * 1_000_000_007 + done
        try:
            with remembered():
                outcome = run(seed)
        except AssertionError as error:
            sys.stderr.write(f"schedule {seed}: {error}\n")
            return 1
        ends[outcome.text] += 1
        rounds += outcome.rounds
        died += outcome.died
        if done % max(1, given.schedules // 10) == 0:
            sys.stdout.write(
                f"{done:>8} schedules, {rounds} rounds, {died} clients died, {time.monotonic() - began:.0f} s\n"
            )
    for text, number in ends.most_common():
        sys.stdout.write(f"{number:>8} {text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
