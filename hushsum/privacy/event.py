"""One spend of privacy, as a value that a ledger keeps."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import PlanError
from hushsum.privacy.guarantee import MODES
from hushsum.privacy.relation import RELATIONS, UNITS, Cost, is_delta, is_positive
from hushsum.schema import Table

TUMBLING: Final = "tumbling"
IN_PROCESS: Final = "in-process"
KINDS: Final = (TUMBLING, IN_PROCESS)

_PLAN_ID: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Spend:
    """What one outcome, or one in-process release, costs its population.

    Args:
        population: Whose data it is.
        plan_id: 64 lower-case hexadecimal digits.
        kind: ``tumbling``, or ``in-process`` for a release without a window.
        window: The window's index, for ``tumbling`` alone.
        unit: ``record`` or ``client``.
        relation: ``add/remove``, ``zero-out`` or ``replace``.
        mode: ``central``.
        mechanism: Its name.
        epsilon: Above 0.
        delta: From 0 to below 1.

    Raises:
        PlanError: A field is out of range; it names the field under ``spend``.
    """

    population: str
    plan_id: str
    kind: str
    window: int | None
    unit: str
    relation: str
    mode: str
    mechanism: str
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        if not _PLAN_ID.fullmatch(self.plan_id):
            raise PlanError("spend.plan_id", self.plan_id, "64 lower-case hexadecimal digits")
        for field, value, known in (
            ("kind", self.kind, KINDS),
            ("unit", self.unit, UNITS),
            ("relation", self.relation, RELATIONS),
            ("mode", self.mode, MODES),
        ):
            if value not in known:
                raise PlanError(f"spend.{field}", value, " or ".join(map(repr, known)))
        if (self.window is not None) != (self.kind == TUMBLING):
            raise PlanError("spend.window", self.window, "a window's index for kind 'tumbling', else None")
        if self.window is not None and (type(self.window) is not int or abs(self.window) > INTEGER_LIMIT):
            raise PlanError("spend.window", self.window, "an integer")
        if not is_positive(self.epsilon):
            raise PlanError("spend.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("spend.delta", self.delta, "an exact number from 0 to below 1")

    @property
    def cost(self) -> Cost:
        """Its (ε, δ), in its own unit and relation."""
        return Cost(self.epsilon, self.delta)

    def to_fields(self) -> dict[str, object]:
        """Strings and integers, ready for the canonical encoding; ``window`` only where there is one."""
        fields: dict[str, object] = {
            "population": self.population,
            "plan_id": self.plan_id,
            "kind": self.kind,
            "unit": self.unit,
            "relation": self.relation,
            "mode": self.mode,
            "mechanism": self.mechanism,
            "epsilon": real_text(self.epsilon),
            "delta": real_text(self.delta),
        }
        if self.window is not None:
            fields["window"] = self.window
        return fields

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Reads what :meth:`to_fields` wrote.

        Raises:
            PlanError: A field is missing, unknown or out of range.
        """
        table = Table(fields, "spend")
        spend = cls(
            population=table.text("population"),
            plan_id=table.text("plan_id"),
            kind=table.choice("kind", built=KINDS),
            window=table.integer("window", low=-INTEGER_LIMIT) if table.has("window") else None,
            unit=table.choice("unit", built=UNITS),
            relation=table.choice("relation", built=RELATIONS),
            mode=table.choice("mode", built=MODES),
            mechanism=table.text("mechanism"),
            epsilon=table.real("epsilon", expected="an exact number above 0", above=0),
            delta=table.real("delta", expected="an exact number from 0 to below 1"),
        )
        table.finish()
        return spend
