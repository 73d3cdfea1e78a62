"""The section of the page about modes: who is trusted, and what that costs; words change with the numbers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.mode_plots import draw_modes
from benchmarks.accuracy.mode_tables import (
    amplified_table,
    epsilons_of,
    modes_of,
    modes_table,
    numbers_of,
    predictions_table,
    shuffled_table,
)
from benchmarks.accuracy.shuffled import IDEALISED, MOST, RESPONSE
from benchmarks.accuracy.subjects import ABSOLUTE, RELATIVE
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row

_METRICS: Final = {"skin": RELATIVE, "taxi": ABSOLUTE}
_NAMES: Final = {RELATIVE: "mean relative error", ABSOLUTE: "mean absolute error of densities"}
_SMALL: Final = "central, δ = 10⁻⁶"

_OPENING: Final = """## Who is trusted: central, secure, local

This section compares trust modes. The records, the 200 held-out queries, the 2,048 rows or pairs and the hash functions
(three public seeds) are the same, with ε from 0.5 to 8 for one record. `make bench-accuracy ARGS=--modes` measures only
this section, into `benchmarks/results/accuracy_modes.json`.

- **central**: the aggregator sees exact counters and draws the noise, pure or at δ = 10⁻⁶.
- **secure**, δ = 10⁻⁶: 1,000 clients in ten cohorts of 100, of which 10 may be corrupt and 10 may drop out. The noise
is calibrated to 80 honest shares in each cohort, and all 100 clients add their shares.
- **local silo**, δ = 10⁻⁶: each of 100 or 1,000 clients adds all of the noise to its own counters.
- **local report**, pure: each record is one randomised report, made by the code of the device, counted and released. W
is the choice of `hushsum plan advise` for that ε, n and number of rows.

For reports, the real code made, counted and released them. For secure sums and silos, no protocol was run and nothing
was packed: their releases contain exact counters and the noise of all clients, drawn as one discrete Gaussian of their
variance (the sum of so many differs from it by less than 10⁻⁵⁰).

The relations differ, so the same ε is not the same guarantee. Central is add/remove, secure and silo are zero-out; at
ε all three guarantee 2ε for replacing a record. Reports guarantee ε for replacing a record, and nothing about whether
it was sent.
"""

_PREDICTIONS: Final = """Root mean square errors of kernel sums of all records, in records: measured, and in brackets
predicted from n, the mean density and the plan alone; with the W of reports. Hashing errors are predicted for synthetic
records, and differ for real ones. Randomisation and noise are as predicted. The last column is the size of a client's
submission for a window, or of one report:
"""

_SHUFFLED: Final = """### Behind a shuffler: one report, or sums of bits

Wagner (ICLR 2025, "Learning from End User Data with Shuffled Differential Privacy over Kernel Densities") sends one bit
for each of I random features of a record into I shuffled bit sums. The table shows standard errors of a density (mean
{density}) with the laplacian kernel on taxi, at the same central (ε, δ = 10⁻⁶) of one user: first the part of
randomisation alone, and in brackets the whole error, with {most:,} rows or pairs of reports, and with the best I up to
{most:,} of bit sums. All are closed forms, which tests check against simulations.

- **k-rr, projective, one-bit**: the reports of this project, one for each user, at the largest local ε that is
amplified to ε, by the computed divergence of FMT's pair of distributions.
- **bit sums, randomised response**: each of I bits is amplified by the same pair, and advanced composition shares
(ε, δ) among them. Numerical accounting would tighten that composition.
- **bit sums, idealised**: central geometric noise on each sum, shared by zCDP. Protocols with several messages a bit
reach or nearly reach this (pure, Ghazi et al. 2020 and 2023; "almost a single message", 2021).

{table}
"""


_CARRIED: Final = """### Less noise, mode by mode

Root mean square errors of noise alone in records, of kernel sums on a grid of two columns, at ε = 1 and δ = 10⁻⁶ with
Gaussian noise, before and after two changes: cells of one row have no count counter, and hermite moments have weights.
Both change the sketch and not the noise, so that they carry over to noise that clients draw, whole or in shares. One
row of cells in a secure sum gains nothing here: its noise is the least that shares may have, with a count counter or
without.

{table}

