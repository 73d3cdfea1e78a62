"""Advice before a budget is spent: the accuracy that a plan may be expected to have, and which size to take.

From the plan and public guesses alone; nothing here reads real records, and nothing costs privacy.
"""

from hushsum.advice.advising import advise
from hushsum.advice.costs import Allowance, Costs
from hushsum.advice.values import Advice, Guesses, Promise, Size, shown

__all__ = ["Advice", "Allowance", "Costs", "Guesses", "Promise", "Size", "advise", "shown"]
