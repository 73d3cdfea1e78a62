"""A plan's promise in plain words: what it collects, and how sure an observer can be at most."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from hushsum.plan import Plan
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.relations import CLIENT, Cost
from hushsum.privacy.statement import belief_after, cost_text, fact_text, percent_text

_BEFORE: Final = (Fraction(1, 100), Fraction(1, 10), Fraction(1, 2))


class Promise(NamedTuple):
    """What a plan promises.

    Attributes:
        subject: Of what the promise is: one release, or a whole sequence.
        fact: What an observer may guess, such as "one record is included".
        odds: Beliefs before in percent, and the most that each can become.
        short: ε and δ.
        except_for: With δ > 0, the probability with which that may fail; empty otherwise.
        statement: The guarantee, exactly.
        often: What holds for several releases; empty where each unit is in one.
    """

    subject: str
    fact: str
    odds: tuple[tuple[str, str], ...]
    short: str
    except_for: str
    statement: str
    often: str


def promise_of(plan: Plan) -> Promise:
    """The promise of a plan, without what was charged for it."""
    guarantee = plan.guarantee
    odds = tuple((percent_text(before), percent_text(belief_after(guarantee.epsilon, before))) for before in _BEFORE)
    except_for = numeral(guarantee.delta, up=True) if guarantee.delta else ""
    total = numeral(plan.privacy.total_epsilon, up=False)
    often = ""
    if guarantee.unit == CLIENT and guarantee.horizon is None:
        often = f"A client is in several windows: all releases together spend at most ε = {total}."
    return Promise(
        "One release" if guarantee.horizon is None else "All cumulative releases of its sequence together",
        fact_text(guarantee.unit, guarantee.relation),
        odds,
        cost_text(Cost(guarantee.epsilon, guarantee.delta)),
        except_for,
        guarantee.statement(accounted=None, windowed=True),
        often,
    )


def facts_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names and values: what is collected, and how."""
    for name, value in plan.summary():
        if value:
            yield name.replace("epsilon", "ε"), value.replace("epsilon", "ε").replace("delta", "δ")
