"""How a round ended."""

from typing import NamedTuple

from hushsum.secure_sum.server import Sum
from hushsum_proto.rounds import Fate


class RoundEnd(NamedTuple):
    """How it ended.

    Attributes:
        sum: What the clients' vectors come to; None where the round failed.
        why: What failed, in one sentence.
        again: Whether those that are still there may begin another one at once.
        fate: What clients are told where there is no sum.
        suspects: Clients because of whom it may have failed.
    """

    sum: Sum | None
    why: str = ""
    again: bool = False
    fate: Fate = Fate.ABORTED
    suspects: tuple[str, ...] = ()
