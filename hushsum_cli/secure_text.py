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
    text = f"about {central:.3g} times that of central mode if all {cohort.size:,} clients stay"
    yield "noise factor", f"{text}, {none:.3g} times that with no corrupt clients"
    words = plan.words
    width = f"{words.bits} bits (count counters {words.count_bits})"
    size = f"{words.bytes / _KIB:,.1f} KiB"
    yield "vector", f"{size} per client and window, with or without records: {words.size:,} counters of {width}"
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
        text = f"at most {most} clients of every cohort are corrupt (the plan states no pool)"
        yield "assumed", f"{text} ({_KEYS})"
        return
    times = f"{cohort.pool / cohort.size:.3g} times the cohort size"
    pool = f"cohorts are drawn from at least {cohort.pool:,} clients waiting at one gateway ({times})"
    if not cohort.fleet_corrupt:
        text = "no client of the fleet is corrupt (corrupt_clients = 0)"
        yield "assumed", f"{text}: a corrupt client could leave out its share of the noise"
        yield "pool", pool
        return
    fleet = f"at most {cohort.fleet_corrupt:,} clients of the fleet are corrupt (corrupt_clients)"
    if cohort.adversary == MALICIOUS:
        fleet = f"{fleet}; for a malicious server, also that its choice of clients is no worse than random"
    yield "assumed", fleet
    yield "pool", f"{pool}: at most {most} of {cohort.size:,} are corrupt, except with probability 2^-43 per draw"


def _begins(cohort: "Cohort") -> str:
    if cohort.pool:
        return f"no cohort is drawn while fewer than {cohort.pool:,} clients wait"
    return f"an incomplete cohort starts after {cohort.wait_ms / 1000:g} s"


def cohort_line(cohort: "Cohort") -> str:
    """Who may be in a cohort, and how many of it are sure to be honest."""
    sizes = f"{cohort.size}" if cohort.survivors_min == cohort.size else f"{cohort.survivors_min} to {cohort.size}"
    return (
        f"cohorts of {sizes} clients, at most {cohort.corrupt_clients} corrupt: the noise of h = "
        f"{cohort.honest_survivors} honest survivors gives the guarantee"
    )


def graph_line(cohort: "Cohort") -> str:
    """Neighbours, and how many of them open a mask."""
    return f"{cohort.degree} neighbours per client, any {cohort.threshold} of which can reconstruct its mask"


def _directory(cohort: "Cohort") -> str:
    if cohort.directory:
        return f"clients are authenticated by the key registry {cohort.directory[:12]}…"
    return "no key registry: the server is trusted to relay keys correctly"


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
    text = f"± {shown(advice.std_error)} (noise {shown(least)}) with exactly h in {many}, as in all errors here"
    drawn, needed = guesses.in_cohorts(cohort), cohort.pool or cohort.survivors_min
    more = f"± {shown(advice.std_error_of_all)} (noise {shown(most)}) if all {drawn:,} clients stay"
    if guesses.clients >= needed:
        text = f"{text}; {more}"
    yield "survivors", text
    upload = advice.own.costs.upload_bytes or 0.0
    yield "upload", f"{upload / _KIB:,.1f} KiB per client and window, including protocol messages"
    if guesses.clients < needed:
        by = "pool" if cohort.pool else "sum"
        yield "no cohort", f"{guesses.clients:,} clients, but a {by} needs {needed:,}"
    elif cohort.pool:
        left = guesses.clients - drawn
        yield (
            "share",
            f"{needed / guesses.clients:.1%} of the clients must wait at one gateway before a cohort is drawn",
        )
        text = f"{left:,} clients ({left / guesses.clients:.1%}) or more per window are in no cohort"
        yield "left over", f"{text}, because fewer than the pool remain; their records are not counted"
    if cohorts > 1:
        yield (
            "cohorts",
            f"each cohort adds its own noise: fewer, larger cohorts reduce it up to {cohorts**0.5:.2g} times",
        )
    yield from _delta(advice)


def _delta(advice: "Advice") -> Iterator[tuple[str, str]]:
    """Where δ = 0 is dear: its noise grows with the rows, and so does what one missing share breaks."""
    own = advice.own
    if advice.promises[advice.own_promise].delta or len(advice.promises) < 2:
        return
    pure, zcdp = own.noises[0], own.noises[1]
    if pure > zcdp:
        delta = float(advice.promises[1].delta)
        text = f"noise is {pure / zcdp:.3g} times smaller with δ = {delta:.0e}, because pure noise grows with the rows"
        yield "use δ > 0", f"{text}; the δ of a secure sum is above 0 in any case, because the protocol may fail"
