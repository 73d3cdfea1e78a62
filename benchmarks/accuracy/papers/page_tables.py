"""Tables of the papers' page, from rows of the results."""

from collections.abc import Sequence
from itertools import product

from benchmarks.accuracy.curves import NO_NOISE, PURE, SMALL_DELTA
from benchmarks.accuracy.papers.figures import Line, best, label, lines_of
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
    """Hushsum's error over a peer's for each ε, both at their best size.

    Misses are marked: more than 1, and more than a half at the small δ up to ε = 0.1, if ``half`` is an aim.
    """
    epsilons = sorted({float(row["epsilon"]) for row in matching(rows, method=peer)} - {NO_NOISE})
    lines = []
    for delta in (PURE, SMALL_DELTA):
        cells = []
        for epsilon in epsilons:
            aim = 0.5 if half and delta and epsilon <= 0.1 else 1.0
            found = ratio(rows, (ours, delta), (peer, PURE), epsilon)
            cells.append(f"{found:.2f}{' **miss**' if found > aim else ''}")
        lines.append([f"{label((ours, delta))}, over {peer}", *cells])
    return markdown(["error ratio", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def ratio(rows: Sequence[Row], one: Line, other: Line, epsilon: float) -> float:
    """The ratio of two methods' best medians."""
    over, under = (
        float(best(matching(rows, method=method, delta=delta, epsilon=epsilon))["median"])
        for method, delta in (one, other)
    )
    return over / under


def _cell(row: Row) -> str:
    middle, low, high = (number(float(row[key])) for key in ("median", "least", "most"))
    size = f" [{float(row['size']):g}]" if row["size"] else ""
    return f"{middle} ({low} to {high}){size}" if low != high else f"{middle}{size}"


def names(rows: Sequence[Row]) -> list[str]:
    """The data sets, in the order of the rows."""
    return list(dict.fromkeys(str(row["data"]) for row in rows))


def misses(rows: Sequence[Row], peer: str, what: str) -> str:
    """One sentence for each aim: reached everywhere, or where not."""
    epsilons = sorted({float(row["epsilon"]) for row in matching(rows, method=peer)} - {NO_NOISE})
    said = []
    for delta, aim, some in ((PURE, 1.0, epsilons), (SMALL_DELTA, 1.0, epsilons), (SMALL_DELTA, 0.5, None)):
        tried = [e for e in epsilons if e <= 0.1] if some is None else some
        missed = [
            f"{data} at ε = {epsilon:g} ({found:.2f})"
            for data in names(rows)
            for epsilon in tried
            if (found := ratio(matching(rows, data=data), (HUSHSUM, delta), (peer, PURE), epsilon)) > aim
        ]
        aim_text = "at most half of it for ε ≤ 0.1" if aim < 1 else "never above it"
        where = f"missed on {', '.join(missed)}" if missed else "reached everywhere"
        said.append(f"- {what}, δ = {'10⁻⁶' if delta else '0'}, {aim_text}: {where}.")
    return "\n".join(said)


def against(rows: Sequence[Row], ours: str, peers: Sequence[str]) -> str:
    """One line a data set, δ and peer: the ε at which Hushsum errs more than the best method of that name."""
    said = []
    for data, peer, delta in product(names(rows), peers, (PURE, SMALL_DELTA)):
        some = matching(rows, data=data)
        theirs = [row for row in some if str(row["method"]).startswith(peer)]
        lost = [
            f"{epsilon:g}"
            for epsilon in sorted({float(row["epsilon"]) for row in theirs})
            if float(best(matching(some, method=ours, delta=delta, epsilon=epsilon))["median"])
            > float(best(matching(theirs, epsilon=epsilon))["median"])
        ]
        if theirs:
            where = f"**miss** at ε = {', '.join(lost)}" if lost else "nowhere above"
            said.append(f"- {data}: {label((ours, delta))}, against {peer}: {where}.")
    return "\n".join(said)
