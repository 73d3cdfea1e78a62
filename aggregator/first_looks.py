"""What a gateway sees of a delta before it goes on: a window that takes it, a plan that is its own, and its past."""

from dataclasses import dataclass

from aggregator.flights import Sent
from aggregator.fold.verdicts import RememberedKind
from aggregator.fold_view import FoldView
from aggregator.inspection import Inspection, Seen
from aggregator.openings import Openings
from aggregator.refusals import RefusedError, of_fold, wrong_plan
from aggregator.submissions import Submissions
from hushsum.plan import Plan


@dataclass(frozen=True)
class FirstLooks:
    """Looks at the deltas of one plan.

    Attributes:
        plan: What is collected.
        inspection: Reads their bytes.
        openings: Which windows take deltas.
        folds: What is known of ids.
        submissions: What the plan's mode makes of what is sent.
    """

    plan: Plan
    inspection: Inspection
    openings: Openings
    folds: FoldView
    submissions: Submissions

    def checked(self, plan_id: bytes, data: bytes, seen: Seen | None) -> Seen:
        """What is seen of a delta of this plan, no larger than one can be, whose window takes deltas or did.

        Raises:
            DeltaError: What is wrong with its bytes.
            RefusedError: Another plan, or another window.
        """
        if seen is None:
            seen = self.inspection.first_look(plan_id, data)
        elif plan_id != self.plan.id:
            raise RefusedError(wrong_plan(plan_id, self.plan))
        self.openings.check(seen.window)
        return seen

    def glance(self, sent: Sent, seen: Seen) -> RememberedKind | None:
        """What a fold that is here knows of it; refuses what that would refuse itself, but later.

        Raises:
            DeltaError: What is wrong with its bytes.
            RefusedError: Its fold would refuse it, or it holds too little.
        """
        records = self.inspection.records(sent.data) if seen.records is None else seen.records
        self.submissions.check_records(records)
        glance = self.folds.glance(sent.partition, sent.key.client_id, sent.key.id, sent.digest, sent.window)
        if glance is None:
            return None
        if glance.kind is RememberedKind.REFUSED:
            assert glance.reason is not None
            raise RefusedError(of_fold(glance.reason, sent.key.id, self.plan))
        self.submissions.check(glance, seen, records)
        return glance.kind
