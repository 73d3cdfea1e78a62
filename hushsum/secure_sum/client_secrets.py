"""What one client brings to a round and nobody else may see: its counters, its keys, its seeds, and its neighbours'."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.secure_sum import key_agreement, shamir
from hushsum.secure_sum.bitmaps import Flags
from hushsum.secure_sum.key_agreement import SEED_BYTES, KeyPair, Occasion
from hushsum.secure_sum.messages import CONTRIBUTION_BYTES, SHARE_BYTES, Keys
from hushsum.secure_sum.neighbour_graph import neighbours_of
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import NeighbourGraph, Roster, commitment

Int64 = npt.NDArray[np.int64]


class Share(Protocol):
    """What draws one client's share of the noise."""

    def sample(self, size: int, entropy: Entropy) -> Int64:
        """(size,) int64, independent draws."""
        ...


class ClientSecrets:
    """A client's secrets of one round; the counters are noised and masked in here, and leave in no other form.

    Args:
        parameters: Of the round.
        client_id: Whose.
        counters: int64 (D,).
        counts: int64 (classes,).
        share: Of the noise.
        entropy: Private randomness.

    Raises:
        ValueError: Counters of another shape, or beyond what a plan of unit client allows one client.
    """

    def __init__(
        self,
        parameters: RoundParameters,
        client_id: str,
        counters: Int64,
        counts: Int64,
        share: Share,
        entropy: Entropy,
    ) -> None:
        words = parameters.words
        for what, values, shape, largest in (
            ("counters", counters, (words.size,), parameters.counter_max),
            ("counts", counts, (words.classes,), parameters.count_max),
        ):
            if values.dtype != np.int64 or values.shape != shape:
                raise ValueError(f"{what}: {values.dtype} {values.shape}, expected int64 {shape}")
            if largest is not None and (int(values.max(initial=0)) > largest or int(values.min(initial=0)) < -largest):
                raise ValueError(f"{what} exceed {largest}, the largest value of a client under this plan")
        self._parameters = parameters
        self._client_id = client_id
        self._counters, self._counts = counters, counts
        self._share, self._entropy = share, entropy
        self._occasion: Occasion = parameters.occasion
        self._self_seed = entropy.read(SEED_BYTES)
        self._mask_seed = entropy.read(SEED_BYTES)
        self._exchange = KeyPair.generate(entropy)
        self._mask = key_agreement.mask_key_pair(self._mask_seed, self._occasion, client_id)
        self.contribution = entropy.read(CONTRIBUTION_BYTES)
        self._roster: Roster | None = None
        self._neighbours: tuple[int, ...] = ()
        self._opening: list[bytes] = []  # for each neighbour, the key that its shares come sealed with
        self._held: list[bytes] = []  # of each neighbour, its two shares

    def keys(self, identity: bytes) -> Keys:
        """What the client advertises, beside its identity key."""
        committed = commitment(self._parameters, self._client_id, self.contribution)
        return Keys(identity, self._exchange.public, self._mask.public, committed)

    def settle(self, roster: Roster, graph: NeighbourGraph) -> tuple[int, ...]:
        """Finds its neighbours, once the graph is drawn."""
        self._roster = roster
        self._occasion = self._occasion.drawn(graph.transcript)
        degree, me = self._parameters.degree, roster.index[self._client_id]
        self._neighbours = neighbours_of(graph.transcript, len(roster), degree, me)
        return self._neighbours

    def sealed_shares(self) -> list[bytes]:
        """The check of its self-mask seed, then for each neighbour a share of both seeds, sealed.

        Raises:
            SecureSumError: A neighbour's key is none.
        """
        shares = shamir.split(
            self._self_seed + self._mask_seed, self._parameters.threshold, len(self._neighbours), self._entropy
        )
        check = key_agreement.self_mask_check(self._self_seed, self._occasion, self._client_id)
        sealed = []
        for (neighbour_id, keys), pair in zip(self._near(), shares, strict=True):
            to, fro = key_agreement.share_keys(
                self._exchange, keys.exchange, self._occasion, self._client_id, neighbour_id
            )
            sealed.append(key_agreement.seal(to, pair.tobytes()))
            self._opening.append(fro)
        return [check, *sealed]

    def keep(self, sealed: list[bytes]) -> None:
        """Opens the shares that each neighbour has sent it.

        Raises:
            SecureSumError: One was altered, or is not from this neighbour for this client in this round.
        """
        self._held = [key_agreement.unseal(key, message) for key, message in zip(self._opening, sealed, strict=True)]
        self._opening.clear()

    def masked(self) -> bytes:
        """The counters with the client's share of the noise, masked and packed.

        Once: what is in it is forgotten, and the noise, taken here, with it. Sums beyond int64 wrap around, as those
        beyond the words do.

        Raises:
            SecureSumError: A neighbour's key is none.
        """
        assert self._roster is not None, "the graph is drawn"
        words = self._parameters.words
        noise = self._share.sample(words.length, self._entropy)
        noised = words.of(self._counters + noise[: words.size], self._counts + noise[words.size :])
        me = self._roster.index[self._client_id]
        added = [key_agreement.self_mask_key(self._self_seed, self._occasion, self._client_id)]
        subtracted: list[bytes] = []
        for neighbour, (neighbour_id, keys) in zip(self._neighbours, self._near(), strict=True):
            key = key_agreement.pair_mask_key(self._mask, keys.mask, self._occasion, self._client_id, neighbour_id)
            (added if me < neighbour else subtracted).append(key)
        key_agreement.apply(noised, added, subtracted)
        self._forget_all_but_held()
        return words.pack(noised)

    def revealed(self, survivors: Flags) -> list[bytes]:
        """Of each neighbour the one share that opens what stands in the sum's way, and of none the other.

        A survivor's self mask; the pairwise masks of one whose vector is not in the sum, and whose self mask therefore
        must stay closed, or its vector could be read should it turn up.
        """
        return [
            pair[:SHARE_BYTES] if survivors[neighbour] else pair[SHARE_BYTES:]
            for neighbour, pair in zip(self._neighbours, self._held, strict=True)
        ]

    def _forget_all_but_held(self) -> None:
        """Nothing of the client's own is needed again: there is no second vector."""
        nothing = np.zeros(0, np.int64)
        self._counters, self._counts = nothing, nothing
        self._self_seed = self._mask_seed = b""
        self._exchange = self._mask = KeyPair(bytes(32))

    def _near(self) -> list[tuple[str, Keys]]:
        assert self._roster is not None, "the graph is drawn"
        return [(self._roster.ids[neighbour], self._roster.keys[neighbour]) for neighbour in self._neighbours]

    def __repr__(self) -> str:
        return f"ClientSecrets(of {self._client_id})"
