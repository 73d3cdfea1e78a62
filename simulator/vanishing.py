"""Which clients of a fleet vanish, and when: their connection is cut at a step of the round, and they stay away."""

import enum
from collections.abc import Sequence
from typing import Final

import numpy as np


class Stage(enum.IntEnum):
    """Where a client stands, in the order of a round."""

    ADDING = 0  # its records are not all in its spool yet
    WAITING = 1  # for a cohort
    KEYS = 2  # advertised; the roster is not there yet
    GRAPH = 3  # opened its contribution; the others have not all
    SHARES = 4  # sent the shares of its secrets
    UPLOAD = 5  # its window is spent; the masked vector is on its way
    CONSENT = 6  # signed the set of survivors
    REVEAL = 7  # sent what unmasks the sum
    DONE = 8  # was told what became of it, or that it cannot take part
    DROPPED = 9  # vanished

    @property
    def spent(self) -> bool:
        """Whether a client that has come here in a round has spent its window."""
        return Stage.UPLOAD <= self <= Stage.REVEAL


# A client that vanishes before its vector costs those that are left another attempt, of few: as all that vanish at one
# step do so in one round, three such steps are three more attempts.
_BEFORE: Final = (Stage.WAITING, Stage.KEYS, Stage.GRAPH, Stage.SHARES)
_AFTER: Final = (Stage.UPLOAD, Stage.CONSENT, Stage.REVEAL)


def victims(clients: Sequence[str], rate: float, seed: int) -> dict[str, Stage]:
    """Who vanishes, and on reaching which step: every other one before its vector is sent, the rest from then on.

    Args:
        clients: Their ids.
        rate: The share of them that vanish, 0 to below 1; the number is rounded.
        seed: Of the choice, which is uniform.
    """
    rng = np.random.default_rng([seed, 0x5A11])
    chosen = rng.permutation(len(clients))[: round(rate * len(clients))]
    return {
        clients[index]: Stage(int(rng.choice(_BEFORE if turn % 2 else _AFTER))) for turn, index in enumerate(chosen)
    }


def tolerated(cohort: int, cohorts: int, clients: int, vanishing: int) -> int:
    """How many members a round must be able to lose, so that a run comes to its end but once in a million.

    Cohorts are formed as clients arrive, so one cohort may get more than its part of those that vanish: their number in
    it is hypergeometric. The last cohort is also short of what fills no cohort.

    Args:
        cohort: N.
        cohorts: How many there are.
        clients: Of them all.
        vanishing: Of these.
    """
    from scipy.stats import hypergeom

    worst = int(hypergeom(clients, vanishing, min(cohort, clients)).isf(1e-6 / cohorts)) if vanishing else 0
    return min(vanishing, worst) + max(0, cohort * cohorts - clients)
