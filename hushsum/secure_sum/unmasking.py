"""How the server takes the masks off a sum: it puts the survivors' seeds together, and the mask keys of the others.

Shares are checked by what they come to, for nobody need have told the truth: a seed of a self mask has a check that its
owner sent, and a mask key's seed makes the advertised key. Where t shares come to something else, others are tried,
within a bound. A share that does not fit its secret tells that its dealer or its holder lied, and not which: the shares
of this holder come last from then on, and no more. Only who contradicts more dealers than may be corrupt is a liar.

A secret that does not come out ends the round, though its own check may be all that is wrong with it. To accept a seed
on which all shares agree would help little: who sends a wrong check may as well deal shares that fit nothing.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from hushsum.secure_sum import key_agreement, shamir
from hushsum.secure_sum.bitmaps import Flags
from hushsum.secure_sum.key_agreement import Occasion
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
        corrupt: How many members may be corrupt.
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
        corrupt: int,
    ) -> None:
        self._roster = roster
        self._neighbours = neighbours
        self._occasion = occasion
        self._checks = checks
        self._survivors = survivors
        self._threshold = threshold
        self._corrupt = corrupt
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
        self._right: dict[int, list[int]] = {}  # by member, holders of the shares that its seed came from
        self._doubted: Counter[int] = Counter()  # by holder, of how many secrets its share was found to be wrong
        self.stuck: tuple[int, ...] = ()  # members whose secret has not come out of enough shares

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
        while open_ := sorted(self._needed - self._seeds.keys()):
            # What one secret teaches about its holders makes others easy: all are tried again before the next one is.
            if self._settle([(member, self._best(member)) for member in open_]):
                continue
            if not any(self._search(member) for member in open_[:_STUCK_MAX]):
                self.stuck = tuple(open_)
                return False
        self.stuck = ()
        return True

    def liars(self) -> list[int]:
        """Who revealed wrong shares of more members than may be corrupt, and of two at least, once all seeds are known.

        Only those are looked at of whom one wrong share was met on the way.
        """
        most = max(1, self._corrupt)
        return [holder for holder in sorted(self._doubted) if self._contradicted(holder) > most]

    def remove(self, words: key_agreement.WordArray) -> None:
        """Takes all masks off the sum of the survivors' vectors, in place."""
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for member, seed in self._seeds.items():
            client_id = self._roster.ids[member]
            if self._survivors[member]:
                subtracted.append(key_agreement.self_mask_key(seed, self._occasion, client_id))
                continue
            pair = key_agreement.mask_key_pair(seed, self._occasion, client_id)
            for neighbour in self._neighbours[member]:
                if self._survivors[neighbour]:
                    other, keys = self._roster.ids[neighbour], self._roster.keys[neighbour]
                    key = key_agreement.pair_mask_key(pair, keys.mask, self._occasion, client_id, other)
                    (subtracted if neighbour < member else added).append(key)
        key_agreement.apply(words, added, subtracted)

    def _holders(self, member: int) -> list[int]:
        """Neighbours that have revealed a share of this member's: first those to be trusted, those in doubt last."""
        there = [near for near in self._neighbours[member] if near in self._revealed]
        return sorted(there, key=lambda holder: (self._doubted[holder], holder not in self._trusted))

    def _best(self, member: int) -> list[int]:
        return self._holders(member)[: self._threshold]

    def _settle(self, chosen: Sequence[tuple[int, list[int]]]) -> bool:
        """Tries one choice of holders for each of some secrets; whether any secret came out."""
        full = [(member, holders) for member, holders in chosen if len(holders) == self._threshold]
        found = False
        for (member, holders), seed in zip(full, self._combined(full), strict=True):
            if member not in self._seeds and self._is_seed(member, seed):
                self._seeds[member] = seed
                self._right[member] = holders
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
                self._doubt(member, holders)
                return True
        self._searched[member] = len(holders)
        return False

    def _doubt(self, member: int, holders: list[int]) -> None:
        """Finds whose share of a secret that is known is wrong: the holder lied, or the member that dealt it did."""
        wrong = self._wrong([(member, holder) for holder in holders])
        self._doubted.update(holder for _, holder in wrong)

    def _contradicted(self, holder: int) -> int:
        """Of how many secrets its share is wrong."""
        return len(self._wrong([(member, holder) for member in self._neighbours[holder] if member in self._right]))

    def _wrong(self, shares: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Which of these shares (member, holder) of secrets that are known are wrong.

        With all but one of the right shares, another comes to the same secret only if it is right.
        """
        others = [(member, holder) for member, holder in shares if holder not in self._right[member]]
        trials = [(member, [*self._right[member][1:], holder]) for member, holder in others]
        return [each for each, seed in zip(others, self._combined(trials), strict=True) if seed != self._seeds[each[0]]]

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
            return key_agreement.self_mask_check(seed, self._occasion, client_id) == self._checks[member]
        return key_agreement.mask_key_pair(seed, self._occasion, client_id).public == self._roster.keys[member].mask

    def __repr__(self) -> str:
        return f"Unmasking({len(self._revealed)} of {int(self._survivors.sum())} revealed)"
