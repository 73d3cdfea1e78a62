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
    "Participation is not hidden: each client submits in every window, with or without records. The number of clients "
    "is published with the release, and may decide whether a window is released."
)
#: How it is said that reports are seen.
REPORTING: Final = (
    "The existence and number of reports are not hidden: only the content of records is protected. The exact number of "
    "reports is published, and may decide whether a window is released."
)
_NOBODY: Final = "No other party is trusted, the service included:"
#: For which neighbours memoised reports keep the promise: of equal records the reports are equal, which shows.
REPEATED: Final = {
    RECORD: " that its device has nowhere else, at every occurrence,",
    CLIENT: " that are equal to each other where the originals are",
}
_MEMOISED: Final = (
    "A recurring record sends the same report again, so recurrence reveals no more of its content. Equality of "
    "records across windows is not hidden: comparing reports shows that a record recurred or changed, without a "
    "bound. A record that differs in any way sends its own report, and each window is charged in full."
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
            f"{_NOBODY} each client adds the full noise to all its counters on its own device, once per window, before "
            f"sending ({noise}). The noise of the sum grows with the number of clients."
        )
    first = (
        f"{_NOBODY} each record is randomised on its own device and sent as one report ({mechanism.name}, with a "
        f"likelihood ratio of at most {real_text(mechanism.scale)} between any two records)."
    )
    second = "Reports carry no client id; several records of one client in a window are each protected separately."
    if records is not None:
        second = (
            f"Reports carry no client id: the limit of {records} per client and window is enforced by the device only; "
            "together they use the whole ε."
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
        return f"It has {reports:,} report{'' if reports == 1 else 's'} (exact)."
    clients = f"{submissions:,} client{'' if submissions == 1 else 's'}"
    each = mechanism.noise().variance
    variance, deviation = f"{each * submissions:.6g}", f"{math.sqrt(each * submissions):.4g}"
    return (
        f"It is the sum of {clients}, each with noise of variance {each:.6g} on every counter: a total variance of "
        f"{variance}, a standard deviation of {deviation} = {math.sqrt(each):.4g} x sqrt({submissions})."
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
        return f"{came}: too few to prove a smaller ε at this δ."
    whose = "one record" if records is None else f"all {records} reports of one client, which compose,"
    epsilon, delta = numeral(cost.epsilon, up=True), numeral(cost.delta, up=True)
    by = f"e^{epsilon}"
    if cost.epsilon <= REPORT_EPSILON_MAX:
        by = f"{by} = {float(exp_upper(cost.epsilon)):.3g}"
    return (
        f"{came}. Against observers after the shuffler, replacing {whose} changes probabilities by a factor of at most "
        f"{by}, except with probability {delta} (ε = {epsilon}, δ = {delta}; Feldman, McMillan and Talwar 2021). This "
        f"holds for one batch, if at least {shuffle_min:,} of its reports are honest and independent of each other; "
        "several windows compose. Against all others, including the shuffler's operator, only the first ε holds."
    )


#: How it is said that a client takes part, whatever it has.
TAKING_PART = (
    "Participation is not hidden: each client takes part in every window, with or without records, and the number of "
    "clients is published with the release."
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
        "Each client adds its share of the noise before it masks its counters, and the server sees only sums of whole "
        f"cohorts. The guarantee relies on the shares of exactly {cohort.honest_survivors} honest clients ({noise}): "
        f"of up to {cohort.size} clients at least {cohort.survivors_min} must survive a round, of whom "
        f"{cohort.corrupt_clients} may be corrupt, and clients refuse to unmask a sum of fewer. More survivors add "
        "more noise."
    )


def _failure(cohort: Cohort, *, pure: bool) -> str:
    each, what = f"2^-37: {ATTEMPTS_MAX} attempts of 2^-40 each", "the protocol fails"
    if cohort.pool:
        each = f"{each}, and 2^-40: a draw of 2^-43 for each"
        what = f"{what} or too many corrupt clients are drawn"
    text = (
        "The guarantee is computational: it holds unless the ciphers are broken, except with probability "
        f"{numeral(cohort.failure, up=True)} ({each}) per window, in which {what}; this probability is charged to δ"
    )
    if pure:
        return f"{text}. The noise itself is pure, so that probability is the whole δ."
    return f"{text}, in addition to the δ of the noise."


def _server(cohort: Cohort) -> str:
    curious = cohort.adversary == HONEST_BUT_CURIOUS
    trusted = "The server is trusted to follow the protocol (honest but curious): a malicious server could learn more."
    first = trusted if curious else "The server may be malicious at every step."
    if cohort.directory:
        return f"{first} Clients authenticate each other's keys with a key registry (SHA-256 {cohort.directory[:12]}…)."
    also = "it is trusted to relay keys correctly, because there is no key registry of clients"
    first = f"{trusted[:-1]}; in particular {also}." if curious else f"{first[:-1]}, with one exception: {also}."
    return f"{first} With substituted keys it could unmask the counters of one client."


def _clients(cohort: Cohort) -> str:
    most = cohort.corrupt_clients
    corrupt = "none of it is" if not most else "at most 1 of it is" if most == 1 else f"at most {most} of it are"
    if cohort.pool:
        text = _drawn(cohort, corrupt)
    else:
        text = (
            "The plan states no pool from which cohorts are drawn: it is assumed of every cohort, however the server "
            f"forms it, that {corrupt} corrupt."
        )
    return f"{text} Corrupt clients can make a round fail or falsify its sum, but learn nothing about other clients."


def _drawn(cohort: Cohort, corrupt: str) -> str:
    fleet = cohort.fleet_corrupt
    are = "no client is" if not fleet else "at most 1 client is" if fleet == 1 else f"at most {fleet:,} clients are"
    text = (
        f"It is assumed that {are} corrupt in the whole fleet. Each cohort is drawn at random from at least "
        f"{cohort.pool:,} waiting clients: except with the probability above, {corrupt} corrupt."
    )
    if cohort.adversary == HONEST_BUT_CURIOUS:
        return text  # the server draws as it is said to
    return f"{text} Against a server that does not draw at random, this is an assumption about the clients it chose."
