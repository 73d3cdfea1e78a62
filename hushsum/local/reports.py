"""What a report of a plan is: one integer for a row and a randomised output, and the randomiser that draws it.

A report is row · outputs + output, below R · outputs. Its row is uniform, whatever the record. Hashed: the output is
that of a randomiser for class · W + bucket. Fourier: rows are pairs, and an output is 2 · (0 cosine, 1 sine) + bit.

**On the device** each record becomes one randomised integer, and nothing else of it is sent. What is
sent never depends on a record but through its randomiser: as many reports as records came, in rows that are uniform
whatever the records are. A record that cannot be used (NaN, an empty set, an unknown label) still has its report,
uniform over all of them: else its absence would show.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.delta_sizes import ReportSizes
from hushsum.entropy import Entropy
from hushsum.errors import GuaranteeError
from hushsum.families import Hashed, Records
from hushsum.families.fourier import Fourier
from hushsum.noise.one_bit import OneBit
from hushsum.noise.random_words import uniform
from hushsum.noise.randomiser import RANDOMISERS, Randomiser
from hushsum.noise.validation import NOTHING
from hushsum.plan import Plan
from hushsum.usable_records import RecordProblems, read

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
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode {plan.privacy.mode!r}{form}: devices of this plan send no reports"
        )


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


def reports(plan: Plan, records: Any, labels: object, entropy: Entropy) -> tuple[Int64, RecordProblems]:
    """One report a record, in the order of the records (packing sorts them).

    Args:
        plan: Of reports.
        records: n of them, as :meth:`hushsum.Sketch.add` takes them.
        labels: n strings or integers where the plan has classes, else None. What is neither is an unusable label.
        entropy: Private randomness: each report is independent of all else.

    Returns:
        (n,) int64, each below R · outputs; and what was wrong with some of the records.

    Raises:
        RecordError: The array or the number of labels is wrong; nothing that one record decides.
        GuaranteeError: The plan's devices send no reports.
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    check_reports(plan)
    usable = read(plan, records, labels)
    if isinstance(plan.family, Fourier):
        return _bits(plan, plan.family, usable.accepted, usable.kept, entropy), usable.problems
    assert isinstance(plan.family, Hashed), "a plan of reports is refused for any other family"
    return _choices(plan, plan.family, usable.accepted, usable.classes, entropy), usable.problems


def _choices(plan: Plan, family: Hashed, accepted: Records, classes: Int64, entropy: Entropy) -> Int64:
    """Of buckets; ``classes`` (n,) is −1 where a record is not among the accepted ones."""
    randomiser, rows = choice_of(plan), uniform(family.rows, len(classes), entropy)
    if len(accepted) == len(classes):
        values = family.buckets_of(accepted, rows)
        if plan.classes:
            values += classes * family.buckets
    else:
        usable = classes >= 0
        values = np.full(len(classes), NOTHING, np.int64)
        values[usable] = classes[usable] * family.buckets + family.buckets_of(accepted, rows[usable])
    rows *= randomiser.outputs
    rows += randomiser.randomise(values, entropy)
    return rows


def _bits(plan: Plan, family: Fourier, accepted: Records, usable: Any, entropy: Entropy) -> Int64:
    """Of table entries: number 2 · pair + (0 cosine, 1 sine) is drawn uniformly."""
    features = uniform(2 * family.rows, len(usable), entropy)
    if len(accepted) == len(usable):
        entries = family.entries_of(accepted, features)
    else:
        entries = np.zeros(len(usable), np.int64)
        entries[usable] = family.entries_of(accepted, features[usable])
    features *= 2
    features += bit_of(plan).randomise(entries, entropy, ~usable)
    return features
