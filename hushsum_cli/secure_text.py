"""What `hushsum plan` tells of secure sums: the cohort, its bytes, and how noise grows with survivors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hushsum.advice import Advice
    from hushsum.plan import Plan
    from hushsum.privacy.cohort import Cohort

_KIB = 2**10


def of_plan(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Rows of `hushsum plan show`: the cohort, the graph, the vector, and who is trusted; none for other modes."""
    cohort = plan.privacy.cohort
    if cohort is None:
        return
    yield "secure sum", cohort_line(cohort)
    yield "", f"{graph_line(cohort)}; a cohort that is not full begins after {cohort.wait_ms / 1000:g} s"
    words = plan.words
    width = f"{words.bits} bits (count counters {words.count_bits})"
    size = f"{words.bytes / _KIB:,.1f} KiB"
    yield "vector", f"{size} a client and window, with records or without: {words.size:,} counters of {width}"
    yield "adversary", f"{cohort.adversary} server; {_directory(cohort)}"


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
    cohorts = guesses.cohorts(cohort)
    noise = advice.own.noises[advice.own_promise]
    many = "1 cohort" if cohorts == 1 else f"{cohorts:,} cohorts"
    least, most = noise, noise * advice.more_noise
    text = f"± {shown(advice.std_error)} (noise {shown(least)}) with exactly h in {many}, as all errors here"
    more = f"± {shown(advice.std_error_of_all)} (noise {shown(most)}) where all {guesses.clients:,} clients stay"
    if guesses.clients >= cohort.survivors_min:
        text = f"{text}; {more}: each adds its share"
    yield "survivors", text
    upload = advice.own.costs.upload_bytes or 0.0
    yield "upload", f"{upload / _KIB:,.1f} KiB a client and window, the protocol's messages included"
    if guesses.clients < cohort.survivors_min:
        yield "no cohort", f"{guesses.clients:,} clients are fewer than the {cohort.survivors_min:,} that a sum needs"
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
