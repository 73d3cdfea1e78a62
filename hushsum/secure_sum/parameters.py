"""What one round is bound to and measured by: all of it follows from the plan, the window and the round's id."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from hushsum.plan import Plan
from hushsum.privacy.modular_words import Words
from hushsum.secure_sum.key_agreement import Occasion
from hushsum.signing import KEY_BYTES

ROUND_BYTES: Final = 32


@dataclass(frozen=True)
class RoundParameters:
    """One round of a secure sum.

    Attributes:
        plan_id: 32 bytes.
        window: Its number, signed 64 bits.
        round: Its id, 32 bytes, new for each round.
        members_max: N: the most clients of a roster.
        members_min: S: the least, and the least survivors.
        corrupt: c: how many of them may be corrupt.
        honest: h: how many honest survivors a client demands, above the corrupt.
        degree: k: neighbours of each; a roster of at most k + 1 is a complete graph.
        threshold: t: how many shares open a secret.
        window_survivors: g: survivors among any k/2 that stand in a row; 0: not looked at.
        words: How vectors are packed.
        counter_max: The largest magnitude of one client's counter. None for unit record: such a plan bounds no client,
            for one record would decide what becomes of the others; a sum beyond the words wraps around.
        count_max: The same for its count counter.
        directory: The digest of the client directory in hexadecimal digits; empty: the plan names none, and the server
            is trusted to pass on keys truthfully.

    Raises:
        ValueError: They contradict each other.
    """

    plan_id: bytes
    window: int
    round: bytes
    members_max: int
    members_min: int
    corrupt: int
    honest: int
    degree: int
    threshold: int
    window_survivors: int
    words: Words
    counter_max: int | None
    count_max: int | None
    directory: str = field(default="")

    def __post_init__(self) -> None:
        least, most = self.members_min, self.members_max
        if not 2 <= least <= most:
            raise ValueError(f"a roster of {least} to {most} members, expected at least 2")
        if not 1 <= self.honest <= least - self.corrupt:
            raise ValueError(f"{self.honest} honest of {least} survivors, of whom {self.corrupt} may be corrupt")
        if not 1 <= self.threshold <= min(self.degree, least - 1):
            raise ValueError(f"{self.threshold} shares open a secret, of {min(self.degree, least - 1)} neighbours")
        if not 0 <= self.window_survivors <= self.degree // 2:
            raise ValueError(f"{self.window_survivors} survivors among any {self.degree // 2} in a row")
        assert len(self.plan_id) == KEY_BYTES and len(self.round) == ROUND_BYTES  # noqa: PT018  one fact about ids

    @cached_property
    def occasion(self) -> Occasion:
        """What keys are bound to, before there is a transcript."""
        return Occasion(self.plan_id, self.window, self.round)

    def quorum(self, members: int) -> int:
        """How many of a roster must sign the survivors: more than half of it and the corrupt.

        Two such sets share more members than can be corrupt, and an honest one signs once.
        """
        return (members + self.corrupt) // 2 + 1

    def neighbours(self, members: int) -> int:
        """How many neighbours each of so many members has."""
        return min(self.degree, members - 1)


def round_parameters(plan: Plan, window: int, round: bytes) -> RoundParameters:  # noqa: A002  the protocol's own word
    """The parameters of a round of a plan in mode ``secure``."""
    cohort = plan.privacy.cohort
    assert cohort is not None, "a plan in mode secure"
    records = plan.privacy.records_per_client
    return RoundParameters(
        plan_id=plan.id,
        window=window,
        round=round,
        members_max=cohort.size,
        members_min=cohort.survivors_min,
        corrupt=cohort.corrupt_clients,
        honest=cohort.honest_survivors,
        degree=cohort.degree,
        threshold=cohort.threshold,
        window_survivors=cohort.window_survivors,
        words=plan.words,
        counter_max=None if records is None else records * plan.family.sensitivity.linf,
        count_max=None if records is None else records * plan.privacy.mechanism.count_scale,
        directory=cohort.directory,
    )
