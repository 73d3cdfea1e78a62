"""Advice before a budget is spent: the accuracy that a plan may be expected to have, and which size to take.

From the plan and public guesses alone; nothing here reads real records, and nothing costs privacy.
"""

from hushsum.advice.advising import advise
from hushsum.advice.costs import Allowance, Costs
from hushsum.advice.guesses import Guesses
from hushsum.advice.report_values import ReportAdvice, ReportSize
from hushsum.advice.reporting import advise_reports
from hushsum.advice.values import Advice, Promise, Size, shown

__all__ = [
    "Advice",
    "Allowance",
    "Costs",
    "Guesses",
    "Promise",
    "ReportAdvice",
    "ReportSize",
    "Size",
    "advise",
    "advise_reports",
    "shown",
]
