"""Tables of the modes and of the shuffled protocols, in Markdown: numbers only."""

from collections.abc import Sequence
from typing import Final

from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row

THE_MEAN: Final = "the mean"
_AMPLIFIED: Final = "k-rr", "one-bit"


def epsilons_of(rows: Sequence[Row]) -> list[float]:
    """Every ε, the smallest first."""
    return sorted({float(row["epsilon"]) for row in rows if row["mode"] != THE_MEAN})


def numbers_of(rows: Sequence[Row]) -> list[int]:
    """Every n, the smallest first."""
    return sorted({int(row["n"]) for row in rows})


def modes_of(rows: Sequence[Row]) -> list[str]:
    """Every mode, as they were measured."""
    return [mode for mode in dict.fromkeys(str(row["mode"]) for row in rows) if mode != THE_MEAN]


def modes_table(rows: Sequence[Row], metric: str) -> str:
    """One line a sketch, number of records and mode: the error for each ε, and that of the mean as the last column."""
    epsilons = epsilons_of(rows)
    header = ["n", "sketch", "mode", *(f"ε = {epsilon:g}" for epsilon in epsilons), "the mean"]
    lines = []
    for n in numbers_of(rows):
        for sketch in dict.fromkeys(str(row["sketch"]) for row in rows):
            some = matching(rows, n=n, sketch=sketch)
            constants = matching(some, mode=THE_MEAN)
            constant = number(float(constants[0][metric])) if constants else ""
            for mode in modes_of(some):
                cells = [_cell(matching(some, mode=mode, epsilon=epsilon), metric) for epsilon in epsilons]
                lines.append([f"{n:,}", sketch, mode, *cells, constant])
    return markdown(header, lines)


def amplified_table(rows: Sequence[Row]) -> str:
    """One line a number of records: ε after a shuffler of each local ε."""
    epsilons = epsilons_of(rows)
    lines = []
    for n in numbers_of(rows):
        found = [row for row in matching(rows, n=n) if str(row["mode"]).endswith(_AMPLIFIED)]
        lines.append([f"{n:,}", *(_amplified(matching(found, epsilon=epsilon)) for epsilon in epsilons)])
    return markdown(["n", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def predictions_table(rows: Sequence[Row]) -> str:
    """One line a sketch and mode, of all records: root mean square errors, measured and (predicted)."""
    epsilons, most = epsilons_of(rows), numbers_of(rows)[-1]
    header = ["sketch", "mode", *(f"ε = {epsilon:g}" for epsilon in epsilons), "a client or record sends"]
    lines = []
    for sketch in dict.fromkeys(str(row["sketch"]) for row in rows):
        some = matching(rows, n=most, sketch=sketch)
        for mode in modes_of(some):
            found = [matching(some, mode=mode, epsilon=epsilon) for epsilon in epsilons]
            lines.append([sketch, mode, *map(_predicted, found), _sent([row for each in found for row in each])])
    return markdown(header, lines)


def shuffled_table(rows: Sequence[Row]) -> str:
    """One line a number of records and protocol: noise alone, and with rows or features, for each central ε."""
    epsilons = sorted({float(row["epsilon"]) for row in rows})
    header = ["n", "protocol", "messages a user", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
    lines = []
    for n in numbers_of(rows):
        for protocol in dict.fromkeys(str(row["protocol"]) for row in rows):
            found = matching(rows, n=n, protocol=protocol)
            cells = [f"{number(float(row['noise']))} ({number(float(row['error']))})" for row in found]
            many = sorted({int(row["messages"]) for row in found})
            sent = f"{many[0]:,}" if len(many) == 1 else f"{many[0]:,} to {many[-1]:,}"
            lines.append([f"{n:,}", protocol, sent, *cells])
    return markdown(header, lines)


def _cell(found: Sequence[Row], metric: str) -> str:
    return number(float(found[0][metric])) if found else ""


def _amplified(found: Sequence[Row]) -> str:
    return next((number(float(row["amplified"])) for row in found if "amplified" in row), "no better")


def _predicted(found: Sequence[Row]) -> str:
    if not found:
        return ""
    row = found[0]
    width = f", W {row['buckets']}" if row.get("buckets") else ""
    return f"{float(row['records off']):,.0f} ({float(row['predicted']):,.0f}){width}"


def _sent(found: Sequence[Row]) -> str:
    sizes = sorted({int(row["bytes"]) for row in found})
    if sizes[-1] == 0:
        return "deltas"
    if sizes[-1] < 1024:
        return f"{sizes[0]} bytes" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} bytes"
    kib = [f"{size / 1024:,.0f}" for size in (sizes[0], sizes[-1])]
    return f"{kib[0]} KiB" if kib[0] == kib[1] else f"{kib[0]} to {kib[1]} KiB"
