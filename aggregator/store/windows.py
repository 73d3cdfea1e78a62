"""Store operations on windows and on the releaser's lease. Functions on a transaction."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from aggregator.errors import FencedError, StoreError, WindowNotOverError, WindowOrderError
from aggregator.model import Lease
from aggregator.store.transaction import NEXT_FENCE, Transaction
from aggregator.windows import MOVES, WindowState

_OLDEST: Final = -(2**63)
_NEWEST: Final = 2**63 - 1
# The sum keeps SQLite from the primary key, by which it would read all windows ever: it takes the index `unfinished`.
_UNFINISHED: Final = (
    "SELECT \"window\", state FROM windows WHERE plan + 0 = $1 AND state IN ('open', 'closing', 'sealed')"
)


async def plan_number(tx: Transaction, plan_id: bytes, *, lock: bool = False) -> int:
    """The number that keys a plan's rows; ``lock`` keeps others from changing the plan's windows and outcomes.

    Raises:
        StoreError: The plan is not registered.
    """
    row = await tx.fetch_row("SELECT number FROM plans WHERE id = $1", plan_id, lock=lock)
    if row is None:
        raise StoreError(f"store: plan {plan_id.hex()[:12]} is not registered here")
    return int(row[0])


async def first_window(tx: Transaction, plan_id: bytes) -> int:
    """The window in which the plan was registered."""
    row = await tx.fetch_row("SELECT first_window FROM plans WHERE id = $1", plan_id)
    if row is None:
        raise StoreError(f"store: plan {plan_id.hex()[:12]} is not registered here")
    return int(row[0])


async def open_windows(
    tx: Transaction,
    plan_id: bytes,
    first: int,
    last: int,
    *,
    horizon: int | None = None,
    latest: Callable[[int], int] | None = None,
) -> int | None:
    """Records that a gateway had these windows open; windows that are stored already stay as they are.

    With a ``horizon`` no more than so many windows of the plan are ever opened, skipped ones not counted: each open one
    gets an outcome. ``latest`` gives the last window that may be opened at a time of the store's clock: a gateway whose
    clock is ahead would use up places of the horizon.

    Returns:
        The first window that the horizon leaves no place for; None: each has one.
    """
    plan = await plan_number(tx, plan_id, lock=True)
    start = max(first, await first_window(tx, plan_id))
    # A fold may be ahead of a restored store: a window that it closed without a seal of its own was open nowhere.
    row = await tx.fetch_row("SELECT max(closed_through) FROM partitions WHERE plan = $1", plan)
    assert row is not None
    await _add(tx, plan, range(start, min(last, row[0]) + 1), WindowState.SKIPPED)
    fresh: Sequence[int] = range(max(start, row[0] + 1), last + 1)
    beyond = None
    if horizon is not None and fresh:
        stored = await states(tx, plan_id, fresh[0], fresh[-1])
        row = await tx.fetch_row("SELECT count(*) FROM windows WHERE plan = $1 AND state <> 'skipped'", plan)
        assert row is not None
        ends = last if latest is None else min(last, latest(await tx.now_ms()))
        missing, places = [window for window in fresh if window not in stored and window <= ends], horizon - row[0]
        fresh, beyond = missing[: max(places, 0)], next(iter(missing[max(places, 0) :]), None)
    await _add(tx, plan, fresh, WindowState.OPEN)
    return beyond


async def windows(tx: Transaction, plan_id: bytes) -> dict[int, str]:
    """State by window, as :class:`aggregator.windows.WindowState` names them, of all windows ever."""
    return await states(tx, plan_id, _OLDEST, _NEWEST)


async def states(tx: Transaction, plan_id: bytes, first: int, last: int) -> dict[int, str]:
    """State by window from ``first`` to ``last``: one short read, never held up by a checkpoint.

    An acknowledgement needs this read. Nothing may be appended for a window that it does not call open.
    """
    rows = await tx.fetch(
        'SELECT "window", state FROM windows WHERE plan = (SELECT number FROM plans WHERE id = $1) '
        'AND "window" BETWEEN $2 AND $3 ORDER BY "window"',
        plan_id,
        first,
        last,
    )
    return {window: state for window, state in rows}  # noqa: C416  a row need not be a pair for the types


async def newest_windows(tx: Transaction, plan_id: bytes, before: int | None, limit: int) -> list[tuple[int, str]]:
    """(window, state) of the ``limit`` newest windows, or of those before one, the newest first.

    It follows the primary key, so that it takes no longer as the store grows.
    """
    rows = await tx.fetch(
        'SELECT "window", state FROM windows WHERE plan = (SELECT number FROM plans WHERE id = $1) '
        'AND "window" <= $2 ORDER BY "window" DESC LIMIT $3',
        plan_id,
        _NEWEST if before is None else max(before - 1, _OLDEST),
        limit,
    )
    return [(window, state) for window, state in rows if before is None or window < before]


async def unfinished(tx: Transaction, plan_id: bytes) -> dict[int, str]:
    """State by window of those without an outcome that are not skipped: few, however old the store is."""
    plan = await plan_number(tx, plan_id)
    rows = await tx.fetch(f'{_UNFINISHED} ORDER BY "window"', plan)
    return {window: state for window, state in rows}  # noqa: C416  a row need not be a pair for the types


async def now_ms(tx: Transaction) -> int:
    """The store's clock, which all processes share: ms since 1970 UTC."""
    return await tx.now_ms()


