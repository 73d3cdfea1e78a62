"""Store operations of releasers: charges, keys, outcomes, receipts. Functions on a transaction."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from aggregator.errors import OutcomeExistsError, StoreError
from aggregator.model import HeldState, Outcome, ReceiptsMark, ReservedStep, StoredOutcome
from aggregator.store.charges import insert_spend, is_spent, locked_account, spend_at_outcome, spend_fields
from aggregator.store.transaction import NEXT_FENCE, Transaction
from aggregator.store.windows import check_finished, check_lease, check_next_outcome, locked_plan, move, plan_number
from aggregator.windows import WindowState
from hushsum.cumulative import chained
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.errors import BudgetError
from hushsum.labels import SEQUENCE_STEP
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE, Spend
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.releases import spend_of

_PART_BYTES: Final = 1 << 18
_PARTS_AT_ONCE: Final = 32  # 8 MiB: PostgreSQL has a time limit for each command


async def reserve_outcome(
    tx: Transaction, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
) -> bytes:
    """Charges what a release of the window costs, and fixes the key of all randomness of its outcome.

    One transaction, before anything is drawn or decided; the size of what it writes does not depend on the data. A
    repeated call, by any process, returns the same key and charges nothing. A window of a secure or local plan costs
    nothing here: :func:`aggregator.store.charges.charge_collection` has charged it, or it has no submissions and
    spends nothing. But if a restored store has lost that charge and there are submissions, it is charged here, beyond
    the limits if need be.

    The window is the oldest sealed one without an outcome. ``digest`` is that of the data that the outcome is drawn
    from (:meth:`aggregator.model.SealedWindow.digest`); ``entropy``, the source of the key, is read once the charge is
    allowed.

    Returns:
        The key of a :class:`hushsum.entropy.KeyedEntropy`. It reveals the noise.

    Raises:
        OutcomeExistsError: The window has its outcome.
        WindowOrderError: The window is not sealed, or an older one has no outcome yet.
        BudgetError: The ledger's limits do not allow what a release costs. Nothing is fixed.
        StoreError: The outcome was charged for other counters: the store is damaged.
    """
    number = await locked_plan(tx, plan.id, fence)
    await _refuse_second(tx, number, kind, window)
    if (found := await _reserved(tx, number, kind, window)) is not None:
        key, fixed = found
        if fixed != digest:
            raise StoreError(
                f"store: the counters of window {window} differ from those that were charged: the store is damaged"
            )
        return key
    await check_next_outcome(tx, number, window)
    spend = await spend_at_outcome(tx, number, plan, kind, window)
    key = entropy.read(KEY_BYTES)
    if plan.privacy.mode == CENTRAL or not await is_spent(tx, spend):
        await insert_spend(tx, spend)
    await _reserve(tx, number, kind, window, key, digest)
    return key


async def commit_outcome(
    tx: Transaction, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
) -> None:
    """Stores a reserved outcome (not published), erases its key, and sets its window's state: one transaction.

    The charge of a withheld window of a central plan becomes that of its test alone. That of a local plan stays: its
    submissions were accepted and have left the devices. No window of a secure plan is withheld.

    Raises:
        OutcomeExistsError: The window has its outcome.
        WindowOrderError: The window is not sealed, or an older one has no outcome yet.
        StoreError: It was not reserved.
    """
    assert not (withheld and plan.privacy.mode == SECURE), "a secure plan asks for no number of clients"
    number = await locked_plan(tx, plan.id, fence)
    await _refuse_second(tx, number, kind, window)
    await check_next_outcome(tx, number, window)
    if not await _end_reservation(tx, number, kind, window):
        raise StoreError(f"store: the outcome of window {window} was not charged before it was drawn")
    if withheld and plan.privacy.mode == CENTRAL:
        spend = spend_of(plan, kind=kind, window=window, withheld=True)
        await tx.fetch_row("SELECT name FROM populations WHERE name = $1", spend.population, lock=True)
        if not await _charge_test_alone(tx, spend):
            raise StoreError(f"store: the charge of window {window} is missing: the store is damaged")
    await _insert_outcome(tx, number, kind, window, data)
    await move(tx, number, window, WindowState.WITHHELD if withheld else WindowState.RELEASED)


async def _charge_test_alone(tx: Transaction, spend: Spend) -> bool:
    """Makes the charge of a withheld window that of its test; whether it was charged. Its population is locked."""
    changed = await tx.execute(
        'UPDATE spends SET fields = $4 WHERE plan_id = $1 AND kind = $2 AND "window" = $3',
        spend.plan_id,
        spend.kind,
        spend.window,
        spend_fields(spend),
    )
    return changed == 1


async def reserve_step(
    tx: Transaction,
    plan: Plan,
    window: int,
    digest: bytes,
    entropy: Entropy,
    *,
    fence: int,
    held: HeldState | None = None,
) -> ReservedStep:
    """Fixes the key of the next step of a cumulative sequence, and charges the whole sequence with the first step.

    The counterpart of :func:`reserve_outcome` for cumulative plans. The reservation holds a digest of this window's
    counters, chained to those of all windows before: no other counters are ever released with this step's noise. The
    digest is keyed with the step's key, which is erased once the outcome is stored: what is left of it verifies no
    guess of counters.

    ``held`` is the state that the caller has stored last. It is not read again if the digest that the store has with
    its state is that of ``held``: the digest fixes the counters and the key of each step, and so the state.

    Raises:
        OutcomeExistsError: The window has its outcome.
        WindowOrderError: The window is not sealed, or an older one has no outcome yet.
        BudgetError: The horizon of the plan is reached, or the ledger's limits do not allow what the sequence costs.
            Nothing is fixed.
        StoreError: The step was reserved for other counters, or the charge of the sequence is missing: the store is
            damaged.
    """
    number = await locked_plan(tx, plan.id, fence)
    await _refuse_second(tx, number, CUMULATIVE, window)
    query = 'SELECT step, "window", digest FROM sequences WHERE plan = $1'
    step, last, before = await tx.fetch_row(query, number) or (0, None, plan.id)
    if last is not None and window <= last:
        raise OutcomeExistsError(f"window {window} is not after window {last}, which has its outcome already")
    if (found := await _reserved(tx, number, CUMULATIVE, window)) is not None:
        key, fixed = found
        sealed = _keyed(key, digest)
        if fixed != chained(before, sealed):
            raise StoreError(
                f"store: the counters of window {window} differ from those that its step was reserved for: the store "
                "is damaged"
            )
        return ReservedStep(step + 1, key, sealed, fixed, await _state(tx, number, step, before, held))
    await check_next_outcome(tx, number, window)
    if plan.window.horizon is None or step >= plan.window.horizon:
        raise BudgetError(f"window {window} is beyond the horizon: the plan pays for {plan.window.horizon} outcomes")
    await _charge_sequence(tx, plan, is_first=not step)
    key = entropy.read(KEY_BYTES)
    sealed = _keyed(key, digest)
    after = chained(before, sealed)
    await _reserve(tx, number, CUMULATIVE, window, key, after)
    return ReservedStep(step + 1, key, sealed, after, await _state(tx, number, step, before, held))


async def _state(tx: Transaction, plan: int, step: int, digest: bytes, held: HeldState | None) -> bytes | None:
    """The state after a step; None before the first."""
    if not step:
        return None
    if held is not None and held.digest == digest:
        return held.state
    first = await tx.fetch("SELECT state FROM sequences WHERE plan = $1", plan)
    rest = await tx.fetch("SELECT data FROM sequence_parts WHERE plan = $1 ORDER BY part", plan)
    return b"".join(data for (data,) in (*first, *rest))


async def commit_step(
    tx: Transaction, plan: Plan, window: int, data: bytes, state: bytes, *, step: int, fence: int
) -> None:
    """Stores a reserved step's outcome (not published); the state after it replaces the key and the state before it.

    With the last outcome of the horizon no state is kept: no step needs it, and it holds the noise.

    Raises:
        OutcomeExistsError: The window has its outcome.
        WindowOrderError: The window is not sealed, or an older one has no outcome yet.
        StoreError: It was not reserved, or is another step than the next.
    """
    number = await locked_plan(tx, plan.id, fence)
    await _refuse_second(tx, number, CUMULATIVE, window)
    await check_next_outcome(tx, number, window)
    found = await _reserved(tx, number, CUMULATIVE, window)
    before = await tx.fetch_row("SELECT step FROM sequences WHERE plan = $1", number)
    if found is None or step != 1 + (0 if before is None else before[0]):
        raise StoreError(f"store: step {step}, of window {window}, was not reserved before it was drawn")
    await _end_reservation(tx, number, CUMULATIVE, window)
    first, *rest = _parts(b"" if step == plan.window.horizon else state)
    await tx.execute(
        'INSERT INTO sequences (plan, step, "window", digest, state) VALUES ($1, $2, $3, $4, $5) '
        'ON CONFLICT (plan) DO UPDATE SET step = excluded.step, "window" = excluded."window", '
        "digest = excluded.digest, state = excluded.state",
        number,
        step,
        window,
        found[1],
        first,
    )
    parts = [(number, *part) for part in enumerate(rest, 1)]
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        await tx.execute_many(
            "INSERT INTO sequence_parts (plan, part, data) VALUES ($1, $2, $3) "
            "ON CONFLICT (plan, part) DO UPDATE SET data = excluded.data",
            parts[start : start + _PARTS_AT_ONCE],
        )
    await tx.execute("DELETE FROM sequence_parts WHERE plan = $1 AND part > $2", number, len(rest))
    await _insert_outcome(tx, number, CUMULATIVE, window, data)
    await move(tx, number, window, WindowState.RELEASED)


def _parts(state: bytes) -> list[bytes]:
    """A state in rows that SQLite overwrites in place and that PostgreSQL need not copy as a whole; at least one."""
    return [state[start : start + _PART_BYTES] for start in range(0, len(state) or 1, _PART_BYTES)]


async def _insert_outcome(
    tx: Transaction, number: int, kind: str, window: int, data: bytes, sha256: bytes | None = None
) -> None:
    await tx.execute(
        'INSERT INTO outcomes (plan, kind, "window", published, sha256, data) VALUES ($1, $2, $3, 0, $4, $5)',
        number,
        kind,
        window,
        sha256 or hashlib.sha256(data).digest(),
        data,
    )


async def _charge_sequence(tx: Transaction, plan: Plan, *, is_first: bool) -> None:
    """Charges a sequence with its first step, and requires its charge for later ones.

    A sequence that is charged and has no step has lost its steps: another one would not be covered by the charge.
    """
    if is_first:
        spend = spend_of(plan, kind=CUMULATIVE, window=None)
        held = await locked_account(tx, spend.population)
        if await is_spent(tx, spend):
            raise StoreError("store: the cumulative sequence is charged, and its steps are missing: restore the store")
        held.charge(spend)
        await insert_spend(tx, spend)
        return
    query = 'SELECT 1 FROM spends WHERE plan_id = $1 AND kind = $2 AND "window" IS NULL'
    if await tx.fetch_row(query, plan.hex_id, CUMULATIVE) is None:
        raise StoreError("store: the charge of the cumulative sequence is missing: the store is damaged")


def _keyed(key: bytes, digest: bytes) -> bytes:
    """The digest of a window's counters under its step's key."""
    return hmac.digest(key, SEQUENCE_STEP + digest, "sha256")


async def publish(
    tx: Transaction, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int
) -> None:
    """Publishes an outcome and records how far the receipts reach, its own included, in one transaction.

    Raises:
        StoreError: There is no such outcome, the receipts are not those that the store is bound to, or they have a copy
            that the caller does not write to.
    """
    changed = await tx.execute(
        'UPDATE outcomes SET published = 1 WHERE plan = $1 AND kind = $2 AND "window" = $3',
        await locked_plan(tx, plan_id, fence),
        kind,
        window,
    )
    if changed != 1:
        raise StoreError(f"store: window {window} has no outcome to publish")
    await advance_receipts(tx, receipts)
    if not receipts.copy and (copy := await _receipts_copy(tx)) is not None:
        raise StoreError(
            f"store: a copy of the receipts was begun ({copy}) after this process started without it; set "
            "receipts_copy, and start the process again"
        )


async def mark_lost(
    tx: Transaction,
    plan: Plan,
    lost: Sequence[tuple[str, int, bytes, Spend]],
    *,
    receipts: ReceiptsMark,
    fence: int,
) -> None:
    """Stores outcomes that receipts prove and a restored store lacks: final, published, charged, without their bytes.

    ``lost`` has (kind, window, sha256, spend) of each, in the order of their windows. These windows are closed and
    forgotten in every partition: nothing more is counted there, nothing is answered *late* (it may have been counted),
    nothing is drawn. What the store has of them is erased by the releaser, as after any outcome. Folds that run are
    fenced. ``receipts`` is the mark of the receipts up to the last of them.

    Raises:
        StoreError: A sequence of cumulative releases has lost steps, and with them the noise that later ones need; or a
            window before a lost one has neither outcome nor receipt.
    """
    if plan.window.kind == CUMULATIVE:
        raise StoreError(
            "store: a cumulative sequence that has lost steps cannot go on: the noise of later ones depends on theirs; "
            "restore a newer store, or end the plan"
        )
    number, last = await plan_number(tx, plan.id), max(window for _, window, _, _ in lost)
    await tx.execute(
        f"UPDATE partitions SET fence = {NEXT_FENCE.format(now='$3')}, "  # noqa: S608  nothing but a constant is put in
        "closed_through = CASE WHEN closed_through > $2 THEN closed_through ELSE $2 END, "
        "forgotten_through = CASE WHEN forgotten_through > $2 THEN forgotten_through ELSE $2 END WHERE plan = $1",
        number,
        last,
        await tx.now_ms(),
    )
    await locked_plan(tx, plan.id, fence)
    for kind, window, sha256, spend in lost:
        is_withheld = plan.privacy.mode == CENTRAL and spend == spend_of(plan, kind=kind, window=window, withheld=True)
        await _insert_outcome(tx, number, kind, window, b"", sha256)
        await tx.execute(
            'UPDATE outcomes SET published = 1 WHERE plan = $1 AND kind = $2 AND "window" = $3', number, kind, window
        )
        await _end_reservation(tx, number, kind, window)
        await tx.execute(
            'INSERT INTO windows (plan, "window", state) VALUES ($1, $2, $3) '
            'ON CONFLICT (plan, "window") DO UPDATE SET state = excluded.state',
            number,
            window,
            WindowState.WITHHELD if is_withheld else WindowState.RELEASED,
        )
        await tx.fetch_row("SELECT name FROM populations WHERE name = $1", spend.population, lock=True)
        if not await is_spent(tx, spend):
            await insert_spend(tx, spend)
        elif is_withheld:  # it was charged in full before it was drawn, when the store was copied
            await _charge_test_alone(tx, spend)
    await check_finished(tx, number, last)
    await tx.execute("DELETE FROM streams WHERE plan = $1 AND last_window <= $2", number, last)
    await tx.execute('DELETE FROM contributions WHERE plan = $1 AND "window" <= $2', number, last)
    await advance_receipts(tx, receipts)


async def remove_releases(tx: Transaction, plan_id: bytes, before: int, *, fence: int) -> None:
    """Removes the bytes of published outcomes of windows before this one; their digests stay."""
    await tx.execute(
        'UPDATE outcomes SET data = $3 WHERE plan = $1 AND "window" < $2 AND published = 1 AND length(data) > 0',
        await locked_plan(tx, plan_id, fence),
        before,
        b"",
    )


async def receipts_mark(tx: Transaction) -> ReceiptsMark | None:
    """The receipts that the store is bound to, and how far it knows them, for all its plans.

    None before anything could be released. The id is empty if an older version may have released something: then
    receipts exist, but the store does not know which.
    """
    row = await tx.fetch_row("SELECT id, lines, digest, coalesce((SELECT place FROM receipts_copy), '') FROM receipts")
    return None if row is None else ReceiptsMark(bytes(row[0]), int(row[1]), bytes(row[2]), str(row[3]))


async def bind_receipts(
    tx: Transaction, plan_id: bytes, found: ReceiptsMark, *, fence: int, known_copy: str = ""
) -> ReceiptsMark:
    """Binds the store to these receipts for good, unless it is bound; returns the mark that it is bound to.

    Where they have a copy, its place is recorded in either case, unless the store knows one. ``known_copy`` is the same
    place as the store knows it, in other words.

    ``plan_id`` belongs to the releaser that holds the fence.
    """
    await check_lease(tx, await plan_number(tx, plan_id), fence)
    assert found.id, "receipts get an id before a store is bound to them"
    await tx.execute(
        "INSERT INTO receipts (number, id, lines, digest) VALUES (1, $1, $2, $3) ON CONFLICT (number) DO UPDATE "
        "SET id = excluded.id, lines = excluded.lines, digest = excluded.digest WHERE length(receipts.id) = 0",
        found.id,
        found.lines,
        found.digest,
    )
    await tx.execute("UPDATE receipts_copy SET place = $1 WHERE place = $2", found.copy, known_copy)
    await _note_copy(tx, found.copy)
    bound = await receipts_mark(tx)
    assert bound is not None, "it was there, or was inserted"
    return bound


async def advance_receipts(tx: Transaction, reached: ReceiptsMark) -> None:
    """Records how far the receipts reach, and their copy if none is known; releasers may report in any order.

    Raises:
        StoreError: They are not those that the store is bound to.
    """
    row = await tx.fetch_row("SELECT id, lines FROM receipts WHERE number = 1", lock=True)
    if row is None or row[0] != reached.id:
        raise StoreError("store: the receipts belong to another store; restore them")
    if row[1] < reached.lines:
        await tx.execute("UPDATE receipts SET lines = $1, digest = $2", reached.lines, reached.digest)
    await _note_copy(tx, reached.copy)


async def _receipts_copy(tx: Transaction) -> str | None:
    """Where the copy of the receipts is, as far as the store knows; None if it knows of none."""
    row = await tx.fetch_row("SELECT place FROM receipts_copy")
    return None if row is None else str(row[0])


async def _note_copy(tx: Transaction, place: str) -> None:
    """Records the copy of the receipts, unless one is known: another takes its place by a command alone."""
    if place:
        await tx.execute("INSERT INTO receipts_copy (number, place) VALUES (1, $1) ON CONFLICT DO NOTHING", place)


async def set_receipts(tx: Transaction, found: ReceiptsMark, *, fences: Mapping[bytes, int]) -> None:
    """Records receipts that an operator has begun a copy of, ended the copy of, or made from it.

    The mark is of all their lines; an empty ``copy`` ends the copy. It may set the store's mark back, so that nobody
    may release meanwhile: ``fences`` has the fence of each plan's lease, by the plan's id. A store that is not bound
    to receipts is bound to these.

    Raises:
        FencedError: Another process has taken a lease.
        StoreError: They are not those that the store is bound to, or a plan was registered meanwhile.
    """
    if {bytes(row[0]) for row in await tx.fetch("SELECT id FROM plans")} != fences.keys():
        raise StoreError("store: a plan was registered meanwhile: use the command again")
    for plan_id, fence in fences.items():
        await check_lease(tx, await plan_number(tx, plan_id), fence)
    row = await tx.fetch_row("SELECT id FROM receipts WHERE number = 1", lock=True)
    if row is not None and row[0] and row[0] != found.id:
        raise StoreError("store: the receipts belong to another store; restore them")
    await tx.execute(
        "INSERT INTO receipts (number, id, lines, digest) VALUES (1, $1, $2, $3) ON CONFLICT (number) DO UPDATE "
        "SET id = excluded.id, lines = excluded.lines, digest = excluded.digest",
        found.id,
        found.lines,
        found.digest,
    )
    await tx.execute("DELETE FROM receipts_copy")
    await _note_copy(tx, found.copy)


async def outcomes(tx: Transaction, plan_id: bytes) -> list[Outcome]:
    """All outcomes in the order of their windows, published or not, without their bytes."""
    rows = await tx.fetch(
        'SELECT kind, "window", length(data), sha256, published, state FROM outcomes JOIN windows '
        'USING (plan, "window") WHERE plan = $1 ORDER BY "window", kind',
        await plan_number(tx, plan_id),
    )
    return [
        Outcome(plan_id, kind, window, size, digest, bool(published), state == WindowState.WITHHELD)
        for kind, window, size, digest, published, state in rows
    ]


async def unpublished(tx: Transaction, plan_id: bytes) -> list[StoredOutcome]:
    """Outcomes that are committed and not yet published, with their bytes, in the order of their windows."""
    rows = await tx.fetch(
        'SELECT kind, "window", data, sha256, state FROM outcomes JOIN windows USING (plan, "window") '
        'WHERE plan = $1 AND published = 0 ORDER BY "window", kind',
        await plan_number(tx, plan_id),
    )
    return [
        StoredOutcome(plan_id, kind, window, data, digest, state == WindowState.WITHHELD)
        for kind, window, data, digest, state in rows
    ]


async def outcome(tx: Transaction, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
    """One published outcome; None if there is none, or it is not published yet."""
    row = await tx.fetch_row(
        'SELECT data, sha256, state FROM outcomes JOIN windows USING (plan, "window") '
        'WHERE plan = $1 AND kind = $2 AND "window" = $3 AND published = 1',
        await plan_number(tx, plan_id),
        kind,
        window,
    )
    return None if row is None else StoredOutcome(plan_id, kind, window, row[0], row[1], row[2] == WindowState.WITHHELD)


async def _refuse_second(tx: Transaction, plan: int, kind: str, window: int) -> None:
    query = 'SELECT 1 FROM outcomes WHERE plan = $1 AND kind = $2 AND "window" = $3'
    if await tx.fetch_row(query, plan, kind, window) is not None:
        raise OutcomeExistsError(f"window {window} has its outcome already")


async def _reserved(tx: Transaction, plan: int, kind: str, window: int) -> tuple[bytes, bytes] | None:
    """The key and the digest that are fixed for an outcome; None where it is not reserved."""
    query = 'SELECT key, digest FROM reservations WHERE plan = $1 AND kind = $2 AND "window" = $3'
    found = await tx.fetch_row(query, plan, kind, window)
    return None if found is None else (bytes(found[0]), bytes(found[1]))


async def _reserve(tx: Transaction, plan: int, kind: str, window: int, key: bytes, digest: bytes) -> None:
    query = 'INSERT INTO reservations (plan, kind, "window", key, digest) VALUES ($1, $2, $3, $4, $5)'
    await tx.execute(query, plan, kind, window, key, digest)


async def _end_reservation(tx: Transaction, plan: int, kind: str, window: int) -> bool:
    """Erases the key of an outcome; whether it was reserved."""
    query = 'DELETE FROM reservations WHERE plan = $1 AND kind = $2 AND "window" = $3'
    return await tx.execute(query, plan, kind, window) == 1
