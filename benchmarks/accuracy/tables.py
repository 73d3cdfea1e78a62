"""From rows of the accuracy run to tables in Markdown: numbers only, no judgement."""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.accuracy.curves import DELTAS, NO_NOISE, PURE
from benchmarks.accuracy.peers import PEERS
from benchmarks.report import Row


def best(rows: Iterable[Row], metric: str) -> Row | None:
    """The row of least error; None of none."""
    return min(rows, key=lambda row: float(row[metric]), default=None)


def matching(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    drawn = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in drawn)


def number(value: float) -> str:
    """Two digits, as a person writes them."""
    if value == 0.0:
        return "0"
    text = f"{value:.2g}"
    return f"{value:.1e}".replace("e-0", "e-") if "e" in text and abs(value) < 1 else f"{float(text):g}"


def at_delta(rows: Iterable[Row], delta: float) -> list[Row]:
    """The rows with releases at this δ, and those without noise."""
    return [row for row in rows if row["epsilon"] == NO_NOISE or row["delta"] == delta]


def errors_table(data: str, metric: str, rows: Sequence[Row], constants: Mapping[str, float], delta: float) -> str:
    """One line a sketch: the least error over its sizes for each ε, with that size, and of the mean; peers below.

    Peers, who are pure, stand below the table of δ = 0.
    """
    rows = at_delta(rows, delta)
    epsilons = sorted({float(row["epsilon"]) for row in rows} - {NO_NOISE}, reverse=True)
    columns = [NO_NOISE, *epsilons]
    header = ["sketch", "no noise", *(f"ε = {epsilon:g}" for epsilon in epsilons), "the mean"]
    lines = []
    for label in dict.fromkeys(str(row["sketch"]) for row in rows):
        cells = [best(matching(rows, sketch=label, epsilon=epsilon), metric) for epsilon in columns]
        constant = number(constants[label]) if label in constants else ""
        lines.append([label, *(_cell(cell, metric) for cell in cells), constant])
    lines += [
        [peer.label, *(f"{peer.errors[e]:g}" if e in peer.errors else "" for e in columns), ""]
        for peer in PEERS
        if peer.data == data and delta == PURE
    ]
    return markdown(header, lines)


def draws_table(rows: Sequence[Row]) -> str:
    """One line a data set, family and size: error and coverage without noise by kind of draws."""
    kinds = list(dict.fromkeys(str(row["draws"]) for row in rows))
    header = ["data", "d", "family", "rows", *(f"{kind}" for kind in kinds), "sobol/independent"]
    lines = []
    groups = dict.fromkeys((row["data"], row["d"], row["family"], row["size"]) for row in rows)
    for data, dim, family, size in groups:
        some = matching(rows, data=data, family=family, size=size, epsilon=NO_NOISE)
        errors = {row["draws"]: row for row in some}
        cells = [
            f"{number(float(errors[k]['relative error']))} ± {number(float(errors[k]['its standard error']))}"
            if k in errors
            else ""
            for k in kinds
        ]
        ratio = ratio_of(errors.get("sobol"), errors.get("independent"))
        lines.append([str(data), str(dim), str(family), str(size), *cells, "" if ratio is None else f"{ratio:.2f}"])
    return markdown(header, lines)


def coverage_table(rows: Sequence[Row]) -> str:
    """One line a data set, family and size: how many of the stated 95 % intervals hold the exact sum."""
    kinds = list(dict.fromkeys(str(row["draws"]) for row in rows))
    epsilons = sorted({float(row["epsilon"]) for row in rows})
    named = [(kind, epsilon) for kind in kinds for epsilon in epsilons]
    header = ["data", "family", "rows", *(f"{k}{', ε = ' + format(e, 'g') if e else ''}" for k, e in named)]
    lines = []
    for data, family, size in dict.fromkeys((row["data"], row["family"], row["size"]) for row in rows):
        some = matching(rows, data=data, family=family, size=size)
        cells = [matching(some, draws=kind, epsilon=epsilon) for kind, epsilon in named]
        texts = [f"{float(cell[0]['coverage']):.2f}" if cell and "coverage" in cell[0] else "" for cell in cells]
        lines.append([str(data), str(family), str(size), *texts])
    return markdown(header, lines)