async def mark_closing(
    tx: Transaction, plan_id: bytes, window: int, *, fence: int, not_before_ms: int | None = None
) -> None:
    """Marks a window before its first seal is appended: from here on no gateway acknowledges for it.

    Every older window that no gateway has opened becomes ``skipped`` in the same transaction: no outcome, no charge. A
    window that is closing, sealed or released already stays as it is.

    ``not_before_ms``: the earliest time of the seal by the store's clock, whatever the clock of the process says; None:
    an operator seals the window before its end.

    Raises:
        WindowNotOverError: The store's clock is before ``not_before_ms``.
        WindowOrderError: It was never open, or an older one is open or closing.
    """
    plan = await locked_plan(tx, plan_id, fence)
    state = await _state(tx, plan, window)
    if state is None or state is WindowState.SKIPPED:
        raise WindowOrderError(f"window {window} cannot be sealed: it was never opened by a gateway")
    if state is not WindowState.OPEN:
        return
    wait_ms = 0 if not_before_ms is None else not_before_ms - await tx.now_ms()
    if wait_ms > 0:
        raise WindowNotOverError(window, wait_ms)
    older = await tx.fetch_row(
        "SELECT \"window\", state FROM windows WHERE plan = $1 AND \"window\" < $2 AND state IN ('open', 'closing') "
        "LIMIT 1",
        plan,
        window,
    )
    if older is not None:
        raise WindowOrderError(f"window {window} cannot be sealed yet: window {older[0]} is {older[1]}")
    # Only from the newest older window on: closing that one has filled in everything below.
    row = await tx.fetch_row(
        'SELECT coalesce((SELECT max("window") + 1 FROM windows WHERE plan = $1 AND "window" < $2), first_window) '
        "FROM plans WHERE number = $1",
        plan,
        window,
    )
    assert row is not None
    await _add(tx, plan, range(row[0], window), WindowState.SKIPPED)
    await move(tx, plan, window, WindowState.CLOSING)
    await mark_sealed(tx, plan)  # if the store was restored from an older copy, folds may have passed its seal


