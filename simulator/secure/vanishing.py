"""Which clients of a fleet vanish, and when: their connection is cut at a step of the round, and they stay away."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from simulator.board import Stage

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
