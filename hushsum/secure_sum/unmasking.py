"""How the server takes the masks off a sum: it puts the survivors' seeds together, and the mask keys of the others.

Shares are checked by what they come to, for nobody need have told the truth: a seed of a self mask has a check that its
owner sent, and a mask key's seed makes the advertised key. Where t shares come to something else, others are tried,
within a bound; and who revealed wrong ones is then known.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from hushsum.secure_sum import agreement, masks, shamir
from hushsum.secure_sum.agreement import Occasion
from hushsum.secure_sum.bitmaps import Flags
from hushsum.secure_sum.messages import SHARE_BYTES
from hushsum.secure_sum.roster import Roster

_STUCK_MAX: Final = 8  # secrets whose shares are tried in vain before the others wait for more shares


class Unmasking:
    """The shares that survivors reveal, and the seeds that they come to.

    Args:
        roster: The members.
        neighbours: Of each member, rising.
        occasion: With its transcript.
        checks: What each member sent to check its self-mask seed with.
        survivors: Whose vectors are in the sum.
        threshold: Shares that open a seed.
    """

    def __init__(
        self,
        roster: Roster,
        neighbours: Sequence[Sequence[int]],
        *,
        occasion: Occasion,
        checks: Sequence[bytes],
        survivors: Flags,
        threshold: int,
    ) -> None:
        self._roster = roster
        self._neighbours = neighbours
        self._occasion = occasion
        self._checks = checks
        self._survivors = survivors
        self._threshold = threshold
        self._places = [{neighbour: place for place, neighbour in enumerate(near)} for near in neighbours]
        self._revealed: dict[int, list[bytes]] = {}  # by member, a share of each of its neighbours
        self._needed = {
            member
            for member, near in enumerate(neighbours)
            if survivors[member] or any(survivors[neighbour] for neighbour in near)
        }
        self._lacking = dict.fromkeys(self._needed, threshold)
        self._short = len(self._needed)
        self._seeds: dict[int, bytes] = {}
        self._trusted: set[int] = set()
        self._searched: dict[int, int] = {}  # how many shares of a secret were there when it was searched in vain
        self.liars: set[int] = set()

    def add(self, member: int, shares: list[bytes]) -> None:
        """Takes what a survivor reveals, once."""
        assert member not in self._revealed, "a client reveals once"
        self._revealed[member] = shares
        for neighbour in self._neighbours[member]:
            if neighbour in self._lacking:
                self._lacking[neighbour] -= 1
                self._short -= self._lacking[neighbour] == 0

    def may_solve(self, coming: Collection[int]) -> bool:
        """Whether enough shares may be there once these members have revealed theirs."""
        return all(
            lacking <= 0 or sum(near in coming for near in self._neighbours[member]) >= lacking
            for member, lacking in self._lacking.items()
        )

    def solve(self) -> bool:
        """Whether all seeds are known now."""
        if self._short:
            return False
        stuck = 0
        while open_ := sorted(self._needed - self._seeds.keys()):
            # What one secret teaches about liars makes others easy: so all are tried again before the next one is.
            if self._settle([(member, self._best(member)) for member in open_]):
                continue
            while stuck < min(len(open_), _STUCK_MAX) and not self._search(open_[stuck]):
                stuck += 1
            if stuck == min(len(open_), _STUCK_MAX):
                return False
        return True

    def remove(self, words: masks.WordArray) -> None:
        """Takes all masks off the sum of the survivors' vectors, in place."""
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for member, seed in self._seeds.items():
            client_id = self._roster.ids[member]
            if self._survivors[member]:
                subtracted.append(agreement.self_mask_key(seed, self._occasion, client_id))
                continue
            pair = agreement.mask_key_pair(seed, self._occasion, client_id)
            for neighbour in self._neighbours[member]:
                if self._survivors[neighbour]:
                    other, keys = self._roster.ids[neighbour], self._roster.keys[neighbour]
                    key = agreement.pair_mask_key(pair, keys.mask, self._occasion, client_id, other)
                    (subtracted if neighbour < member else added).append(key)
        masks.apply(words, added, subtracted)

    def _holders(self, member: int) -> list[int]:
        """Neighbours that have revealed a share of this member's, those that are known to lie left out."""
        return [near for near in self._neighbours[member] if near in self._revealed and near not in self.liars]

    def _best(self, member: int) -> list[int]:
        holders = sorted(self._holders(member), key=lambda holder: holder not in self._trusted)
        return holders[: self._threshold]

    def _settle(self, chosen: Sequence[tuple[int, list[int]]]) -> bool:
        """Tries one choice of holders for each of some secrets; whether any secret came out."""
        full = [(member, holders) for member, holders in chosen if len(holders) == self._threshold]
        found = False
        for (member, holders), seed in zip(full, self._combined(full), strict=True):
            if member not in self._seeds and self._is_seed(member, seed):
                self._seeds[member] = seed
                self._trusted.update(holders)
                found = True
        return found

    def _search(self, member: int) -> bool:
        """Tries other choices: the best without one of them, and runs of all of them in a row."""
        holders, t = self._holders(member), self._threshold
        if len(holders) <= self._searched.get(member, t):
            return False
        without_one = [holders[:skipped] + holders[skipped + 1 : t + 1] for skipped in range(t + 1)]
        runs = [(holders[start:] + holders[:start])[:t] for start in range(1, len(holders))]
        for choice in (*without_one, *runs):
            if self._settle([(member, choice)]):
                self._accuse(member, choice, holders)
                return True
        self._searched[member] = len(holders)
        return False

    def _accuse(self, member: int, right: list[int], holders: list[int]) -> None:
        """Finds who revealed a wrong share of a secret that is known.

        With all but one of the right shares, another comes to the same secret only if it is right.
        """
        others = [holder for holder in holders if holder not in right]
        trials = [(member, [*right[1:], other]) for other in others]
        for other, seed in zip(others, self._combined(trials), strict=True):
            if seed != self._seeds[member]:
                self.liars.add(other)
                self._trusted.discard(other)

    def _combined(self, chosen: Sequence[tuple[int, list[int]]]) -> list[bytes]:
        if not chosen:
            return []
        indices = np.array([[self._places[member][holder] + 1 for holder in of] for member, of in chosen], np.uint8)
        shares = b"".join(
            self._revealed[holder][self._places[holder][member]] for member, of in chosen for holder in of
        )
        octets = np.frombuffer(shares, np.uint8).reshape(*indices.shape, SHARE_BYTES)
        return [seed.tobytes() for seed in shamir.combine_many(indices, octets, self._threshold)]

    def _is_seed(self, member: int, seed: bytes) -> bool:
        client_id = self._roster.ids[member]
        if self._survivors[member]:
            return agreement.self_mask_check(seed, self._occasion, client_id) == self._checks[member]
        return agreement.mask_key_pair(seed, self._occasion, client_id).public == self._roster.keys[member].mask

    def __repr__(self) -> str:
        return f"Unmasking({len(self._revealed)} of {int(self._survivors.sum())} revealed)"
