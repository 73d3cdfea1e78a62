"""An event as the first version of the ledger wrote it."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.privacy.relation import Loss, is_delta, is_positive


@dataclass(frozen=True)
class ClaimedEvent:
    """One run of a mechanism as the first version of the ledger wrote it: its claim, without parameters.

    Args:
        mechanism: Its name.
        epsilon: Above 0.
        delta: From 0 to below 1.

    Raises:
        PlanError: A field is out of range; it names the field under ``spend``.
    """

    mechanism: str
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise PlanError("spend.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("spend.delta", self.delta, "an exact number from 0 to below 1")

    @cached_property
    def loss(self) -> Loss:
        """What it loses, in its own unit and relation."""
        return Loss.of_pure(self.epsilon, self.delta)

    def to_fields(self) -> dict[str, object]:
        """Strings, which stand among the fields of its spend."""
        return {"mechanism": self.mechanism, "epsilon": real_text(self.epsilon), "delta": real_text(self.delta)}
