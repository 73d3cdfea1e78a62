"""How the clients of a run in secure mode fit into cohorts."""

from fractions import Fraction
from typing import Final

from hushsum.errors import PlanError
from hushsum.privacy.cohort import Cohort
from simulator.errors import SettingsConflictError

_USUAL: Final = 100  # the plan's own default
_DROPOUT_MIN: Final = Fraction(1, 10)
_DROPOUT_MAX: Final = Fraction(1, 2)
# Whoever vanishes while it waits is missing in the last cohort, which then starts after this wait. Long enough for a
# whole fleet to come: a cohort that starts early leaves too few for the last.
_WAIT_MS: Final = 8000


def fit(clients: int, *, size: int | None, dropout_rate: float) -> Cohort:
    """Cohorts of about a hundred, or of the size that was asked for, that can lose those that are to vanish.

    Args:
        clients: That take part.
        size: N; None chooses.
        dropout_rate: The share of the clients that will vanish.

    Raises:
        SettingsConflictError: Clients would be left over, or no round of this size can lose as many as are to vanish.
    """
    cohorts = max(1, round(clients / (size or _USUAL)))
    each = size or -(-clients // cohorts)
    lost = _losses(each, clients, dropout_rate)
    dropout = max(_DROPOUT_MIN, Fraction(lost, each))
    if dropout >= _DROPOUT_MAX:
        raise SettingsConflictError(_too_many(each, clients, dropout_rate, lost, "none goes on without half of them"))
    try:
        return Cohort(size=each, dropout=_written(dropout, each), wait_ms=_WAIT_MS)
    except PlanError as error:
        raise SettingsConflictError(_too_many(each, clients, dropout_rate, lost, str(error))) from error


def require_room(cohort: Cohort, clients: int, dropout_rate: float) -> None:
    """Refuses a run in which not every client can be in a sum.

    Raises:
        SettingsConflictError: A round would most likely lose more members than it can, or the plan states a pool, of
            which the last clients are in no cohort.
    """
    if cohort.pool:
        raise SettingsConflictError(
            f"the plan draws cohorts from a pool of {cohort.pool}, so that up to {cohort.pool - 1} clients of a window "
            "are in none, and a run compares the release with all of them: leave corrupt_clients and pool out of the "
            "plan (hushsum plan advise says what they cost)"
        )
    lost, most = _losses(cohort.size, clients, dropout_rate), cohort.size - cohort.survivors_min
    if lost > most:
        raise SettingsConflictError(
            f"a round of the plan's {cohort.size} members can lose {most}; with {clients} clients and --dropout-rate "
            f"{dropout_rate:g} it could lose {lost}: raise the plan's privacy.secure.dropout, or ask for fewer dropouts"
        )


def tolerated(cohort: int, cohorts: int, clients: int, vanishing: int) -> int:
    """How many members a round must be able to lose, so that a run comes to its end but once in a million.

    Cohorts are formed as clients arrive, so one cohort may get more than its part of those that vanish: their number in
    it is hypergeometric. The last cohort is also short of what fills no cohort.

    Args:
        cohort: N.
        cohorts: How many there are.
        clients: Of them all.
        vanishing: Of these.
    """
    from scipy.stats import hypergeom

    worst = int(hypergeom(clients, vanishing, min(cohort, clients)).isf(1e-6 / cohorts)) if vanishing else 0
    return min(vanishing, worst) + max(0, cohort * cohorts - clients)


def _too_many(size: int, clients: int, dropout_rate: float, lost: int, why: str) -> str:
    return (
        f"--dropout-rate {dropout_rate:g}: cohorts of {size} of {clients} clients could miss {lost} each ({why}); ask "
        "for fewer dropouts, or for another --cohort"
    )


def _losses(size: int, clients: int, dropout_rate: float) -> int:
    """How many members a cohort can miss but once in a million runs, those that vanish and those that never were.

    Raises:
        SettingsConflictError: Clients would be left over that fill no cohort.
    """
    cohorts = -(-clients // size)
    if 2 * (missing := cohorts * size - clients) >= size:
        raise SettingsConflictError(
            f"{clients} clients do not fit into cohorts of {size}: the last {size - missing} fill none; choose "
            "--cohort so that it divides --clients"
        )
    return tolerated(size, cohorts, clients, round(dropout_rate * clients))


def _written(dropout: Fraction, size: int) -> Fraction:
    """A short decimal that leaves the same whole number of members."""
    members = dropout.numerator * size // dropout.denominator
    for digits in range(1, 7):
        short = Fraction(-(-members * 10**digits // size), 10**digits)
        if short.numerator * size // short.denominator == members:
            return short
    raise AssertionError("a cohort of 10,000 needs four digits")
