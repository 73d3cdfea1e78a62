"""Tables of the papers' page, from rows of the results."""

from collections.abc import Sequence

from benchmarks.accuracy.curves import DELTAS, NO_NOISE
from benchmarks.accuracy.papers.contests import compared, halved
from benchmarks.accuracy.papers.figures import best, label, lines_of
from benchmarks.accuracy.papers.tally import HUSHSUM
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row


def errors_table(rows: Sequence[Row], *, highest: bool = False) -> str:
    """One line a method: for each ε its best median, the least and the most seed, and its size."""
    epsilons = sorted({float(row["epsilon"]) for row in rows} - {NO_NOISE})
    table = []
    for line in lines_of(rows):
        some = matching(rows, method=line[0], delta=line[1])
        cells = [matching(some, epsilon=epsilon) for epsilon in epsilons]
        table.append([label(line), *(_cell(best(each, highest=highest)) if each else "" for each in cells)])
    return markdown(["method", *(f"ε = {epsilon:g}" for epsilon in epsilons)], table)


def ratios_table(rows: Sequence[Row], peer: str, ours: str = HUSHSUM, *, half: bool = True) -> str:
    """Hushsum's error over a peer's for each ε, both at their best size, with the marks of losses, ties and shorts.

    Half of the peer's error is the aim at the small δ up to ε = 0.1, if ``half`` says so.
    """
    found = compared(rows, ours, peer, half=half)
    epsilons = list(dict.fromkeys(one.epsilon for one in found))
    lines = []
    for delta in DELTAS:
        cells = {one.epsilon: f"{one.ratio:.2f} {one.mark}".rstrip() for one in found if one.delta == delta}
        lines.append([f"{label((ours, delta))}, over {peer}", *(cells.get(epsilon, "") for epsilon in epsilons)])
    return markdown(["error ratio", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def _cell(row: Row) -> str:
    middle, low, high = (number(float(row[key])) for key in ("median", "least", "most"))
    size = f" [{float(row['size']):g}]" if row["size"] else ""
    return f"{middle} ({low} to {high}){size}" if low != high else f"{middle}{size}"


def names(rows: Sequence[Row]) -> list[str]:
    """The data sets, in the order of the rows."""
    return list(dict.fromkeys(str(row["data"]) for row in rows))


def misses(rows: Sequence[Row], peer: str, what: str) -> str:
    """One sentence for each aim: reached everywhere, or where not."""
    found, said = compared(rows, HUSHSUM, peer, half=True), []
    for delta, limit, some in (*((delta, 1.0, found) for delta in DELTAS), (DELTAS[-1], 0.5, halved(found))):
        missed = [
            f"{one.data} at ε = {one.epsilon:g} ({one.ratio:.2f})"
            for one in some
            if one.delta == delta and one.ratio > limit
        ]
        aim = "at most half of it for ε ≤ 0.1" if limit < 1 else "never above it"
        where = f"not reached on {', '.join(missed)}" if missed else "reached everywhere"
        said.append(f"- {what}, δ = {'10⁻⁶' if delta else '0'}, {aim}: {where}.")
    return "\n".join(said)
