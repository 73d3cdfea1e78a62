"""Releases of what clients noised themselves: nothing is drawn here, and nobody had exact counters."""

import numpy as np
import numpy.typing as npt

from hushsum.errors import GuaranteeError, ReleaseError
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.release_format import Header, check_header, check_reports
from hushsum.releases.released import Release
from hushsum.sketch import Sketch

Counters = npt.NDArray[np.int64]


def of_sums(
    plan: Plan, counters: Counters, counts: Counters, *, window: int, cohorts: int, submissions: int
) -> Release:
    """The release of a window's secure sums: their noise is in them, and none is drawn here.

    Args:
        plan: Of mode ``secure``.
        counters: int64, (classes, shape of the family...): the sum of all cohorts of the window.
        counts: int64, (classes,): of their count counters; (0,) where the plan has none.
        window: Its index.
        cohorts: How many cohorts are in it.
        submissions: How many clients are in it: the survivors of all cohorts.

    Raises:
        GuaranteeError: The plan is of another mode: these counters would be shown without noise.
        ReleaseError: No such cohorts have so many survivors, or there are none and counters are not zero.
        MergeError: Arrays of another shape or type.
    """
    if plan.privacy.cohort is None:
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode {plan.privacy.mode!r}: its sums contain no noise from clients"
        )
    header = Header(TUMBLING, window, counters.shape, accounted=True, submissions=submissions, cohorts=cohorts)
    return _of_submissions(plan, header, counters, counts)


def of_silos(plan: Plan, counters: Counters, counts: Counters, *, window: int, submissions: int) -> Release:
    """The release of a window's noised submissions: each carries noise of its own, and none is drawn here.

    Args:
        plan: Of mode ``local``, form ``silo``.
        counters: int64, (classes, shape of the family...): the sum of all submissions of the window.
        counts: int64, (classes,): of their count counters; (0,) where the plan has none.
        window: Its index.
        submissions: How many clients are in it, each once.

    Raises:
        GuaranteeError: The plan is of another mode or form: these counters would be shown without noise.
        ReleaseError: There are no submissions, or fewer, and counters are not zero.
        MergeError: Arrays of another shape or type.
    """
    if not plan.privacy.is_silo:
        form = ", form 'report'" if plan.privacy.reports else ""
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode {plan.privacy.mode!r}{form}: its clients do not add noise themselves"
        )
    header = Header(TUMBLING, window, counters.shape, accounted=True, submissions=submissions)
    return _of_submissions(plan, header, counters, counts)


def of_reports(
    plan: Plan, counters: Counters, counts: Counters, *, window: int | None, shuffled: bool, kind: str = TUMBLING
) -> Release:
    """The release of randomised reports: counters are how many came of each, and queries undo the randomiser.

    Args:
        plan: Of mode ``local``, form ``report``.
        counters: int64, (1, R, outputs).
        counts: int64, (1,): how many reports came in all.
        window: Its index; None without one.
        shuffled: Whether all of them came through a shuffler.
        kind: ``tumbling`` (accounted: the ledger was charged before the first report), or ``in-process`` without a
            window (unaccounted).

    Raises:
        GuaranteeError: The plan is of another mode or form: these counters would be shown without noise; or it knows no
            shuffler.
        ReleaseError: Counts that are negative, do not add up, or that no shuffled batch has; a window that does not go
            with the kind.
        MergeError: Arrays of another shape or type.
    """
    local = plan.privacy.local
    if local is None or not local.reports:
        form = "" if local is None else ", form 'silo'"
        raise GuaranteeError(f"plan {plan.name!r} is of mode {plan.privacy.mode!r}{form}: its clients send no reports")
    if shuffled and not local.shuffle_min:
        raise GuaranteeError(f"plan {plan.name!r} has privacy.local.shuffle_min 0: it has no shuffler")
    header = Header(kind, window, counters.shape, accounted=kind == TUMBLING, shuffled=shuffled)
    release = _of(plan, header, counters, counts)
    check_reports(plan, header, counters, counts)
    return release


def _of_submissions(plan: Plan, header: Header, counters: Counters, counts: Counters) -> Release:
    release = _of(plan, header, counters, counts)
    if not header.submissions and (counters.any() or counts.any()):
        raise ReleaseError("counters of no submissions are not all zero")
    return release


def _of(plan: Plan, header: Header, counters: Counters, counts: Counters) -> Release:
    """What the header says of these counters, once they are the plan's."""
    Sketch.of_counters(plan, counters, counts)  # refuses other shapes and types
    check_header(plan, header)
    return Release(
        plan=plan,
        kind=header.kind,
        window=header.window,
        counters=counters,
        counts=counts,
        guarantee=plan.guarantee,
        accounted=header.accounted,
        submissions=header.submissions,
        cohorts=header.cohorts,
        shuffled=header.shuffled,
    )