def regression_table(rows: Sequence[Row]) -> str:
    """One line a data set and form: R² for each ε at the best number of rows, at δ = 0 and at the small δ."""
    epsilons = sorted({float(row["epsilon"]) for row in rows} - {NO_NOISE}, reverse=True)
    columns = [(NO_NOISE, PURE), *((epsilon, delta) for epsilon in epsilons for delta in DELTAS)]
    named = (f"ε = {e:g}" + (", δ = 10⁻⁶" if d else "") for e, d in columns[1:])
    header = ["data", "n", "features", "form", "least squares", "no noise", *named]
    lines = []
    for data, form in dict.fromkeys((row["data"], row["form"]) for row in rows):
        some = matching(rows, data=data, form=form)
        cells = [max(matching(some, epsilon=e, delta=d), key=lambda row: float(row["R²"])) for e, d in columns]
        texts = [f"{float(cell['R²']):.2f} (R {cell['rows']})" for cell in cells]
        first = some[0]
        least = f"{float(first['R² of least squares']):.2f}"
        lines.append([str(data), f"{first['n']:,}", str(first["features"]), str(form), least, *texts])
    return markdown(header, lines)


def estimators_table(rows: Sequence[Row]) -> str:
    """One line a data set and estimator, at δ = 0 and at the small δ: the median of the fits, and their range."""
    header = ["estimator", "data", "n", "measure", "ε = 1", "ε = 1, δ = 10⁻⁶"]
    header += ["bandwidth given", "without noise", "peer", "of the peer"]
    lines = []
    for estimator, data in dict.fromkeys((row["estimator"], row["data"]) for row in rows):
        some = [matching(rows, estimator=estimator, data=data, delta=delta)[0] for delta in DELTAS]
        cells = [f"{row['median']:.3f} ({row['least']:.3f} to {row['most']:.3f})" for row in some]
        exact = " / ".join(dict.fromkeys(f"{row['without noise']:.3f}" for row in some))
        known = [str(estimator), str(data), f"{some[0]['n']:,}", str(some[0]["measure"])]
        given = " / ".join(f"{row['median with it']:.3f}" for row in some if "median with it" in row)
        lines.append([*known, *cells, given, exact, str(some[0]["peer"]), f"{some[0]['of the peer']:.3f}"])
    return markdown(header, lines)


def classifiers_table(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    """One line a data set: the classifiers of the package at δ = 0 and the small δ, beside diffprivlib's at δ = 0."""
    kinds = list(dict.fromkeys(str(row["peer"]) for row in peers))
    header = ["data", "kernel, without noise", "KernelClassifier", "bandwidth given", "LinearClassifier"]
    lines = []
    for data in dict.fromkeys(str(row["data"]) for row in matching(rows, estimator="KernelClassifier")):
        kernel, linear = (
            [matching(rows, estimator=name, data=data, delta=delta)[0] for delta in DELTAS]
            for name in ("KernelClassifier", "LinearClassifier")
        )
        known = [data, " / ".join(dict.fromkeys(f"{row['without noise']:.3f}" for row in kernel))]
        ours = [" / ".join(f"{row[key]:.3f}" for row in some) for some, key in (
            (kernel, "median"), (kernel, "median with it"), (linear, "median"),
        )]  # fmt: skip
        theirs = [
            f"{row['median']:.3f} ({row['least']:.3f} to {row['most']:.3f})"
            for kind in kinds
            for row in matching(peers, peer=kind, data=data)
        ]
        lines.append([*known, *ours, *theirs])
    return markdown([*header, *(f"diffprivlib's {kind}" for kind in kinds)], lines)


def ratio_of(one: Row | None, other: Row | None) -> float | None:
    """The ratio of two rows' relative errors."""
    if one is None or other is None:
        return None
    return float(one["relative error"]) / float(other["relative error"])


def _cell(row: Row | None, metric: str) -> str:
    return "" if row is None else f"{number(float(row[metric]))} ({size_name(row)} {row['size']})"


def size_name(row: Row) -> str:
    """What the size of a sketch is called: R rows, P pairs, or the order."""
    if row["axis"] == "order":
        return "order"
    return "P" if str(row["sketch"]).startswith("fourier") else "R"