async def mark_sealed(tx: Transaction, plan: int, seals: Collection[int] = ()) -> None:
    """Marks the closing windows of a locked plan as sealed that every partition has closed.

    ``seals`` are windows whose seal a fold has passed. They become closing at least: a store that was restored from an
    older copy may call them open, or not know them, and no gateway may acknowledge for them any more.
    """
    await tx.execute_many(
        "INSERT INTO windows (plan, \"window\", state) VALUES ($1, $2, 'closing') "
        "ON CONFLICT (plan, \"window\") DO UPDATE SET state = 'closing' WHERE windows.state = 'open'",
        [(plan, window) for window in seals],
    )
    await tx.execute(
        "UPDATE windows SET state = 'sealed' WHERE plan = $1 AND state = 'closing' "
        'AND "window" <= (SELECT min(closed_through) FROM partitions WHERE plan = $1)',
        plan,
    )


async def check_next_outcome(tx: Transaction, plan: int, window: int) -> None:
    """Raises WindowOrderError unless a window is sealed and the oldest without an outcome."""
    oldest = await tx.fetch_row(f'{_UNFINISHED} ORDER BY "window" LIMIT 1', plan)
    if oldest != (window, WindowState.SEALED):
        came = "no window is sealed" if oldest is None else f"window {oldest[0]} is next, and is {oldest[1]}"
        raise WindowOrderError(f"window {window} cannot be released now: {came}")


async def check_finished(tx: Transaction, plan: int, window: int) -> None:
    """Raises StoreError if a window up to this one waits for its outcome."""
    waiting = await tx.fetch_row(f'{_UNFINISHED} AND "window" <= $2 ORDER BY "window" LIMIT 1', plan, window)
    if waiting is not None:
        raise StoreError(
            f"store: window {waiting[0]} is {waiting[1]} and has no receipt, but window {window} has one: the receipts "
            "are not those of this store"
        )


async def check_forgettable(tx: Transaction, plan: int, window: int) -> None:
    """Raises StoreError if a window up to this one waits for its outcome, or for the outcome's publication."""
    waiting = await tx.fetch_row(
        'SELECT "window" FROM windows '
        "WHERE plan = $1 AND \"window\" <= $2 AND state IN ('open', 'closing', 'sealed') "
        'UNION ALL SELECT "window" FROM outcomes WHERE plan = $1 AND "window" <= $2 AND published = 0 LIMIT 1',
        plan,
        window,
    )
    if waiting is not None:
        raise StoreError(f"store: window {waiting[0]} cannot be erased: its outcome is not published")


async def move(tx: Transaction, plan: int, window: int, to: WindowState) -> None:
    """Changes the state of a window of a locked plan, as :data:`aggregator.windows.MOVES` allows."""
    state = await _state(tx, plan, window)
    assert to in MOVES[state], f"window {window} cannot go from {state} to {to}"
    await tx.execute('UPDATE windows SET state = $3 WHERE plan = $1 AND "window" = $2', plan, window, to)


async def _add(tx: Transaction, plan: int, windows: Sequence[int], state: WindowState) -> None:
    await tx.execute_many(
        'INSERT INTO windows (plan, "window", state) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING',
        [(plan, window, state) for window in windows],
    )


async def _state(tx: Transaction, plan: int, window: int) -> WindowState | None:
    row = await tx.fetch_row('SELECT state FROM windows WHERE plan = $1 AND "window" = $2', plan, window)
    return None if row is None else WindowState(row[0])


