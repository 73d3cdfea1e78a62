"""What `hushsum plan` tells of secure sums: the cohort, its bytes, and how noise grows with survivors."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hushsum.advice import Advice
    from hushsum.plan import Plan
    from hushsum.privacy.cohort import Cohort

_KIB = 2**10
_KEYS = "privacy.secure.corrupt_clients and pool"


def of_plan(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Rows of `hushsum plan show`: the cohort, the graph, the vector, and who is trusted; none for other modes."""
    cohort = plan.privacy.cohort
    if cohort is None:
        return
    yield "secure sum", cohort_line(cohort)
    yield "", f"{graph_line(cohort)}; {_begins(cohort)}"
    yield from corrupt_rows(cohort)
    central, none = noise_factors(cohort)
    text = f"where all {cohort.size:,} stay, about {central:.3g} times central mode's"
    yield "its noise", f"{text}, and {none:.3g} times what it would be with nobody corrupt"
    words = plan.words
    width = f"{words.bits} bits (count counters {words.count_bits})"
    size = f"{words.bytes / _KIB:,.1f} KiB"
    yield "vector", f"{size} a client and window, with records or without: {words.size:,} counters of {width}"
    yield "adversary", f"{cohort.adversary} server; {_directory(cohort)}"


def numbers(plan: "Plan") -> dict[str, object]:
    """What `hushsum plan show --json` has of them beside the plan's own keys; nothing for other modes."""
    cohort = plan.privacy.cohort
    if cohort is None:
        return {}
    central, none = noise_factors(cohort)
    secure = {
        "corrupt_of_cohort": cohort.corrupt_clients,
        "honest_survivors": cohort.honest_survivors,
        "degree": cohort.degree,
        "threshold": cohort.threshold,
        "noise_to_central": central,
        "noise_to_none_corrupt": none,
    }
    return {"vector_bytes": plan.words.bytes, "secure": secure}


def noise_factors(cohort: "Cohort") -> tuple[float, float]:
    """How much wider noise is in a cohort of which all stay: than in central mode, and than with nobody corrupt.

    Each adds a share of which h are the whole noise; with nobody corrupt as many as must survive would be.
    """
    honest = cohort.honest_survivors
    return math.sqrt(cohort.size / honest), math.sqrt(cohort.survivors_min / honest)


def corrupt_rows(cohort: "Cohort") -> Iterator[tuple[str, str]]:
    """On what it rests that no more of a cohort are corrupt, and what is assumed."""
    from hushsum.privacy.cohort import MALICIOUS

    most = cohort.corrupt_clients
    if not cohort.pool:
        text = f"at most {most} of every cohort are corrupt, however the service forms it: the plan states no pool"
        yield "assumed", f"{text} ({_KEYS})"
        return
    times = f"{cohort.pool / cohort.size:.3g} times a cohort"
    pool = f"a cohort is drawn from at least {cohort.pool:,} clients that wait at one gateway, {times}"
    if not cohort.fleet_corrupt:
        text = "no client of the whole fleet is corrupt (corrupt_clients = 0)"
        yield "assumed", f"{text}: where one is, the promise may lack its share of the noise"
        yield "pool", pool
        return
    fleet = f"at most {cohort.fleet_corrupt:,} clients of the whole fleet are corrupt (corrupt_clients)"
    if cohort.adversary == MALICIOUS:
        fleet = f"{fleet}; of a server that lies, also that whom it chose is no worse than drawn"
    yield "assumed", fleet
    yield "pool", f"{pool}: at most {most} of {cohort.size:,} are corrupt, but for 2^-43 a draw"


def _begins(cohort: "Cohort") -> str:
    if cohort.pool:
        return f"fewer than {cohort.pool:,} that wait are never drawn from, however long they wait"
    return f"a cohort that is not full begins after {cohort.wait_ms / 1000:g} s"


def cohort_line(cohort: "Cohort") -> str:
    """Who may be in a cohort, and how many of it are sure to be honest."""
    sizes = f"{cohort.size}" if cohort.survivors_min == cohort.size else f"{cohort.survivors_min} to {cohort.size}"
    return (
        f"cohorts of {sizes} clients, {cohort.corrupt_clients} of them corrupt at "
        f"most: h = {cohort.honest_survivors} honest survivors draw the noise that is promised"
    )


def graph_line(cohort: "Cohort") -> str:
    """Neighbours, and how many of them open a mask."""
    return f"each has {cohort.degree} neighbours, any {cohort.threshold} of whom open its mask"


def _directory(cohort: "Cohort") -> str:
    if cohort.directory:
        return f"clients are known by the directory {cohort.directory[:12]}…"
    return "no directory of clients: the server is trusted to pass on keys truthfully"


def of_advice(advice: "Advice") -> Iterator[tuple[str, str]]:
    """Rows of `hushsum plan advise`: errors at exactly h and with all survivors, bytes, and what to change."""
    from hushsum.advice import shown

    cohort, guesses = advice.plan.privacy.cohort, advice.guesses
    if cohort is None:
        return
    yield "secure sum", cohort_line(cohort)
    yield "", graph_line(cohort)
    yield from corrupt_rows(cohort)
    cohorts = guesses.cohorts(cohort)
    noise = advice.own.noises[advice.own_promise]
    many = "1 cohort" if cohorts == 1 else f"{cohorts:,} cohorts"
    least, most = noise, noise * advice.more_noise
    text = f"± {shown(advice.std_error)} (noise {shown(least)}) with exactly h in {many}, as all errors here"
    drawn, needed = guesses.in_cohorts(cohort), cohort.pool or cohort.survivors_min
    more = f"± {shown(advice.std_error_of_all)} (noise {shown(most)}) where all {drawn:,} clients stay"
    if guesses.clients >= needed:
        text = f"{text}; {more}: each adds its share"
    yield "survivors", text
    upload = advice.own.costs.upload_bytes or 0.0
    yield "upload", f"{upload / _KIB:,.1f} KiB a client and window, the protocol's messages included"
    if guesses.clients < needed:
        by = "pool" if cohort.pool else "sum"
        yield "no cohort", f"{guesses.clients:,} clients are fewer than the {needed:,} that a {by} needs"
    elif cohort.pool:
        left = guesses.clients - drawn
        yield "share", f"{needed / guesses.clients:.1%} of these clients wait at one gateway before a cohort is drawn"
        text = f"{left:,} of them ({left / guesses.clients:.1%}) in each window, or more where they are not all there"
        yield "left over", f"{text} at once: fewer than the pool, and what they have is not in its answer"
    if cohorts > 1:
        yield "cohorts", f"each adds its own noise: fewer and larger ones give up to {cohorts**0.5:.2g} times less"
    yield from _delta(advice)


def _delta(advice: "Advice") -> Iterator[tuple[str, str]]:
    """Where δ = 0 is dear: its noise grows with the rows, and so does what one missing share breaks."""
    own = advice.own
    if advice.promises[advice.own_promise].delta or len(advice.promises) < 2:
        return
    pure, zcdp = own.noises[0], own.noises[1]
    if pure > zcdp:
        delta = float(advice.promises[1].delta)
        text = (
            f"at this size noise is {pure / zcdp:.3g} times less with delta = {delta:.0e}: pure noise grows with rows"
        )
        yield "take δ > 0", f"{text}, and a secure sum's delta is above 0 in any case, for its protocol may fail"
