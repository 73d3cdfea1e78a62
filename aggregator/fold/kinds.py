"""Which kind of entry counts for a plan: one, and whatever else stands in its log is of the wrong mode."""

from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, ReportsEntry


def kind_counted(plan: Plan) -> type[DeltaEntry | CohortSumEntry | ReportsEntry]:
    """The kind that counts; in form ``silo`` a delta's bytes are those of a noised whole one."""
    if plan.privacy.mode == SECURE:
        return CohortSumEntry
    return ReportsEntry if takes_reports(plan) else DeltaEntry


def takes_reports(plan: Plan) -> bool:
    """Whether its clients send randomised reports, which are nobody's."""
    return plan.privacy.reports is not None


def is_silo(plan: Plan) -> bool:
    """Whether each client sends one noised whole delta a window."""
    return plan.privacy.is_silo