async def acquire_lease(
    tx: Transaction, plan_id: bytes, owner: str, address: str, seconds: float, *, exclusive: bool
) -> int | None:
    """Makes one process the plan's releaser for so many seconds, by the store's own clock.

    ``owner`` is a name unique to the process; ``address``, ``host:port`` of its administration, is shown to callers of
    other processes. ``exclusive``: only one process uses the store, so that an earlier holder is gone.

    Returns the next fence; None while another process's lease holds.
    """
    plan = await plan_number(tx, plan_id)
    found = "SELECT owner, until_ms FROM leases WHERE plan = $1"
    row = await tx.fetch_row(found, plan, lock=True)
    if row is None:
        await tx.execute(
            "INSERT INTO leases (plan, fence, owner, address, note, until_ms) VALUES ($1, 0, '', '', '', 0) "
            "ON CONFLICT DO NOTHING",
            plan,
        )
        row = await tx.fetch_row(found, plan, lock=True)
    assert row is not None
    now_ms = await tx.now_ms()
    if not exclusive and row[0] != owner and row[1] > now_ms:
        return None
    taken = await tx.fetch_row(
        f"UPDATE leases SET fence = {NEXT_FENCE.format(now='$5')}, "  # noqa: S608  nothing but a constant is put in
        "owner = $2, address = $3, note = '', until_ms = $4 WHERE plan = $1 RETURNING fence",
        plan,
        owner,
        address,
        now_ms + _milliseconds(seconds),
        now_ms,
    )
    assert taken is not None
    return int(taken[0])


async def renew_lease(tx: Transaction, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
    """Extends the lease; ``note`` is shown in every process's status (why releasing has stopped, or empty).

    Raises:
        FencedError: Another process has it.
    """
    plan = await plan_number(tx, plan_id)
    until_ms = await tx.now_ms() + _milliseconds(seconds)
    renewed = await tx.execute(
        "UPDATE leases SET until_ms = $3, note = $4 WHERE plan = $1 AND fence = $2", plan, fence, until_ms, note
    )
    if renewed != 1:
        raise _fenced(fence)


async def return_lease(tx: Transaction, plan_id: bytes, *, fence: int) -> None:
    """Ends the lease so that another process can take it at once; does nothing if another has it already."""
    plan = await plan_number(tx, plan_id)
    await tx.execute("UPDATE leases SET until_ms = 0 WHERE plan = $1 AND fence = $2", plan, fence)


async def lease(tx: Transaction, plan_id: bytes) -> Lease | None:
    """The current or latest lease; None if there never was one."""
    row = await tx.fetch_row(
        "SELECT owner, address, note, until_ms FROM leases WHERE plan = (SELECT number FROM plans WHERE id = $1)",
        plan_id,
    )
    if row is None:
        return None
    owner, address, note, until_ms = row
    return Lease(owner, address, note, (until_ms - await tx.now_ms()) / 1000)


async def check_lease(tx: Transaction, plan: int, fence: int) -> None:
    """Checks a fence, and keeps the lease until the transaction ends; FencedError if another process has taken it."""
    row = await tx.fetch_row("SELECT fence FROM leases WHERE plan = $1", plan, lock=True)
    if row is None or row[0] != fence:
        raise _fenced(fence)


async def locked_plan(tx: Transaction, plan_id: bytes, fence: int) -> int:
    """The plan's number, once its windows and outcomes are locked and the releaser's fence is checked."""
    plan = await plan_number(tx, plan_id, lock=True)
    await check_lease(tx, plan, fence)
    return plan


async def ask_to_forget(tx: Transaction, plan_id: bytes, window: int, *, fence: int) -> None:
    """Tells every fold, in whatever process, that windows up to this one have their published outcome."""
    plan = await locked_plan(tx, plan_id, fence)
    await check_forgettable(tx, plan, window)
    await tx.execute(
        "UPDATE leases SET forget_asked = $2 WHERE plan = $1 AND (forget_asked IS NULL OR forget_asked < $2)",
        plan,
        window,
    )


async def forget_asked(tx: Transaction, plan_id: bytes) -> int | None:
    """The last window that folds were asked to forget."""
    row = await tx.fetch_row(
        "SELECT forget_asked FROM leases WHERE plan = (SELECT number FROM plans WHERE id = $1)", plan_id
    )
    return None if row is None or row[0] is None else int(row[0])


def _milliseconds(seconds: float) -> int:
    if not seconds >= 0:
        raise StoreError(f"store: a lease of {seconds} s, expected 0 or more")
    return round(seconds * 1000)


def _fenced(fence: int) -> FencedError:
    return FencedError(f"store: another process holds the releaser lease (own fence {fence})")
