"""The section of the page about post-processing: figures before and after, and what did not win."""

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row

_OPENING: Final = """## After the release: post-processing

Root mean square errors in records, of one release each, before and after what is computed from it alone: no privacy is
spent. `make bench-accuracy ARGS=--post` measures this section alone into `benchmarks/results/accuracy_post.json`. What
lowers the error by less than 5 % is measured and not built. How sums are shrunk was chosen on pay, taxi and skin, which
flatters their figures; *covtype, 2 columns* had no part in that.

Rows of cells that share buckets are not weighted by estimates of what else is in the bucket. It was tried: the error
was 0.03 to 0.99 times that of the mean on sparse data. But where most cells are occupied, values were up to 20 % too
low and 95 % intervals covered 77 to 92 %. `groups` gives medians of rows."""


def section(rows: Sequence[Row]) -> str:
    """All of it, or nothing where nothing was measured."""
    some = matching(rows, part="post")
    parts = [say(matching(some, topic=topic)) for topic, say in _TOPICS.items() if matching(some, topic=topic)]
    return "\n\n".join([_OPENING, *parts]) + "\n" if parts else ""


def _levels(rows: Sequence[Row]) -> str:
    names = ("cells", "ranges", "count")
    header = ["data", "sketch", "ε", "δ", *names, "ranges covered"]
    lines = []
    for row in rows:
        pairs = [f"{number(float(row[f'{name} before']))} → {number(float(row[f'{name} after']))}" for name in names]
        lines.append([*_known(row), *_price(row), *pairs, f"{float(row['ranges coverage']):.2f}"])
    ratios = {name: [float(row[f"{name} after"]) / float(row[f"{name} before"]) for row in rows] for name in names}
    said = ", ".join(f"{name} {_span(values)}" for name, values in ratios.items())
    return f"""### Consistent levels

Dyadic levels whose cells do not collide, before (level 0 and the count counter alone) and after least squares under
"a cell is the sum of its children", the number of records included. The plans of this table have a count counter, as
all had when it was measured; plans of many such levels now have none, and R·H/(R·H + c) of the noise. *Ranges* are 200
random boxes of cells, whose 95 % intervals count all correlations.

{markdown(header, lines)}

After over before: {said}. By theory the error of cells falls by 18 % in one dimension with two levels and by 22 % with
many, by 11 % in two dimensions and by 6 % in three, whatever the data and ε; that of ranges by more the longer they
are. A single level of M cells in one row gains 1/(M + 19) of a cell's variance from n̂ at δ > 0 and 1/(M + 361) at
δ = 0, below 5 %: its cells are left as they are, and only the number of records is taken from the cells and n̂
together, where that is better."""


def _shrunk(rows: Sequence[Row]) -> str:
    prices = _prices(rows)
    header = ["data", "queries", "sketch", *map(_price_text, prices)]
    lines = [
        [known[0], str(each[0]["where"]), known[1], *(_ratio_text(row, "before", "shrunk") for row in each)]
        for where in ("grid", "records")
        for known, each in _lines(matching(rows, where=where), prices)
    ]
    spans = {
        (where, name): _span([float(row[name]) / float(row["before"]) for row in matching(rows, where=where)])
        for where in ("grid", "records")
        for name in ("cut", "shrunk", "linear")
    }
    return f"""### Shrunk sums

`answer.shrunk()` beside `answer.value`: over a regular grid of the bounds, and at held-out records, where sums are
large. Intervals stay those of `value`. Each cell has the error of `value`, and how many times that of `shrunk()` is.

{markdown(header, lines)}

On grids, most of which are empty, the ratio is {spans["grid", "shrunk"]}, and {spans["grid", "cut"]} by cutting at 0
alone; at records {spans["records", "shrunk"]} and {spans["records", "cut"]}. Linear shrinkage towards the mean of the
answers (a normal prior by empirical Bayes) has {spans["grid", "linear"]} and {spans["records", "linear"]}: it may
raise the error, and is not built. `value` stays unbiased: shrunk sums are a choice of the caller."""


def _control(rows: Sequence[Row]) -> str:
    prices = _prices(rows)
    header = ["data", "sketch", "mean kernel", *map(_price_text, prices)]
    lines = [
        [*known, f"{float(each[0]['kernel']):.2f}", *(f"{100 * _gain(row):.1f} %" for row in each)]
        for known, each in _lines(rows, prices)
    ]
    two = [row for row in rows if str(row["sketch"]).endswith(" 2 buckets")]
    most, most_of_two = (
        100 * max(map(_gain, some), default=0.0) for some in ([row for row in rows if row not in two], two)
    )
    return f"""### A control variate from n̂: not built

The records that a sketch's own counters tell less n̂ has mean 0, so a multiple of it may be taken from every answer. By
how much the multiple that is best in hindsight lowers the error for kernels that are nearly constant over the bounds
(40 sketches of 20,000 records, three releases each; 1 or 2 % are chance):

{markdown(header, lines)}

At most {most:.1f} %, and {most_of_two:.1f} % for half spaces with two buckets. In theory it is 1/(W + R/c²) of the
noise's variance where W buckets are direct, and nothing where they are rehashed, or where rows are frequencies; hashing
error is not correlated with n̂. R/c² is 19 at δ > 0, so that the error falls by less than 5 % for any W, and 361/R at
δ = 0: there, with 8 buckets or fewer and errors that are nearly all noise, it may fall by more. That is a sketch whose
answers tell little more than the number of records."""


def _gain(row: Row) -> float:
    return 1.0 - float(row["after"]) / float(row["before"])


def _lines(rows: Sequence[Row], prices: Sequence[tuple[float, float]]) -> list[tuple[list[str], list[Row]]]:
    """One a data set and sketch: both, and its rows in the order of prices."""
    found = []
    for data, sketch in dict.fromkeys((str(row["data"]), str(row["sketch"])) for row in rows):
        some = matching(rows, data=data, sketch=sketch)
        found.append(([data, sketch], [matching(some, epsilon=e, delta=d)[0] for e, d in prices]))
    return found


def _known(row: Row) -> list[str]:
    return [str(row["data"]), str(row["sketch"])]


def _prices(rows: Sequence[Row]) -> list[tuple[float, float]]:
    return list(dict.fromkeys((float(row["epsilon"]), float(row["delta"])) for row in rows))


def _price(row: Row) -> list[str]:
    return [f"{float(row['epsilon']):g}", "10⁻⁶" if row["delta"] else "0"]


def _price_text(price: tuple[float, float]) -> str:
    return f"ε = {price[0]:g}" + (", δ = 10⁻⁶" if price[1] else "")


def _ratio_text(row: Row, before: str, after: str) -> str:
    return f"{number(float(row[before]))} × {float(row[after]) / float(row[before]):.2f}"


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


_TOPICS: Final[dict[str, Callable[[Sequence[Row]], str]]] = {
    "levels": _levels,
    "shrunk": _shrunk,
    "control": _control,
}
