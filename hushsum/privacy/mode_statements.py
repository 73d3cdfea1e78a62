"""Statements in plain words of what modes ``local`` and ``secure`` promise, on what, and what is not hidden."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.noise.exp_thresholds import exp_upper
from hushsum.privacy.cohort import ATTEMPTS_MAX, HONEST_BUT_CURIOUS, Cohort
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.local_mode import LocalMode
from hushsum.privacy.mechanisms import REPORT_EPSILON_MAX, Mechanism
from hushsum.privacy.relations import CLIENT, RECORD, Cost

#: How it is said that a client submits, whatever it has.
SUBMITTING: Final = (
    "That a client takes part is not hidden: each submits in every window, with records or without; how many did is "
    "told with the release, and may decide whether a window is released."
)
#: How it is said that reports are seen.
REPORTING: Final = (
    "That a report was sent, and how many were, is not hidden: records are protected by their content alone. How many "
    "came is told exactly, and may decide whether a window is released."
)
_NOBODY: Final = "Nobody is trusted with a record, the service included:"
#: For which neighbours memoised reports keep the promise: of equal records the reports are equal, which shows.
REPEATED: Final = {
    RECORD: " that its device has nowhere else, each time that it comes,",
    CLIENT: " that are equal to each other where the first are",
}
_MEMOISED: Final = (
    "A record that comes again sends the same report again: however often it comes, no more is told of its content. "
    "That records of two windows are equal is not hidden: whoever compares their reports can see that a record came "
    "again, or that it changed: no factor bounds that. A record that differs at all sends a report of its own, and "
    "each window is charged in full."
)


def local_text(local: LocalMode, mechanism: Mechanism, noise: str, records: int | None) -> str:
    """Who randomises what, before anything leaves a device.

    Args:
        local: The form.
        mechanism: Of the plan.
        noise: The mechanism of ``silo``, as a phrase.
        records: m of unit ``client``; None for unit ``record``.
    """
    if not local.reports:
        return (
            f"{_NOBODY} each client adds the whole noise to all its counters on its own device, once a window, before "
            f"anything leaves it ({noise}). Others add theirs: the more clients, the more noise is in the sum."
        )
    first = (
        f"{_NOBODY} each record is randomised on its own device, and leaves it as one report ({mechanism.name}: no "
        f"report is more than {real_text(mechanism.scale)} times as likely for one record as for another)."
    )
    second = "Reports carry no client; whoever has several records in a window is protected for each by itself."
    if records is not None:
        second = (
            f"Reports carry no client: that a client sends at most {records} in a window is ensured by its own device "
            "alone, and together they have all of epsilon."
        )
    return " ".join(part for part in (first, second, _MEMOISED if local.memoise else "") if part)


def contributors_text(submissions: int | None, counts: npt.NDArray[np.int64], mechanism: Mechanism) -> str:
    """Of how many clients or reports a release is, and what that means for its noise.

    Args:
        submissions: How many clients are in it; None: it is of reports.
        counts: (classes,) of the release.
        mechanism: Of the plan.
    """
    if submissions is None:
        reports = int(counts.sum())
        return f"It is of {reports:,} report{'' if reports == 1 else 's'}, which is exact."
    clients = f"{submissions:,} client{'' if submissions == 1 else 's'}"
    each = mechanism.noise().variance
    variance, deviation = f"{each * submissions:.6g}", f"{math.sqrt(each * submissions):.4g}"
    return (
        f"It is the sum of {clients}, each with noise of variance {each:.6g} on every counter: of variance {variance} "
        f"together, a standard deviation of {deviation} = {math.sqrt(each):.4g} x sqrt({submissions})."
    )


def shuffled_text(cost: Cost | None, shuffle_min: int, records: int | None) -> str:
    """What a shuffler adds, and on what conditions.

    Args:
        cost: The amplified (ε, δ); None: nothing is proven.
        shuffle_min: The least number of reports that it forwards together.
        records: m of unit ``client``; None for unit ``record``.
    """
    came = f"All reports came through a shuffler, in batches of at least {shuffle_min:,}"
    if cost is None:
        return f"{came}: too few for a smaller epsilon to be proven at this delta, so that nothing is claimed of it."
    whose = "one record" if records is None else f"all {records} reports of one client, which compose,"
    epsilon, delta = numeral(cost.epsilon, up=True), numeral(cost.delta, up=True)
    by = f"e^{epsilon}"
    if cost.epsilon <= REPORT_EPSILON_MAX:
        by = f"{by} = {float(exp_upper(cost.epsilon)):.3g}"
    return (
        f"{came}. Against those who see nothing before the shuffler, replacing {whose} changes probabilities by a "
        f"factor of at most {by}, but for a probability of {delta} (epsilon {epsilon}, delta {delta}; Feldman, "
        f"McMillan and Talwar 2021). That holds as long as at least {shuffle_min:,} reports of a batch are honest and "
        "independent of each other, and for one batch: what is sent in several windows adds up. Against everybody "
        "else, the shuffler's operator included, the first epsilon alone holds."
    )


#: How it is said that a client takes part, whatever it has.
TAKING_PART = (
    "That a client takes part is not hidden: each does so in every window, with records or without, and how many did "
    "is told with the release."
)


def cohort_text(cohort: Cohort, noise: str, *, pure: bool) -> str:
    """Who adds the noise, what may fail, who may lie, and what is assumed.

    Args:
        cohort: Of the plan.
        noise: The mechanism, as a phrase.
        pure: Whether the noise itself needs no δ, and the whole δ is the protocol's.
    """
    return " ".join((_noise(cohort, noise), _failure(cohort, pure=pure), _server(cohort), _clients(cohort)))


def _noise(cohort: Cohort, noise: str) -> str:
    return (
        "Each client adds its share of the noise before it masks its counters, and the server sees sums of whole "
        f"cohorts alone. What is promised counts the shares of exactly {cohort.honest_survivors} honest clients "
        f"({noise}): of up to {cohort.size} clients at least {cohort.survivors_min} must survive a round, of whom "
        f"{cohort.corrupt_clients} may be corrupt, and clients themselves open no sum of fewer. More survivors add "
        "noise."
    )


def _failure(cohort: Cohort, *, pure: bool) -> str:
    each, what = f"2^-37: {ATTEMPTS_MAX} attempts of 2^-40 each", "the protocol fails"
    if cohort.pool:
        each = f"{each}, and 2^-40: a draw of 2^-43 for each"
        what = f"{what} or too many corrupt clients are drawn"
    text = (
        "This is computational: it holds as long as nobody breaks the ciphers, and but for a probability of "
        f"{numeral(cohort.failure, up=True)} ({each}) in a window, in which {what}, and which is charged to delta"
    )
    if pure:
        return f"{text}: the noise itself is pure, and that probability is all of delta."
    return f"{text}, beside what the noise takes of it."


def _server(cohort: Cohort) -> str:
    curious = cohort.adversary == HONEST_BUT_CURIOUS
    trusted = "The server is trusted to keep to the protocol (honest but curious): one that lies could learn more."
    first = trusted if curious else "The server may lie at every step."
    if cohort.directory:
        return f"{first} Clients know each other's keys by a directory (SHA-256 {cohort.directory[:12]}…)."
    also = "it is trusted to pass on keys truthfully, for there is no directory of clients"
    first = f"{trusted[:-1]}; above all {also}." if curious else f"{first[:-1]}, but for one: {also}."
    return f"{first} With keys of its own in place of others' it could open the counters of one client."


def _clients(cohort: Cohort) -> str:
    most = cohort.corrupt_clients
    corrupt = "none of it is" if not most else "at most 1 of it is" if most == 1 else f"at most {most} of it are"
    if cohort.pool:
        text = _drawn(cohort, corrupt)
    else:
        text = (
            "The plan states no pool that a cohort would be drawn from: that "
            f"{corrupt} corrupt is assumed of every cohort, however the server forms it."
        )
    return f"{text} Corrupt clients can make a round fail, or falsify its sum; of others they learn nothing by that."


def _drawn(cohort: Cohort, corrupt: str) -> str:
    fleet = cohort.fleet_corrupt
    are = "no client is" if not fleet else "at most 1 client is" if fleet == 1 else f"at most {fleet:,} clients are"
    text = (
        f"It is assumed that {are} corrupt in the whole fleet. Each cohort is drawn at random from at least "
        f"{cohort.pool:,} clients that wait: but for the probability above, {corrupt} corrupt."
    )
    if cohort.adversary == HONEST_BUT_CURIOUS:
        return text  # the server draws as it is said to
    return f"{text} Against a server that lies about the draw this is an assumption about the clients that it chose."
