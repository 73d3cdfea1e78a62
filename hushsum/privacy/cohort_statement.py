"""What a secure sum promises and on what that rests, in plain words: a part of a guarantee's statement."""

from hushsum.privacy.cohort import ATTEMPTS_MAX, HONEST_BUT_CURIOUS, Cohort
from hushsum.privacy.numerals import numeral

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
