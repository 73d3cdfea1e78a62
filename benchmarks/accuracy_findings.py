"""What the measured numbers say, in words that change with them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.accuracy_curves import NO_NOISE
from benchmarks.accuracy_peers import PEERS, Peer
from benchmarks.accuracy_subjects import ABSOLUTE, RELATIVE
from benchmarks.accuracy_tables import best, matching, number, ratio_of
from benchmarks.report import Row

_INDEPENDENT: Final = "hashed euclidean, independent"
_SOBOL: Final = "hashed euclidean, sobol"
#: Mean relative errors on skin without noise that a prototype saw: independent rows, and one Sobol set of all rows.
_PROTOTYPE: Final = {128: ("0.10", "0.07"), 1024: ("0.034 to 0.038", "0.020 to 0.022")}
_NOMINAL: Final = 0.95


def of_subject(data: str, rows: Sequence[Row]) -> str:
    """Below the table of one data set; empty where there is nothing to say."""
    some = matching(rows, part="curve", data=data)
    stars = matching(rows, part="best rows", data=data)
    said = [say(some) for say in _SAID.get(data, ())]
    said.append(_best_rows(some, stars) if data == "skin" else "")
    return "".join(f"\n{one}\n" for one in said if one)


def of_draws(rows: Sequence[Row]) -> str:
    """What the comparison of draws says about the default of new plans."""
    quiet = matching(rows, epsilon=NO_NOISE)
    few, many = _ratios(quiet, dims=range(1, 21), size=128), _ratios(quiet, dims=range(1, 21), size=1024)
    beyond = _ratios(quiet, dims=range(21, 1000), size=1024)
    lines = ["", _default(few, many, beyond)]
    for size, (independent, one_set) in _PROTOTYPE.items():
        here = {str(row["draws"]): row for row in matching(quiet, data="skin", family="hashed euclidean", size=size)}
        if {"independent", "sobol", "sobol, 2 sets"} <= here.keys():
            found = [number(float(here[kind][RELATIVE])) for kind in ("independent", "sobol", "sobol, 2 sets")]
            lines.append(
                f"A prototype with **one** Sobol set saw {independent} → {one_set} on skin at R = {size:,}; here "
                f"{found[0]} → {found[1]} with 8 sets and {found[2]} with 2. " + _verdict(here, size)
            )
    return "\n".join(lines) + "\n"


def of_coverage(rows: Sequence[Row]) -> str:
    """What the coverage says."""
    said = []
    for kind, name in (
        ("independent", "Independent rows"),
        ("sobol", "Sobol rows (8 sets, Student's t with 7 degrees)"),
    ):
        quiet, noised = (
            [float(row["coverage"]) for row in matching(rows, draws=kind) if (row["epsilon"] == NO_NOISE) == still]
            for still in (True, False)
        )
        if quiet and noised:
            said.append(
                f"{name}: {_mean(quiet):.3f} on average without noise ({min(quiet):.2f} to {max(quiet):.2f}), "
                f"{_mean(noised):.3f} with ε = 0.1."
            )
    said.append(
        "The prototype's bars, from the variance of the rows of one set, covered 0.98 to 0.996 with Sobol rows and 0.90 to "
        "0.91 with independent ones: several sets and Student's t put that right. What is left below 0.95 is skewness: a "
        "row's answer is large in few rows, so that sketches of few rows that err low also state too short a bar."
    )
    return "\n" + " ".join(said) + "\n"


def of_regression(rows: Sequence[Row]) -> str:
    """What is kept of least squares, and where nothing is."""
    slope = {str(row["form"]): row for row in matching(rows, data="slope", epsilon=1.0)}
    said = ""
    if {"inner", "orthogonal"} <= slope.keys():
        inner, other = (float(slope[form]["first coefficient"]) for form in ("inner", "orthogonal"))
        said = (
            f"The slope test (true slope 0.5, ε = 1): {inner:.2f} with the inner form and {other:.2f} with the orthogonal "
            "one, which fits records divided by their lengths. "
        )
    if naval := matching(rows, data="naval", epsilon=NO_NOISE):
        most = max(float(row["R²"]) for row in naval)
        said += (
            f"**Naval is a miss**: least squares explains {float(naval[0]['R² of least squares']):.2f} of the variance, a "
            f"sketch {most:.2f} even without noise. Its columns are almost copies of each other; what predicts lies in "
            "directions with a thousandth of the variance of the others, far below the hashing error of the sums."
        )
    return f"\n{said}\n" if said else ""


def closing(rows: Sequence[Row]) -> str:
    """Where results miss the peers, and why."""
    missed = list(_missed(rows))
    listed = "\n".join(f"- {one}" for one in missed) or "- Nowhere at equal ε in this run."
    return f"""## Where this misses its peers

{listed}

