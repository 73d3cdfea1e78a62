"""What a loss of one unit and relation is worth in another: every pair, component by component."""

from fractions import Fraction
from itertools import product

from hushsum.privacy.relations import RELATIONS, UNITS, Loss, implied

LOSS = Loss(Fraction(1, 2), Fraction(1, 3), Fraction(1, 8), Fraction(0), Fraction(1, 2**37))
#: Twice epsilon is four times its half square; a failure is one event.
TWO_STEPS = Loss(Fraction(1), Fraction(4, 3), Fraction(1, 2), Fraction(0), Fraction(1, 2**37))
PAIRS = [*product(UNITS, RELATIONS)]
IN_FULL = {
    *((pair, pair) for pair in PAIRS),
    (("client", "replace"), ("record", "replace")),
}
TWICE = {
    *(((unit, relation), (unit, "replace")) for unit, relation in product(UNITS, ("add/remove", "zero-out"))),
    (("client", "add/remove"), ("record", "add/remove")),
    (("client", "add/remove"), ("record", "replace")),
    (("client", "zero-out"), ("record", "zero-out")),
    (("client", "zero-out"), ("record", "replace")),
}


def test_a_loss_counts_in_full_or_as_two_steps_or_says_nothing() -> None:
    for spent in PAIRS:
        for total in PAIRS:
            worth = implied(LOSS, unit=spent[0], relation=spent[1], for_unit=total[0], for_relation=total[1])
            assert worth == (LOSS if (spent, total) in IN_FULL else TWO_STEPS if (spent, total) in TWICE else None)
