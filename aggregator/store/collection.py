"""Store operations of gateways: charges of secure and local plans, and claims of clients by rounds of secure sums.

Functions on a transaction.
"""

from aggregator.errors import ClaimLostError, StoreError, WindowNotBegunError, WindowOrderError
from aggregator.model import RoundMembers
from aggregator.store.plans import account, forget_unspent, insert_spend, is_spent, locked_account
from aggregator.store.transaction import Transaction
from aggregator.store.windows import plan_number, states
from aggregator.windows import WindowState
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.guarantee import CENTRAL
from hushsum.releases import spend_of


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

    These plans spend privacy at that point (PRIVACY: ledger): an accepted submission was noised by its client, and has
    left the device. The window is charged once, whoever asks and however often; the charge stays, whatever is
    collected. It needs no fence: every gateway asks before it accepts anything.

    Args:
        tx: The transaction.
        plan: The window's plan.
        window: Open, and begun by the store's clock.
        members: Of the round of a secure sum that is about to ask for vectors: the same transaction fixes that their
            vectors belong to no other round of the window. None for a local plan.

    Raises:
        BudgetError: The ledger's limits do not allow it: nothing may be collected for the window.
        WindowNotBegunError: It begins later.
        WindowOrderError: The window is not open.
        ClaimLostError: Another round has claimed members since :func:`claim_clients`. Nothing is charged.
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
        await _grant(tx, plan, window, members)


async def claim_clients(tx: Transaction, plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
    """Claims clients for this round of a secure sum, whichever gateway they were in before.

    A repeated call for the same round counts nothing more.

    Returns:
        Those that may be in no further round of this window: another round may have their vector, or they were drawn
        as often as a plan's promise counts, at whatever gateways.
    """
    plan, draws = await plan_number(tx, plan_id), int(members.is_drawn)
    # In sorted order, so that two gateways cannot deadlock. A repeated call counts no second draw.
    await tx.execute_many(
        'INSERT INTO round_claims (plan, "window", client_id, round, granted, draws) VALUES ($1, $2, $3, $4, 0, $5) '
        'ON CONFLICT (plan, "window", client_id) '
        "DO UPDATE SET round = excluded.round, draws = round_claims.draws + excluded.draws "
        "WHERE round_claims.granted = 0 AND round_claims.round <> excluded.round "
        "AND round_claims.draws + excluded.draws <= $6",
        [(plan, window, client_id, members.round_id, draws, ATTEMPTS_MAX) for client_id in sorted(members.clients)],
    )
    return await _elsewhere(tx, plan, window, members, granted=0)


async def release_clients(tx: Transaction, plan_id: bytes, window: int, members: RoundMembers) -> None:
    """Notes that this round got nothing of these members' vectors: they may be in another round."""
    number = await plan_number(tx, plan_id)
    await tx.execute_many(
        'UPDATE round_claims SET granted = 0 WHERE plan = $1 AND "window" = $2 AND client_id = $3 AND round = $4',
        [(number, window, client_id, members.round_id) for client_id in sorted(members.clients)],
    )


async def _grant(tx: Transaction, plan: Plan, window: int, members: RoundMembers) -> None:
    number = await plan_number(tx, plan.id)
    await tx.execute_many(
        'UPDATE round_claims SET granted = 1 WHERE plan = $1 AND "window" = $2 AND client_id = $3 AND round = $4',
        [(number, window, client_id, members.round_id) for client_id in sorted(members.clients)],
    )
    elsewhere = await _elsewhere(tx, number, window, members, granted=1)
    if elsewhere:
        raise ClaimLostError(elsewhere)


async def _elsewhere(tx: Transaction, plan: int, window: int, members: RoundMembers, *, granted: int) -> frozenset[str]:
    """The members whose claim is not this round's."""
    rows = await tx.fetch(
        'SELECT client_id FROM round_claims WHERE plan = $1 AND "window" = $2 AND round = $3 AND granted = $4',
        plan,
        window,
        members.round_id,
        granted,
    )
    return frozenset(members.clients) - {client_id for (client_id,) in rows}


async def _check_open(tx: Transaction, plan: Plan, window: int) -> None:
    state = (await states(tx, plan.id, window, window)).get(window, "not known")
    if state != WindowState.OPEN:
        raise WindowOrderError(f"window {window} takes no submissions: it is {state}")


def _refuse_central(plan: Plan) -> None:
    if plan.privacy.mode == CENTRAL:
        raise StoreError("store: windows of a central plan are charged with their outcomes")
