"""Other sizes of a plan: the same plan with other rows (or frequency pairs), another ε or δ."""

from collections.abc import Mapping
from typing import Final

from hushsum.errors import PlanError
from hushsum.plan import Plan

#: δ of the column that shows what δ > 0 gives, where the plan itself is pure.
DELTA: Final = "0.000001"


def rows_of(plan: Plan) -> int | None:
    """R, or P of the fourier family; None where nothing is repeated (family ``hermite``)."""
    rows = plan.family.to_fields().get("rows")
    return rows if isinstance(rows, int) else None


def row_unit(plan: Plan) -> int | None:
    """What rows come in whole multiples of; None where the plan can have no other rows: hermite, or given ones."""
    fields = plan.family.to_fields()
    if rows_of(plan) is None or fields.get("draws") == "given":
        return None
    sets = fields.get("sobol_sets", 1)
    assert isinstance(sets, int), "a key of whole numbers"
    return sets


def with_rows(plan: Plan, rows: int | None, *, sobol_sets: int | None = None, seed: int | None = None) -> Plan:
    """The plan with so many rows, calibrated anew; the plan itself where nothing changes.

    Args:
        plan: To be changed.
        rows: None changes nothing.
        sobol_sets: Of Sobol rows: how many sets, if not the plan's.
        seed: If not the plan's.

    Raises:
        PlanError: No plan can have these.
    """
    if rows in {None, rows_of(plan)} and sobol_sets is None and seed is None:
        return plan
    changes = {"rows": rows, "sobol_sets": sobol_sets, "seed": seed}
    fields = plan.to_fields()
    sketch, privacy = (_table(fields, key) for key in ("sketch", "privacy"))
    del fields["format"], privacy["mechanism"]
    sketch |= {key: value for key, value in changes.items() if value is not None}
    return Plan.from_fields({**fields, "sketch": sketch, "privacy": privacy}, plan.parameters)


def pure(plan: Plan) -> Plan:
    """The plan at δ = 0: itself, if it is."""
    return plan.replace_privacy(delta="0") if plan.privacy.delta else plan


def concentrated(plan: Plan) -> Plan | PlanError:
    """The plan at its δ above 0 (itself), or at :data:`DELTA`; the error where that cannot be calibrated here."""
    if plan.privacy.delta:
        return plan
    try:
        if plan.privacy.cohort is None:
            return plan.replace_privacy(delta=DELTA, total_delta=DELTA)
        # What is kept of δ for failures of the protocol makes the ledger count a little more than ε.
        total = max(plan.privacy.total_epsilon, 2 * plan.privacy.epsilon)
        return plan.replace_privacy(delta=DELTA, total_delta=DELTA, total_epsilon=total)
    except PlanError as error:
        return error


def _table(fields: Mapping[str, object], key: str) -> dict[str, object]:
    table = fields[key]
    assert isinstance(table, dict), "a table of every plan"
    return dict(table)
