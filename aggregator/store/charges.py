"""The ledger in the store: accounts of populations, their spends, and the charges of windows.

Functions on a transaction.
A window of a central plan is charged with its outcome (:func:`spend_at_outcome`); one of a secure or local plan before
its first submission is accepted (:func:`charge_collection`).
"""

from fractions import Fraction

from aggregator.errors import StoreError, WindowNotBegunError, WindowOrderError
from aggregator.model import RoundMembers
from aggregator.store.round_claims import grant_clients
from aggregator.store.schema import unpack
from aggregator.store.transaction import Transaction
from aggregator.store.windows import check_lease, plan_number, states
from aggregator.windows import WindowState
from hushsum import canonical
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import TUMBLING, Spend
from hushsum.privacy.guarantee import CENTRAL
from hushsum.releases import spend_of


async def account(tx: Transaction, population: str) -> Account:
    """The limits of a registered population, as its plans fixed them, and all its spends."""
    return await _with_spends(tx, await _limits(tx, population))


async def locked_account(tx: Transaction, population: str) -> Account:
    """The same; no other transaction charges the population until this one ends."""
    return await _with_spends(tx, await _limits(tx, population, lock=True))


async def _with_spends(tx: Transaction, limits: Limits) -> Account:
    # Row by row: decoding takes time, and an event loop must not be blocked by all of them at once.
    rows = tx.rows("SELECT fields FROM spends WHERE population = $1 ORDER BY number", limits.population)
    return Account(limits).recorded(*[Spend.from_bytes(fields) async for (fields,) in rows])


async def spends_alike(tx: Transaction, population: str) -> tuple[Limits, list[tuple[bytes, int]]]:
    """A population's limits, and (bytes of one spend, count) for each group of spends that differ by window alone.

    The window is the last of a spend's canonical keys: without it, spends of a group have the same bytes. The database
    counts them, so that a total takes no longer for many spends.
    """
    limits = await _limits(tx, population)
    rows = await tx.fetch(
        "SELECT fields, times FROM spends JOIN (SELECT min(number) AS first, count(*) AS times FROM spends "
        "WHERE population = $1 GROUP BY plan_id, kind, "
        "substr(fields, 1, length(fields) - length(coalesce(CAST(\"window\" AS TEXT), 'null')) - 1)) AS alike "
        "ON number = first ORDER BY number",
        population,
    )
    return limits, [(bytes(fields), times) for fields, times in rows]


async def count_spend(tx: Transaction, plan_id: bytes, spend: Spend, *, fence: int) -> None:
    """Adds a spend that a receipt proves, unless it is stored; no limit can refuse it.

    ``plan_id`` belongs to the releaser that holds the fence; the spend may belong to another plan.
    """
    await check_lease(tx, await plan_number(tx, plan_id), fence)
    await tx.fetch_row("SELECT name FROM populations WHERE name = $1", spend.population, lock=True)
    if not await is_spent(tx, spend):
        await insert_spend(tx, spend)


async def is_spent(tx: Transaction, spend: Spend) -> bool:
    """Whether a spend of this plan, kind and window, or without one, is stored; its population must be locked."""
    # In SQL NULL = NULL is never true. SQLite has no IS NOT DISTINCT FROM before 3.39.
    same = '("window" = $3 OR ("window" IS NULL AND $3 IS NULL))'
    query = f"SELECT 1 FROM spends WHERE plan_id = $1 AND kind = $2 AND {same}"  # noqa: S608  a constant alone is put in
    return await tx.fetch_row(query, spend.plan_id, spend.kind, spend.window) is not None


async def forget_unspent(tx: Transaction, unspent: Spend) -> None:
    """Deletes the spend of a window without submissions, which a receipt proved to a restored store."""
    await tx.execute(
        'DELETE FROM spends WHERE plan_id = $1 AND kind = $2 AND "window" = $3 AND fields = $4',
        unspent.plan_id,
        unspent.kind,
        unspent.window,
        spend_fields(unspent),
    )


async def insert_spend(tx: Transaction, spend: Spend) -> None:
    """Adds a spend to a locked population."""
    await tx.execute(
        'INSERT INTO spends (population, plan_id, kind, "window", fields) VALUES ($1, $2, $3, $4, $5)',
        spend.population,
        spend.plan_id,
        spend.kind,
        spend.window,
        spend_fields(spend),
    )


def spend_fields(spend: Spend) -> bytes:
    """The stored bytes of a spend."""
    return canonical.encode(spend.to_fields())


