"""Store operations on plans and the limits of their populations. Functions on a transaction."""

from aggregator.errors import StoreError
from aggregator.fold.state import NOTHING_CLOSED
from aggregator.model import RegisteredPlan
from aggregator.store.charges import locked_account
from aggregator.store.transaction import Transaction
from aggregator.store.windows import plan_number
from hushsum import canonical
from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.privacy.accountant import Limits
from hushsum.signed_plan import SignedPlan


def _plan(bundle: bytes) -> Plan:
    try:
        return Plan.from_bytes(bundle)
    except PlanError as error:
        raise StoreError(f"the store holds a plan that this version cannot read: {error}") from error


async def load_plan(tx: Transaction, plan_id: bytes) -> Plan | None:
    """The plan with this id."""
    row = await tx.fetch_row("SELECT bytes FROM plans WHERE id = $1", plan_id)
    return None if row is None else _plan(row[0])


async def plan_named(tx: Transaction, name: str) -> Plan | None:
    """The stored plan with this name: what a ``plan.toml`` became at the first start."""
    row = await tx.fetch_row("SELECT bytes FROM plans WHERE name = $1", name)
    return None if row is None else _plan(row[0])


async def plans(tx: Transaction) -> list[RegisteredPlan]:
    """Every plan, in the order of registration. Read row by row, because a bundle may be large."""
    rows = tx.rows(
        "SELECT bytes, partitions, first_window, coalesce(key_id, '') FROM plans "
        "LEFT JOIN plan_signatures ON plan = number ORDER BY number"
    )
    return [_registered(_plan(bundle), *others) async for bundle, *others in rows]


async def register(tx: Transaction, plan: Plan, partitions: int, first_window: int) -> None:
    """Registers a plan once: its bytes, its P, its first window, and its population's limits, which it may lower.

    Raises:
        StoreError: The plan is stored with another P.
        BudgetError: Its limits are above its population's, or its spends could not be added up.
    """
    if await is_known(tx, plan, partitions):
        return
    limits = await _population(tx, plan.limits)
    if await is_known(tx, plan, partitions):
        return  # another process registered it while this one waited for the population
    await tx.execute(
        "UPDATE populations SET epsilon = $2, delta = $3 WHERE name = $1",
        limits.population,
        canonical.real_text(limits.epsilon),
        canonical.real_text(limits.delta),
    )
    row = await tx.fetch_row(
        "INSERT INTO plans (id, name, bytes, partitions, first_window) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT (name) DO NOTHING RETURNING number",
        plan.id,
        plan.name,
        plan.bundle,
        partitions,
        first_window,
    )
    if row is None:
        raise _another_plan(plan.name)
    # Everything before the first window is closed from the start.
    await tx.execute_many(
        "INSERT INTO partitions (plan, partition, position, closed_through, forgotten_through, fence, owner) "
        "VALUES ($1, $2, 0, $3, $4, 0, '')",
        [(row[0], partition, first_window - 1, NOTHING_CLOSED) for partition in range(partitions)],
    )


async def keep_plan_signature(tx: Transaction, signed: SignedPlan) -> None:
    """Stores a plan's signature, unverified, in place of an earlier one; StoreError if the plan is not registered."""
    await tx.execute(
        "INSERT INTO plan_signatures (plan, key_id, suite, signature) VALUES ($1, $2, $3, $4) "
        "ON CONFLICT (plan) DO UPDATE SET key_id = excluded.key_id, suite = excluded.suite, "
        "signature = excluded.signature",
        await plan_number(tx, signed.plan_id),
        signed.key_id,
        signed.suite,
        signed.signature,
    )


async def signed_plan(tx: Transaction, plan_id: bytes) -> SignedPlan | None:
    """The plan with this id and its stored signature; None if there is none."""
    row = await tx.fetch_row(
        "SELECT bytes, key_id, suite, signature FROM plan_signatures JOIN plans ON number = plan WHERE id = $1", plan_id
    )
    return None if row is None else SignedPlan.received(*row)


def _registered(plan: Plan, partitions: int, first_window: int, signed_by: str) -> RegisteredPlan:
    privacy = plan.privacy
    return RegisteredPlan(plan.id, plan.name, privacy.mode, privacy.population, partitions, first_window, signed_by)


async def is_known(tx: Transaction, plan: Plan, partitions: int) -> bool:
    """Whether the plan is registered.

    Raises:
        StoreError: It is stored with another P, or another plan is stored under its name.
    """
    # One query, so that another process cannot register the same plan between two.
    rows = await tx.fetch("SELECT id, partitions FROM plans WHERE id = $1 OR name = $2", plan.id, plan.name)
    known: dict[bytes, int] = dict(rows)
    if plan.id not in known:
        if known:
            raise _another_plan(plan.name)
        return False
    if known[plan.id] != partitions:
        raise StoreError(
            f"store: this plan has {known[plan.id]} partitions, got {partitions}; the number cannot be changed"
        )
    return True


async def _population(tx: Transaction, limits: Limits) -> Limits:
    """Locks the population, or creates it; returns its limits combined with these."""
    made = await tx.execute(
        "INSERT INTO populations (name, unit, relation, epsilon, delta) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT DO NOTHING",
        limits.population,
        limits.unit,
        limits.relation,
        canonical.real_text(limits.epsilon),
        canonical.real_text(limits.delta),
    )
    if made:
        return limits
    return (await locked_account(tx, limits.population)).register(limits).limits


def _another_plan(name: str) -> StoreError:
    return StoreError(f"store: another plan named {name!r} is registered here; a changed plan takes a new name")
