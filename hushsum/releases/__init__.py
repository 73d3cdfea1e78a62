"""A closed sum becomes a release: noised once, saved, and queried for ever."""

from hushsum import compiled, noise
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import GuaranteeError
from hushsum.privacy.events import IN_PROCESS
from hushsum.privacy.ledger import Ledger
from hushsum.privacy.spending import refuse_drawn_by_clients, spend_of
from hushsum.releases.from_clients import of_reports, of_silos, of_sums
from hushsum.releases.released import Release, load
from hushsum.releases.series import Series
from hushsum.sketch import Sketch

__all__ = ["Release", "Series", "draw", "load", "of_reports", "of_silos", "of_sums", "release", "spend_of", "warm_up"]


def release(
    sketch: Sketch,
    *,
    ledger: Ledger | None = None,
    epsilon: object = None,
    delta: object = None,
) -> Release:
    """Releases a sketch that was built in this process with noise.

    A plan's ``min_clients`` is for the windows of a service; the share of ε that its test takes is not charged here.

    Args:
        sketch: Exact counters.
        ledger: Charged before anything is returned; without one the release says "unaccounted".
        epsilon: Another ε than the plan's; the release then carries a plan of its own.
        delta: Another δ than the plan's: 0 for discrete Laplace noise, above 0 for discrete Gaussian.

    Raises:
        GuaranteeError: The plan is of mode ``secure`` or ``local``: its noise is drawn by clients, and nobody has exact
            counters.
        BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
        PlanError: The plan does not allow this ε or δ.
    """
    refuse_drawn_by_clients(sketch.plan)
    plan, limits = sketch.plan, sketch.plan.limits
    changes = {key: value for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    if changes:
        plan = plan.replace_privacy(**changes)
        sketch = sketch.under(plan)
    if ledger is not None:
        ledger.charge(spend_of(plan, kind=IN_PROCESS, window=None), limits)
    return draw(sketch, kind=IN_PROCESS, window=None, entropy=OsEntropy(), accounted=ledger is not None)


def draw(sketch: Sketch, *, kind: str, window: int | None, entropy: Entropy, accounted: bool) -> Release:
    """The release of a closed sum: the plan's noise on every counter and every count counter of every class, once.

    Raises:
        GuaranteeError: As :func:`release`.
    """
    plan = sketch.plan
    refuse_drawn_by_clients(plan)
    if plan.privacy.cumulation is not None:
        raise GuaranteeError(f"plan {plan.name!r} has cumulative releases, which hushsum.cumulative.step makes in turn")
    drawn = plan.privacy.mechanism.noise().sample(sketch.counters.size + sketch.counts.size, entropy)
    split = sketch.counters.size
    return Release(
        plan=plan,
        kind=kind,
        window=window,
        counters=sketch.counters + drawn[:split].reshape(sketch.counters.shape),
        counts=sketch.counts + drawn[split:],
        guarantee=plan.guarantee,
        accounted=accounted,
    )


def warm_up() -> None:
    """Loads and compiles what a first draw would: nothing is imported at a release.

    Raises:
        AccelerationError: The environment asks for loops that cannot be compiled.
    """
    noise.warm_up()
    if compiled.enabled():
        from hushsum import cumulative_loops

        cumulative_loops.warm_up()