async def check_collection(tx: Transaction, plan: Plan, window: int) -> None:
    """Checks whether :func:`charge_collection` would be allowed; writes nothing.

    Raises:
        BudgetError: The ledger's limits do not allow it.
        WindowOrderError: The window is not open.
        StoreError: The plan is central, or not registered.
    """
    _refuse_central(plan)
    await _check_open(tx, plan, window)
    spend = spend_of(plan, kind=TUMBLING, window=window)
    held = await account(tx, spend.population)
    unspent = spend_of(plan, kind=TUMBLING, window=window, entered=False)
    if spend not in held.spends:
        others = (each for each in held.spends if each != unspent)
        Account(held.limits).recorded(*others).charge(spend)


async def charge_collection(tx: Transaction, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
    """Charges a window of a secure or local plan before the first submission to it is accepted.

    These plans spend privacy at that point: an accepted submission was noised by its client, and has
    left the device. The window is charged once, whoever asks and however often; the charge stays, whatever is
    collected. It needs no fence: every gateway asks before it accepts anything.

    ``members`` are those of the round of a secure sum that is about to ask for vectors: the same transaction fixes that
    their vectors belong to no other round of the window. A local plan has none.

    Raises:
        BudgetError: The ledger's limits do not allow it: nothing may be collected for the window.
        WindowNotBegunError: It begins later.
        WindowOrderError: The window is not open.
        ClaimLostError: Another round has claimed members since this one did. Nothing is charged.
        StoreError: The plan is central, or not registered.
    """
    _refuse_central(plan)
    spend = spend_of(plan, kind=TUMBLING, window=window)
    await forget_unspent(tx, spend_of(plan, kind=TUMBLING, window=window, entered=False))
    held = await locked_account(tx, spend.population)
    # Under the lock: once its outcome is reserved uncharged, a window is never charged.
    await _check_open(tx, plan, window)
    # One clock for all gateways: a fast clock cannot charge future windows.
    wait_ms = plan.window.start_ms(window) - await tx.now_ms()
    if wait_ms > 0:
        raise WindowNotBegunError(window, wait_ms)
    if not await is_spent(tx, spend):
        held.charge(spend)
        await insert_spend(tx, spend)
    if members is not None:
        await grant_clients(tx, plan, window, members)


async def spend_at_outcome(tx: Transaction, number: int, plan: Plan, kind: str, window: int) -> Spend:
    """The spend of a window at its outcome. The population stays locked from here on."""
    # The cost of a release, even if the window is withheld: to refuse only the costlier outcome would tell which it is.
    spend = spend_of(plan, kind=kind, window=window)
    held = await locked_account(tx, spend.population)
    if plan.privacy.mode == CENTRAL:
        held.charge(spend)
        return spend
    unspent = spend_of(plan, kind=kind, window=window, entered=False)
    if not await _holds_any(tx, number, window):
        return unspent  # or it is charged already: submissions may have come of which nothing is left
    # It was charged before its first submission, unless the store is older than its log. Devices have spent it,
    # whatever the limits say: the ledger shows it, beyond them if need be.
    await forget_unspent(tx, unspent)
    return spend


async def _holds_any(tx: Transaction, number: int, window: int) -> bool:
    """Whether a window of a secure or local plan has any submission, by numbers that its release makes public."""
    by_name = 'SELECT 1 FROM contributions WHERE plan = $1 AND "window" = $2 LIMIT 1'
    if await tx.fetch_row(by_name, number, window) is not None:
        return True  # clients' deltas, or cohorts' sums
    rows = await tx.fetch('SELECT data FROM counts WHERE plan = $1 AND "window" = $2', number, window)
    return any(unpack(data).any() for (data,) in rows)  # reports have no client


async def _limits(tx: Transaction, population: str, *, lock: bool = False) -> Limits:
    row = await tx.fetch_row(
        "SELECT unit, relation, epsilon, delta FROM populations WHERE name = $1", population, lock=lock
    )
    if row is None:
        raise StoreError(f"store: no plan of population {population!r} is registered here")
    unit, relation, epsilon, delta = row
    return Limits(population, unit, relation, Fraction(epsilon), Fraction(delta))


async def _check_open(tx: Transaction, plan: Plan, window: int) -> None:
    state = (await states(tx, plan.id, window, window)).get(window, "not known")
    if state != WindowState.OPEN:
        raise WindowOrderError(f"window {window} does not accept submissions: it is {state}")


def _refuse_central(plan: Plan) -> None:
    if plan.privacy.mode == CENTRAL:
        raise StoreError("store: windows of central plans are charged with their outcomes")
