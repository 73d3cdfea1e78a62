"""One round that is measured: who takes part, and what each client brings."""

import hashlib
import os
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.privacy.cohort import Cohort
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN, Mechanism
from hushsum.privacy.modular_words import Words, bits_needed, gaussian_tail
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey

RECORDS: Final = 100  # of each client
VARIANCE: Final = Fraction(1000**2)


@dataclass(frozen=True)
class Setting:
    """A round against a server that may lie, of whose clients 10 % may vanish.

    Args:
        clients: N.
        counters: D.
        corrupt: k, the most clients of the cohort that may be corrupt.
        vanishing: How many vanish where it costs most: when they should send their vectors.
        round_id: 32 bytes.
    """

    clients: int
    counters: int
    corrupt: int
    vanishing: int
    round_id: bytes

    @classmethod
    def new(cls, clients: int, counters: int, corrupt: int) -> "Setting":
        """A round in which as many vanish as may."""
        return cls(clients, counters, corrupt, clients // 10, os.urandom(32))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Of all clients; the first of them vanish."""
        return tuple(f"client-{number:05}" for number in range(self.clients))

    def key(self, client_id: str) -> SigningKey:
        """A client's identity key, of no worth."""
        return SigningKey(hashlib.sha256(client_id.encode()).digest())

    @cached_property
    def directory(self) -> Directory:
        """Of all clients."""
        return Directory({name: DirectoryKey(name, Role.CLIENT, self.key(name).verify_key) for name in self.ids})

    @cached_property
    def cohort(self) -> Cohort:
        """What a plan says of it."""
        return Cohort(size=self.clients, corrupt=Fraction(self.corrupt, self.clients))

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise in shares."""
        return Mechanism(DISCRETE_GAUSSIAN, VARIANCE, 1, honest_survivors=self.cohort.honest_survivors)

    @cached_property
    def brought(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Counters and counts of every client: the same, so that a thousand fit in a small machine."""
        return np.arange(self.counters, dtype=np.int64) % RECORDS, np.array([RECORDS], np.int64)

    @cached_property
    def parameters(self) -> RoundParameters:
        """Of the round."""
        cohort = self.cohort
        bits, count_bits = (
            bits_needed(
                self.clients * RECORDS, gaussian_tail(VARIANCE, self.clients, cohort.honest_survivors, counters)
            )
            for counters in (self.counters, 1)
        )
        return RoundParameters(
            plan_id=hashlib.sha256(b"the plan of a benchmark").digest(),
            window=1,
            round=self.round_id,
            members_max=self.clients,
            members_min=cohort.survivors_min,
            corrupt=cohort.corrupt_clients,
            honest=cohort.honest_survivors,
            degree=cohort.degree,
            threshold=cohort.threshold,
            window_survivors=cohort.window_survivors,
            words=Words(bits, count_bits, self.counters, 1),
            counter_max=RECORDS,
            count_max=RECORDS,
            directory=self.directory.digest().hex(),
        )