The ledger counts Laplace noise by its own zCDP in every mode. In a secure sum, δ of its failures would make it fall
back to pure ε, unless the plan has `failures = "reserved"` ([ledger](explanation/ledger.md#failures-of-secure-sums)).
Reports gain from the shuffler's computed divergence alone: they have no count counter and no noise.
"""


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Writes the figures into a folder."""
    for data, metric in _METRICS.items():
        if some := matching(rows, part="mode", data=data):
            draw_modes(folder / f"modes-{data}.png", f"{data}: who is trusted, and what it costs", some, metric)


def section(rows: Sequence[Row]) -> str:
    """In Markdown; nothing of no rows."""
    modes, shuffled = matching(rows, part="mode"), matching(rows, part="shuffled")
    if not modes:
        return ""
    parts = [_OPENING]
    parts += [_subject(data, matching(modes, data=data)) for data in _METRICS if matching(modes, data=data)]
    parts.append("### Errors of the modes\n\n" + "\n\n".join(_costs(modes)))
    if carried := matching(rows, part="carried"):
        header = ["sketch", "mode", "before", "now", "now over before"]
        lines = [
            [
                str(row["sketch"]),
                str(row["mode"]),
                *(number(float(row[name])) for name in ("before", "now")),
                f"{float(row['now']) / float(row['before']):.2f}",
            ]
            for row in sorted(carried, key=lambda row: str(row["sketch"]))
        ]
        parts.append(_CARRIED.format(table=markdown(header, lines)))
    if shuffled:
        density = f"{float(shuffled[0]['mean density']):.2g}"
        parts.append(_SHUFFLED.format(density=density, most=MOST, table=shuffled_table(shuffled)))
        parts.append("\n\n".join(_verdicts(shuffled)))
    return "\n\n".join(parts) + "\n"


def _subject(data: str, rows: Sequence[Row]) -> str:
    metric = _METRICS[data]
    return f"""### {data}, by mode

![{data}: {_NAMES[metric]} by mode, against records and ε](accuracy/modes-{data}.png)

{_NAMES[metric].capitalize()}:

{modes_table(rows, metric)}

The ε at δ = 10⁻⁶ of n reports in one batch of a shuffler, all of them honest and independent, beside the local ε of
each. The answers are the same:

{amplified_table(rows)}

{_PREDICTIONS}

{predictions_table(rows)}"""


def _costs(rows: Sequence[Row]) -> Iterator[str]:
    """One paragraph a comparison."""
    for data in dict.fromkeys(str(row["data"]) for row in rows):
        for sketch in dict.fromkeys(str(row["sketch"]) for row in matching(rows, data=data)):
            some = matching(rows, data=data, sketch=sketch)
            yield _beside_the_centre(data, sketch, some)
    if said := _randomisers(rows):
        yield said
    if said := _families(rows):
        yield said
    yield (
        "Where the lines meet, only the hashing error is left. More rows of whole sketches take time and bytes on "
        "devices; reports have the same cost with any number of rows, and only counters grow. Narrow rows (small W) "
        "have larger hashing errors, because codes that many records share may fall into the bucket of a query "
        "together. So k-rr, which needs W near e^ε + 1, also needs many rows; `hushsum plan advise` considers both."
    )


def _beside_the_centre(data: str, sketch: str, rows: Sequence[Row]) -> str:
    """How many times the central error each mode has, at the ends of n and in the middle of ε."""
    metric, epsilons, numbers = _METRICS[data], epsilons_of(rows), numbers_of(rows)
    some = list(dict.fromkeys((epsilons[0], epsilons[len(epsilons) // 2], epsilons[-1])))
    said = []
    for mode in modes_of(rows):
        if mode.startswith("central"):
            continue
        ratios = []
        for epsilon in some:
            here = [_error(rows, mode, n, epsilon, metric) / _error(rows, _SMALL, n, epsilon, metric) for n in numbers]
            ratios.append(f"{here[0]:.2g} to {here[-1]:.2g}")
        said.append(f"{mode} {', '.join(ratios)}")
    few, many = f"{numbers[0]:,}", f"{numbers[-1]:,}"
    shown = " / ".join(f"{epsilon:g}" for epsilon in some)
    return (
        f"**{data}, {sketch}**, error over that of {_SMALL}, with {few} to {many} records, at ε = {shown}: "
        f"{'; '.join(said)}."
    )


def _randomisers(rows: Sequence[Row]) -> str:
    """k-rr beside projective."""
    by: dict[float, list[float]] = {}
    for row in matching(rows, mode="local, k-rr"):
        known = {key: row[key] for key in ("data", "sketch", "n", "epsilon")}
        other = matching(rows, mode="local, projective", **known)
        if other:
            by.setdefault(float(row["epsilon"]), []).append(float(row["records off"]) / float(other[0]["records off"]))
    if not by:
        return ""
    ratios = ", ".join(f"{sum(each) / len(each):.2f} at ε = {epsilon:g}" for epsilon, each in sorted(by.items()))
    return (
        f"**k-rr beside projective**, each with its best W: errors of k-rr are {ratios} times those of projective, on "
        "average over data and n. Their distributions are nearly the same if W is chosen for each; the error of a "
        "projective response does not grow with wide rows, so it needs fewer rows."
    )


def _families(rows: Sequence[Row]) -> str:
    """Hashed beside fourier, with the same kernel."""
    some = matching(rows, data="taxi")
    said = []
    for n in numbers_of(some):
        ratios = []
        for epsilon in epsilons_of(some):
            bit = matching(some, mode="local, one-bit", n=n, epsilon=epsilon)
            hashed = [row for row in matching(some, n=n, epsilon=epsilon) if row["mode"] in _HASHED]
            if bit and hashed:
                least = min(float(row["records off"]) for row in hashed)
                ratios.append(f"{float(bit[0]['records off']) / least:.2g} at ε = {epsilon:g}")
        if ratios:
            said.append(f"{', '.join(ratios)} with n = {n:,}")
    if not said:
        return ""
    return (
        "**Hashed beside fourier in local mode**, the same kernel on the same data. Errors of one-bit reports, divided "
        f"by those of the better hashed ones: {'; '.join(said)}. A bit has at least variance 2 a record for every ε; "
        "the variance of a bucket falls with ε. Use hashed for every kernel that it has, and fourier for the kernels "
        "that only it has (gaussian, cauchy)."
    )


_HASHED: Final = ("local, k-rr", "local, projective")


def _error(rows: Sequence[Row], mode: str, n: int, epsilon: float, metric: str) -> float:
    return float(matching(rows, mode=mode, n=n, epsilon=epsilon)[0][metric])


def _verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Who wins, where, and by how much."""
    response, idealised, wins, whole = [], [], [], []
    for row in matching(rows, protocol="k-rr"):
        known = {"n": row["n"], "epsilon": row["epsilon"]}
        theirs = {name: matching(rows, protocol=name, **known)[0] for name in (RESPONSE, IDEALISED)}
        at = f"n = {int(row['n']):,} and ε = {row['epsilon']:g}"
        response.append((float(theirs[RESPONSE]["noise"]) / float(row["noise"]), at))
        whole.append((float(theirs[RESPONSE]["error"]) / float(row["error"]), at))
        idealised.append((float(row["noise"]) / float(theirs[IDEALISED]["noise"]), at))
        if float(row["error"]) > float(theirs[IDEALISED]["error"]):
            wins.append(at)
    better = [at for ratio, at in response if ratio < 1]
    nowhere = "are nowhere better in the table than one report of k-rr"
    verdict = f"are better only at {'; '.join(better)}" if better else nowhere
    yield (
        f"**Bit sums by randomised response {verdict}**: their error of randomisation is {_ends(response)} that "
        f"of k-rr. With rows and features included it is {_ends(whole)}. A user who sends I bits divides ε among them; "
        "a report is about one random row, and has all of ε."
    )
    yield (
        "**A limit of reports: sums with nearly central noise have a smaller error of randomisation than every single "
        "report.** Their noise in a density falls as 1/n, that of reports as 1/√n: the error of k-rr is "
        f"{_ends(idealised)} as large. This project does not implement them. They need several messages a record, at "
        f"least one for each of up to {MOST:,} features in this table, and the error of these features remains (they "
        "are drawn independently; Sobol ones have less). Including it, their whole error is smaller than that of k-rr "
        f"at {'; '.join(wins) if wins else 'no point of the table'}. A secure sum has such noise, and needs a round."
    )


def _ends(ratios: Sequence[tuple[float, str]]) -> str:
    """The least and the largest of them, and where."""
    least, most = min(ratios), max(ratios)
    return f"{least[0]:.2g} ({least[1]}) to {most[0]:.2g} times ({most[1]})"
