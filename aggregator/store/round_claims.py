"""Claims of clients by rounds of secure sums: no client is in two rounds of a window. Functions on a transaction."""

from aggregator.errors import ClaimLostError
from aggregator.model import RoundMembers
from aggregator.store.transaction import Transaction
from aggregator.store.windows import plan_number
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX


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


async def grant_clients(tx: Transaction, plan: Plan, window: int, members: RoundMembers) -> None:
    """Fixes that these members' vectors belong to this round and to no other of the window.

    Raises:
        ClaimLostError: Another round has claimed some of them.
    """
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