All of it is pure ε, the only mechanism of this version: its noise in an answer, √(2R)/ε, grows with the rows, so that
every size is a compromise. With δ > 0 it will not grow: the figures of a prototype with δ = 10⁻⁶ (skin ≈ 0.06, 0.02 and
0.02 at ε = 0.01, 0.1 and 1; taxi 0.0042, 0.0019 and 0.0010 at ε = 0.02, 0.05 and 0.2) are for then, and nothing here claims
them. The count counter takes 5 % of every ε, which the peers' figures do not pay.
"""


def _skin(rows: Sequence[Row]) -> str:
    peer = next(peer for peer in PEERS if peer.data == "skin")
    lines = []
    for label in (_INDEPENDENT, _SOBOL):
        errors = [best(matching(rows, sketch=label, epsilon=epsilon), RELATIVE) for epsilon in peer.errors]
        lines.append(" / ".join(number(float(row[RELATIVE])) for row in errors if row))
    return (
        f"RACE with honest noise, best of three sizes, had {' / '.join(f'{e:g}' for e in peer.errors.values())} at "
        f"ε = {' / '.join(f'{e:g}' for e in peer.errors)}; here independent rows come to {lines[0]} and Sobol rows to "
        f"{lines[1]}. The cells and the other kernels answer other questions: their sums are smaller where the data is "
        "thin, and a relative error is then mostly noise."
    )


def _taxi(rows: Sequence[Row]) -> str:
    said = []
    for label, name in (("fourier gaussian, independent", "LSQ-RFF"), ("hermite gaussian", "LSQ-FGT")):
        peer = next(peer for peer in PEERS if peer.label.startswith(f"peer: {name}"))
        found = [best(matching(rows, sketch=label, epsilon=epsilon), ABSOLUTE) for epsilon in peer.errors]
        if all(found):
            ours = " / ".join(number(float(row[ABSOLUTE])) for row in found if row)
            theirs = " / ".join(f"{error:g}" for error in peer.errors.values())
            said.append(f"{label.split(',')[0]} {ours}, {name} {theirs}")
    return f"At ε = 0.02 / 0.05 / 0.2, the mean absolute error of the KDE: {'; '.join(said)}." if said else ""


def _best_rows(rows: Sequence[Row], stars: Sequence[Row]) -> str:
    said = []
    for star in matching(stars, sketch=_INDEPENDENT):
        least = best(matching(rows, sketch=_INDEPENDENT, epsilon=star["epsilon"]), RELATIVE)
        if least is not None:
            said.append(f"ε = {star['epsilon']:g}: {int(star['rows']):,} ({int(least['size']):,})")
    return (
        f"R\\* by ε, and the best size tried in brackets: {'; '.join(said)}. R\\* is too large by a factor of several: a "
        "row's variance is at most f̃², but in such data far less."
    )


def _default(few: Sequence[float], many: Sequence[float], beyond: Sequence[float]) -> str:
    if not few or not many:
        return ""
    pays = _mean(many) < 0.95 and _mean(few) < 1.05
    said = (
        f"**Sobol rows {'are' if pays else 'are not'} the better default for new plans with d ≤ 20**: their error is on "
        f"average {_mean(many):.2f} times that of independent rows at 1,024 rows ({min(many):.2f} to {max(many):.2f}) and "
        f"{_mean(few):.2f} times at 128 ({min(few):.2f} to {max(few):.2f})"
    )
    if beyond:
        said += (
            f"; at d = 54 {_mean(beyond):.2f} times ({min(beyond):.2f} to {max(beyond):.2f}: ten columns carry nearly all of "
            "that data's distances, so this is no measure of 54 dimensions)"
        )
    return said + ". The gain grows with the points of a set, and so with the rows.\n"


def _verdict(here: dict[str, Row], size: int) -> str:
    ratio = ratio_of(here["sobol, 2 sets"], here["independent"])
    expected = 0.7 if size == 128 else 0.58
    assert ratio is not None, "both are there"
    if ratio <= expected + 0.1:
        return "The prototype's gain is confirmed."
    return f"The prototype's gain (a factor of about {expected:g}) is confirmed in part: {ratio:.2f}."


def _missed(rows: Sequence[Row]) -> Iterable[str]:
    for peer in PEERS:
        metric = RELATIVE if peer.data == "skin" else ABSOLUTE
        rivals = [row for row in matching(rows, part="curve", data=peer.data) if _is_rival(row, peer)]
        for epsilon, theirs in peer.errors.items():
            ours = best(matching(rivals, epsilon=epsilon), metric)
            if ours is not None and float(ours[metric]) > theirs:
                name = peer.label.removeprefix("peer: ")
                found = number(float(ours[metric]))
                yield f"{peer.data}, ε = {epsilon:g}: {ours['sketch']} {found}, {name} {theirs:g}."


def _is_rival(row: Row, peer: Peer) -> bool:
    return str(row["sketch"]).startswith(_RIVALS[peer.label])


def _ratios(rows: Sequence[Row], *, dims: range, size: int) -> list[float]:
    found = []
    for data, family in dict.fromkeys((row["data"], row["family"]) for row in rows if row["d"] in dims):
        some = {str(row["draws"]): row for row in matching(rows, data=data, family=family, size=size)}
        ratio = ratio_of(some.get("sobol"), some.get("independent"))
        if ratio is not None:
            found.append(ratio)
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_RIVALS: Final = {
    "peer: RACE with honest noise": "hashed euclidean",
    "peer: LSQ-RFF, its code": "fourier gaussian",
    "peer: LSQ-FGT, its code": "hermite gaussian",
}
_SAID: Final[dict[str, tuple[Callable[[Sequence[Row]], str], ...]]] = {"skin": (_skin,), "taxi": (_taxi,)}
