"""What a report of a plan is: one integer for a row and a randomised output, and the randomiser that draws it.

A report is row · outputs + output, below R · outputs. Its row is uniform, whatever the record. Hashed: the output is
that of a randomiser for class · W + bucket. Fourier: rows are pairs, and an output is 2 · (0 cosine, 1 sine) + bit.
"""

from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hushsum.delta_sizes import ReportSizes
from hushsum.errors import GuaranteeError
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.noise.one_bit import OneBit
from hushsum.noise.randomiser import RANDOMISERS, Randomiser
from hushsum.plan import Plan

Int64 = npt.NDArray[np.int64]


def sizes_of(plan: Plan) -> ReportSizes:
    """The numbers of a plan's reports: R, outputs, the bytes of one.

    Raises:
        GuaranteeError: The plan's devices send no reports.
    """
    check_reports(plan)
    assert plan.report_sizes is not None, "a plan of reports says how large they are"
    return plan.report_sizes


def check_reports(plan: Plan) -> None:
    """Refuses a plan whose devices send no reports.

    Raises:
        GuaranteeError: With its mode.
    """
    if plan.privacy.local is None or not plan.privacy.local.reports:
        form = "" if plan.privacy.local is None else f" and form {plan.privacy.local.form!r}"
        raise GuaranteeError(f"plan {plan.name!r} is of mode {plan.privacy.mode!r}{form}: its devices send no reports")


def choice_of(plan: Plan) -> Randomiser:
    """The randomiser of (class, bucket), of a plan of the hashed family."""
    assert isinstance(plan.family, Hashed), "only buckets are randomised as one of so many values"
    inputs = max(1, len(plan.classes)) * plan.family.buckets
    mechanism = plan.privacy.mechanism
    return _choice(mechanism.name, mechanism.scale, inputs, mechanism.field)


@lru_cache(maxsize=16)
def _choice(name: str, ratio: Fraction, inputs: int, field: int | None) -> Randomiser:
    return RANDOMISERS[name](ratio, inputs, field)


def bit_of(plan: Plan) -> OneBit:
    """The randomiser of a table entry, of a plan of the fourier family."""
    assert isinstance(plan.family, Fourier), "only entries of a table are randomised to one bit"
    return OneBit(plan.privacy.mechanism.scale, plan.family.peak)
