"""What an outcome of a plan spends: its mechanisms, with parameters that were fixed before any data was seen."""

from fractions import Fraction
from math import prod
from typing import Final, Protocol

from hushsum.errors import GuaranteeError
from hushsum.privacy.events import CUMULATIVE, IN_PROCESS, ONE_REPORT, TUMBLING, Event, Shares, Spend
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.mechanisms import DISCRETE_LAPLACE
from hushsum.privacy.spec import PrivacySpec
from hushsum.sensitivity import Sensitivity

_ONE_CLIENT: Final = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)


class Sketched(Protocol):
    """What sketches the records of a plan."""

    @property
    def sensitivity(self) -> Sensitivity:
        """Of one record, without the count counter."""
        ...


class Promising(Protocol):
    """A plan, as far as a spend goes."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    @property
    def hex_id(self) -> str:
        """64 hexadecimal digits."""
        ...

    @property
    def privacy(self) -> PrivacySpec:
        """What it promises."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Of one release."""
        ...

    @property
    def family(self) -> Sketched:
        """Of its sketch."""
        ...

    @property
    def counters_shape(self) -> tuple[int, ...]:
        """(classes, ...)."""
        ...


def spend_of(plan: Promising, *, kind: str, window: int | None, withheld: bool = False, entered: bool = True) -> Spend:
    """What one release of a plan spends, or one window that is withheld.

    Args:
        plan: Its parameters are the spend's; they were fixed before any data was seen.
        kind: ``tumbling`` (the counters, and the plan's test of the number of clients), ``cumulative`` (a plan's whole
            sequence, of no window) or ``in-process`` (no test).
        window: Index of the window; None without one.
        withheld: The test alone, for the counters were never drawn. In mode
            ``local`` as much as a release: what devices sent is spent, whatever comes of it.
        entered: False: nobody came to this window of a plan of mode ``secure`` or ``local``, so that nothing is spent.

    Raises:
        GuaranteeError: A plan of mode ``secure``, whose windows are neither withheld nor released without a window; or
            one whose clients submit noised counters, which are of a window.
    """
    privacy, mechanism, claim = plan.privacy, plan.privacy.mechanism, plan.privacy.claim
    if (kind == CUMULATIVE) != (privacy.cumulation is not None):
        of = "cumulative releases, which are paid for together" if privacy.cumulation else "tumbling windows"
        if kind == IN_PROCESS:
            raise GuaranteeError(
                f"plan {plan.name!r} is of {of}: `hushsum release make` makes no cumulative releases: use `hushsum "
                'serve`, or window.release = "tumbling"'
            )
        raise GuaranteeError(f"plan {plan.name!r} is of {of}: it has no release of kind {kind!r}")
    by_clients = privacy.cohort is not None or privacy.local is not None
    if privacy.cohort is not None and (withheld or kind != TUMBLING):
        refuse_drawn_by_clients(plan)
    if privacy.is_silo and kind != TUMBLING:
        refuse_drawn_by_clients(plan)
    events = []
    if kind == TUMBLING and mechanism.clients_scale is not None:
        # One unit changes the number of clients by at most one.
        events.append(Event(DISCRETE_LAPLACE, mechanism.clients_scale, _ONE_CLIENT, claim.clients_epsilon))
    if entered if by_clients else not withheld:
        events.append(_event(plan))
    return Spend(
        population=privacy.population,
        plan_id=plan.hex_id,
        kind=kind,
        window=window,
        unit=plan.guarantee.unit,
        relation=plan.guarantee.relation,
        mode=plan.guarantee.mode,
        events=tuple(events),
    )


def refuse_drawn_by_clients(plan: Promising) -> None:
    """Refuses a plan whose exact counters nobody has: their noise is drawn before they leave a device.

    Raises:
        GuaranteeError: The plan is of mode ``secure`` or ``local``; the text says what to use instead.
    """
    privacy = plan.privacy
    if privacy.cohort is not None:
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode 'secure': its clients draw the noise in shares, and nobody has exact "
            "counters; to release exact counters, make a plan of mode 'central'"
        )
    if privacy.local is None:
        return
    if privacy.reports is not None:
        how, of = "each record is randomised on its device, and sent as a report", "hushsum.releases.of_reports"
    else:
        how, of = "each client noises all its counters before it sends them", "hushsum.releases.of_silos"
    raise GuaranteeError(
        f"plan {plan.name!r} is of mode 'local': {how}, and nobody has exact counters; to release what clients sent, "
        f"use {of}; to release exact counters, make a plan of mode 'central'"
    )


def _event(plan: Promising) -> Event:
    """That of the counters, or of a unit's reports."""
    privacy, mechanism, claim = plan.privacy, plan.privacy.mechanism, plan.privacy.claim
    if claim.reports is not None:
        return Event(mechanism.name, mechanism.scale, ONE_REPORT.times(claim.records, claim.records), claim.epsilon)
    if privacy.cumulation is not None:
        counted = plan.family.sensitivity.with_count(mechanism.count_scale)
        moved = counted.times(claim.records, claim.records * counted.l0)
        pure = claim.counters_epsilon if mechanism.name == DISCRETE_LAPLACE else Fraction(0)
        return Event(mechanism.name, mechanism.scale, moved, pure, cumulation=privacy.cumulation)
    size = prod(plan.counters_shape) + (plan.counters_shape[0] if mechanism.count_scale else 0)
    moved = plan.family.sensitivity.with_count(mechanism.count_scale).times(claim.records, size)
    pure = claim.counters_epsilon if mechanism.name == DISCRETE_LAPLACE else Fraction(0)
    shares = None
    if claim.honest_survivors is not None and claim.counters is not None:
        shares = Shares(claim.honest_survivors, claim.counters, claim.failure, claim.reserved)
    return Event(mechanism.name, mechanism.scale, moved, pure, shares)
