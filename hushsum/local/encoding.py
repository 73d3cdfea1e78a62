"""Records to reports, on the device: one randomised integer a record, and nothing else of it (MATH: local mode).

What is sent never depends on a record but through its randomiser: as many reports as records came, in rows that are
uniform whatever the records are. A record that cannot be used (NaN, an empty set, an unknown label) still has its
report, uniform over all of them: else its absence would show.
"""

from typing import Any

import numpy as np

from hushsum.collection import label_list
from hushsum.entropy import Entropy
from hushsum.families import Hashed, Records
from hushsum.families.fourier import Fourier
from hushsum.local.layout import Int64, bit_of, check_reports, choice_of
from hushsum.noise.checks import NOTHING
from hushsum.noise.uniform import uniform
from hushsum.plan import Plan


def reports(plan: Plan, records: Any, labels: object, entropy: Entropy) -> tuple[Int64, int]:
    """One report a record, in the order of the records (packing sorts them).

    Args:
        plan: Of reports.
        records: n of them, as :meth:`hushsum.Sketch.add` takes them.
        labels: n strings where the plan has classes, else None. What is no string is an unusable label.
        entropy: Private randomness: each report is independent of all else.

    Returns:
        (n,) int64, each below R · outputs; and how many of the records could not be used.

    Raises:
        RecordError: The array or the number of labels is wrong; nothing that one record decides.
        GuaranteeError: The plan's devices send no reports.
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    check_reports(plan)
    accepted, kept = plan.family.accept(records)
    if labels is not None:
        labels = [label if isinstance(label, str) else None for label in label_list(labels)]
    classes = plan.collection.class_indices(labels, len(kept))
    if len(accepted) < len(kept):
        classes[~kept] = NOTHING
    if plan.classes:
        accepted = accepted[classes[kept] >= 0]
    dropped = len(kept) - len(accepted)
    if isinstance(plan.family, Fourier):
        return _bits(plan, plan.family, accepted, classes >= 0, entropy), dropped
    assert isinstance(plan.family, Hashed), "a plan of reports is refused for any other family"
    return _choices(plan, plan.family, accepted, classes, entropy), dropped


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
