"""The reference of kernels: formula, bandwidth, families, sensitivity, and a curve that the code computes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.families.limits import FAMILIES_OF, KERNELS_OF_SETS
from hushsum.plan import Plan

Floats = npt.NDArray[np.float64]
_ROWS: Final = 512
_POINTS: Final = 121
_EDGES: Final = (34, 410, 12, 166)  # of the plot: left, right, roof, floor


@dataclass(frozen=True)
class Kernel:
    """What the page says of a kernel.

    Attributes:
        formula: LaTeX.
        bandwidth: Meaning of its bandwidth.
        curve: Its value at points of the axis.
        axis: What the axis shows.
        ticks: Where it is labelled: from its first to its last.
    """

    formula: str
    bandwidth: str
    curve: Callable[[Floats], Floats]
    axis: str = "distance in bandwidths"
    ticks: tuple[float, ...] = (0, 1, 2, 3, 4)


def _line(values: Floats) -> Floats:
    return values.reshape(-1, 1)


_ORIGIN: Final = np.zeros((1, 1))
#: By name.
KERNELS: Final = {
    "euclidean": Kernel(
        r"k(x, y) = \operatorname{erf}\frac{w}{\sqrt{2}\,c} - \sqrt{\frac{2}{\pi}}\,\frac{c}{w}"
        r"\left(1 - e^{-w^2 / 2c^2}\right), \quad c = \lVert x - y \rVert_2",
        "w, the width of the intervals of the hash. At a distance of one bandwidth the kernel is 0.37; for large "
        "distances it falls with 1 over the distance.",
        lambda distance: kernels.euclidean(distance, 1.0),
    ),
    "manhattan": Kernel(
        r"k(x, y) = \frac{2}{\pi} \arctan \frac{w}{c} - \frac{c}{\pi w} \ln\left(1 + \frac{w^2}{c^2}\right), \quad "
        r"c = \lVert x - y \rVert_1",
        "w, the width of the intervals of the hash.",
        lambda distance: kernels.manhattan(distance, 1.0),
    ),
    "laplacian": Kernel(
        r"k(x, y) = e^{-\lVert x - y \rVert_1 / \sigma}",
        "σ: at a distance of one bandwidth the kernel is 1/e = 0.37.",
        lambda distance: kernels.laplacian(distance, 1.0),
    ),
    "angular": Kernel(
        r"k(x, y) = 1 - \frac{\theta}{\pi}, \quad \theta = \angle(x, y)",
        "It has none: lengths do not matter. `power` narrows it.",
        lambda angle: kernels.angular(np.radians(angle)),
        "angle in degrees",
        (0, 45, 90, 135, 180),
    ),
    "gaussian": Kernel(
        r"k(x, y) = e^{-\lVert x - y \rVert_2^2 / \sigma^2}",
        "σ: at a distance of one bandwidth the kernel is 1/e = 0.37. It is √2 times the standard deviation of a "
        "normal curve.",
        lambda distance: kernels.gaussian(distance, 1.0),
    ),
    "cauchy": Kernel(
        r"k(x, y) = \prod_j \frac{1}{1 + (x_j - y_j)^2 / \sigma^2}",
        "σ: at a distance of one bandwidth along one column the kernel is 1/2.",
        lambda distance: kernels.cauchy(_line(distance), _ORIGIN, 1.0)[:, 0],
        "distance along one column, in bandwidths",
    ),
    "exponential-p": Kernel(
        r"k(x, y) = e^{-\sum_j |x_j - y_j|^p / \sigma^p}, \quad 1 \le p \le 2",
        "σ: at a distance of one bandwidth along one column the kernel is 1/e = 0.37. The curve has p = 1.5.",
        lambda distance: kernels.exponential_p(_line(distance), _ORIGIN, 1.0, 1.5)[:, 0],
        "distance along one column, in bandwidths",
    ),
    "jaccard": Kernel(
        r"k(A, B) = \frac{|A \cap B|}{|A \cup B|}",
        "It has none. `power` narrows it.",
        lambda share: share,
        "share of the ids of both sets that they have in common",
        (0, 0.25, 0.5, 0.75, 1),
    ),
}


def kernel_pages() -> str:
    """Markdown: a section for each kernel."""
    return "\n".join(line for name in (*FAMILIES_OF, *KERNELS_OF_SETS) for line in _section(name))


def _section(name: str) -> Iterator[str]:
    kernel, families = KERNELS[name], FAMILIES_OF.get(name, ("hashed",))
    yield f"## `{name}`\n"
    yield f"$$\n{kernel.formula}\n$$\n"
    yield f"**Bandwidth**: {kernel.bandwidth}\n"
    yield "| family | L1 | L2² | L∞ |\n|---|---|---|---|"
    for family in families:
        at = sensitivity(family, name)
        yield f"| `{family}` | {at.l1:,} | {at.l2_squared:,} | {at.linf:,} |"
    yield f"\n{_picture(name, kernel)}\n"


def sensitivity(family: str, kernel: str) -> Any:
    """Of one record under a small plan with 512 rows; of ``hermite`` with every other key at its default."""
    sketch: dict[str, object] = {"family": family, "kernel": kernel}
    if family != "hermite":
        sketch["rows"] = _ROWS
    if kernel not in {"angular", "jaccard"}:
        sketch["bandwidth"] = 2
    if family == "hashed":
        sketch["buckets"] = 1024
    if kernel == "exponential-p":
        sketch["exponent"] = "1.5"
    record: dict[str, object] = {"dim": 2, "lower": [0, 0], "upper": [10, 10]}
    if kernel in KERNELS_OF_SETS:
        record = {"kind": "set"}
    return Plan(
        name=kernel, record=record, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 1}
    ).family.sensitivity


def _picture(name: str, kernel: Kernel) -> str:
    """An SVG in the page, in the colours of its text."""
    left, right, roof, floor = _EDGES
    first, last = kernel.ticks[0], kernel.ticks[-1]

    def across(at: float) -> float:
        return left + (at - first) / (last - first) * (right - left)

    at = np.linspace(first, last, _POINTS)
    values = zip(at.tolist(), np.asarray(kernel.curve(at), np.float64).tolist(), strict=True)
    points = " ".join(f"{across(x):.1f},{floor - y * (floor - roof):.1f}" for x, y in values)
    parts = [
        f'<path d="M{left},{roof} V{floor} H{right}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>',
        *(_text(across(tick), floor + 14, f"{tick:g}") for tick in kernel.ticks),
        *(_text(left - 12, y + 4, label) for y, label in ((floor, "0"), (roof, "1"))),
        _text((left + right) / 2, floor + 30, kernel.axis),
        f'<polyline points="{points}" fill="none" stroke="var(--color-brand-primary)" stroke-width="2"/>',
    ]
    return (
        f'<svg class="kernel" viewBox="0 0 {right + 10} {floor + 34}" width="{right + 10}" font-size="11" '
        f'fill="currentColor" role="img" aria-label="The {name} kernel by {kernel.axis}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'
