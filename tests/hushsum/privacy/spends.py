"""Spends for the tests of the ledger, by what they lose."""

from fractions import Fraction

from hushsum.privacy.events import ClaimedEvent, Event, Spend
from hushsum.sensitivity import Sensitivity

ONE = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)
UNIT = Sensitivity(l0=10, l1=12, l2_squared=16, linf=3)


def spend(
    epsilon: int | Fraction = 1,
    *,
    plan: int = 1,
    window: int | None = None,
    unit: str = "record",
    relation: str = "add/remove",
) -> Spend:
    """A pure one that implies ½ε² of zCDP, for it moves one counter alone. In process, unless it has a window."""
    return of_events(_laplace(Fraction(epsilon)), plan=plan, window=window, unit=unit, relation=relation)


def gaussian(
    rho: int | Fraction = Fraction(1, 10),
    *,
    plan: int = 1,
    window: int | None = None,
    unit: str = "record",
    relation: str = "add/remove",
) -> Spend:
    """One of ρ-zCDP."""
    return of_events(_gaussian(Fraction(rho)), plan=plan, window=window, unit=unit, relation=relation)


def claimed(
    epsilon: int | Fraction,
    delta: Fraction,
    *,
    plan: int = 1,
    window: int | None = None,
    unit: str = "record",
    relation: str = "add/remove",
) -> Spend:
    """One as the first version of the ledger wrote it: its (ε, δ) alone."""
    event = ClaimedEvent("discrete-laplace", Fraction(epsilon), delta)
    return of_events(event, plan=plan, window=window, unit=unit, relation=relation)


def with_test(rho: Fraction, epsilon: Fraction, *, window: int, unit: str = "record", withheld: bool = False) -> Spend:
    """A window whose number of clients is tested at ε, and whose counters lose ρ unless it is withheld."""
    test = _laplace(epsilon)
    events = (test,) if withheld else (test, _gaussian(rho))
    return of_events(*events, plan=1, window=window, unit=unit, relation="add/remove")


def of_events(
    *events: Event | ClaimedEvent, plan: int, window: int | None, unit: str, relation: str, population: str = ""
) -> Spend:
    """In process, unless it has a window."""
    return Spend(
        population=population,
        plan_id=f"{plan:064x}",
        kind="in-process" if window is None else "tumbling",
        window=window,
        unit=unit,
        relation=relation,
        mode="central",
        events=events,  # type: ignore[arg-type]  # of one type, as every caller gives them
    )


def _laplace(epsilon: Fraction) -> Event:
    return Event("discrete-laplace", 1 / epsilon, ONE, epsilon)


def _gaussian(rho: Fraction) -> Event:
    return Event("discrete-gaussian", UNIT.l2_squared / (2 * rho), UNIT, Fraction(0))
