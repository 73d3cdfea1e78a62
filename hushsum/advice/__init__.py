"""Advice before a budget is spent: the accuracy that a plan may be expected to have, and which size to take.

From the plan and public guesses alone; nothing here reads real records, and nothing costs privacy.
"""

from hushsum.advice.costs import Allowance, Costs, Guesses
from hushsum.advice.forecast import advise
from hushsum.advice.local import ReportAdvice, ReportSize, advise_reports
from hushsum.advice.ranges import AdviceRange, advise_range
from hushsum.advice.sketches import SketchChoice, choose_sketch
from hushsum.advice.values import Advice, Promise, Size, shown

__all__ = [
    "Advice",
    "AdviceRange",
    "Allowance",
    "Costs",
    "Guesses",
    "Promise",
    "ReportAdvice",
    "ReportSize",
    "Size",
    "SketchChoice",
    "advise",
    "advise_range",
    "advise_reports",
    "choose_sketch",
    "shown",
]
