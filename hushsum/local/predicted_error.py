"""How large the errors of answers in local mode will be, in closed form, before any record is seen.

**Reports.** With z as in :mod:`hushsum.local.estimation`, an answer of n reports has the variance n·Var(z) + n²·C/R:
Var(z) is that of one report whose row, hash and response are all drawn, C what two records have in common because they
are hashed alike (:class:`hushsum.advice.forecast.Spread`). With s that a report supports the query's bucket, F = W/(W −
1), and a record that is

* far, rehashed: P(s) = q* + (p* − q*)/W. Of k-rr it is 1/W, and Var(z) = (λ − 1 + W)²/((λ − 1)²(W − 1));
* far, direct: P(s) = q*, and F = 1;
* near: P(s) = p*.

Where one class of several is rehashed, z = (s − s̄)·F/(p* − q*), s̄ the mean of the class's W supports. Of k-rr at most
one of them is supported, of a projective response two nearly independently.

**Fourier**: z = ±2·(peak/κ)·(λ + 1)/(λ − 1)·(cos or sin of the query's phase), whose square is ½ on average.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.local.reports import bit_of, check_reports, choice_of
from hushsum.noise.randomiser import Randomiser
from hushsum.plan import Plan


@dataclass(frozen=True)
class Setting:
    """What the variance of a report depends on.

    Attributes:
        hit: p*.
        miss: q*.
        width: W.
        classes: C.
        rehashed: Whether buckets are.
        exclusive: Whether a report supports one value at most (k-rr).
        square: Of fourier: the mean of z²; the rest is then not read.
    """

    hit: float
    miss: float
    width: int
    classes: int = 1
    rehashed: bool = True
    exclusive: bool = True
    square: float | None = None

    @classmethod
    def of(cls, randomiser: Randomiser, width: int, classes: int = 1, *, rehashed: bool = True) -> "Setting":
        """Of a randomiser of classes · width values."""
        exclusive = randomiser.outputs == randomiser.inputs
        return cls(float(randomiser.hit), float(randomiser.miss), width, classes, rehashed, exclusive)


def setting(plan: Plan) -> Setting:
    """Of a plan.

    Raises:
        GuaranteeError: The plan's devices send no reports.
    """
    check_reports(plan)
    if isinstance(plan.family, Fourier):
        weight = float(bit_of(plan).factor) / plan.family.scale
        return Setting(1.0, 0.0, 2, square=2 * weight * weight)
    assert isinstance(plan.family, Hashed), "a plan of reports is refused for any other family"
    classes = max(1, len(plan.classes))
    return Setting.of(choice_of(plan), plan.family.buckets, classes, rehashed=plan.family.rehashed)


def report_variance(of: Setting, *, near: float = 0.0, label: float | None = None) -> float:
    """Var(z): what one report adds to the variance of a kernel sum, in records².

    Args:
        of: The setting.
        near: The share of all records that are at the query, and of the class that is asked for; the rest are far.
        label: The share of all records that are of the class that is asked for; None: all classes are, together.
    """
    if of.square is not None:
        return of.square - near
    if label is None:
        return (1 - near) * _whole(of, far=True) + near * _whole(of, far=False)
    near_, other = min(near, label), 1 - max(near, label)
    own = (1 - near_ - other) * _of_class(of, member=True)
    return near_ * _near_of_class(of) + own + other * _of_class(of, member=False)


def answer_error(
    of: Setting, reports: int, *, near: float = 0.0, label: float | None = None, rows: int = 1, pairs: float = 0.0
) -> float:
    """The standard error of a kernel sum of so many reports, in records.

    Args:
        of: The setting.
        reports: n.
        near: See :func:`report_variance`.
        label: See :func:`report_variance`.
        rows: R.
        pairs: C of one row, see the module.
    """
    variance = report_variance(of, near=near, label=label)
    return math.sqrt(reports * variance + reports**2 * pairs / rows)


def best_width(ratio: Fraction, classes: int = 1) -> int:
    """The W of k-rr for which a far record, rehashed, adds the least variance: the integer at (λ − 1)/C + 2, or next.

    That of (λ − 1 + C·W)²/(W − 1), all classes or one; C = 1 gives e^ε + 1. A projective
    response errs hardly more the wider its rows are: it wants as many buckets as a central sketch.
    """
    ideal = float(ratio - 1) / classes + 2.0
    choices = [max(2, math.floor(ideal)), max(2, math.ceil(ideal))]
    return min(choices, key=lambda width: (float(ratio) - 1 + classes * width) ** 2 / (width - 1))


def _factor(of: Setting) -> float:
    stretch = of.width / (of.width - 1) if of.rehashed else 1.0
    return stretch / (of.hit - of.miss)


def _whole(of: Setting, *, far: bool) -> float:
    """Of all classes together, of which a record's bucket and the query's have one value each."""
    gap, others = of.hit - of.miss, of.classes - 1
    own = of.hit if not far else of.miss + (gap / of.width if of.rehashed else 0.0)
    if of.exclusive:
        chance = own + others * of.miss
        return chance * (1 - chance) * _factor(of) ** 2
    return (own * (1 - own) + others * of.miss * (1 - of.miss)) * _factor(of) ** 2


def _of_class(of: Setting, *, member: bool) -> float:
    """Of one class, a far record: its W supports are all alike, on average over the hash."""
    gap = of.hit - of.miss
    chance = of.miss + (gap / of.width if member and of.rehashed else 0.0)
    if not of.rehashed:
        return chance * (1 - chance) * _factor(of) ** 2
    both = 0.0 if of.exclusive else chance * chance
    return (1 - 1 / of.width) * (chance - both) * _factor(of) ** 2


def _near_of_class(of: Setting) -> float:
    """Of one class, a record at the query: E[(s − s̄)²]·F²/(p* − q*)² − 1."""
    if not of.rehashed:
        return of.hit * (1 - of.hit) * _factor(of) ** 2
    others, miss = of.width - 1, of.miss
    cross = 0.0 if of.exclusive else others * of.hit * miss
    squares = others * miss + (0.0 if of.exclusive else (others * miss) ** 2 - others * miss**2)
    moment = (others**2 * of.hit - 2 * others * cross + squares) / of.width**2
    return moment * _factor(of) ** 2 - 1.0
