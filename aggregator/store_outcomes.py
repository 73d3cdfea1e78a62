"""The releaser's part of the store: plans, populations with their ledger, outcomes. Functions on a connection."""

import hashlib
import sqlite3
from fractions import Fraction
from typing import Final

from aggregator.errors import OutcomeExistsError, StoreError
from aggregator.fold_state import NOTHING_CLOSED
from aggregator.records import Outcome, StoredOutcome
from aggregator.store_windows import check_next_outcome, move, plan_number
from aggregator.windows import WindowState
from hushsum import canonical
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import Spend
from hushsum.releases import spend_of

_INSERT_SPEND: Final = "INSERT INTO spends (population, plan_id, kind, window, fields) VALUES (?, ?, ?, ?, ?)"


def register(db: sqlite3.Connection, plan: Plan, partitions: int, first_window: int) -> None:
    """Adds a plan with its partitions, and opens its population's account or lowers its limits."""
    row = db.execute("SELECT partitions FROM plans WHERE id = ?", (plan.id,)).fetchone()
    if row is not None:
        if row[0] != partitions:
            raise StoreError(f"store: this plan has {row[0]} partitions, not {partitions}; it stays as it began")
        return
    if db.execute("SELECT 1 FROM plans WHERE name = ?", (plan.name,)).fetchone() is not None:
        raise StoreError(f"store: another plan named {plan.name!r} is registered here; a changed plan takes a new name")
    limits = plan.limits
    if db.execute("SELECT 1 FROM populations WHERE name = ?", (limits.population,)).fetchone() is not None:
        limits = account(db, limits.population).register(limits).limits
    db.execute(
        "INSERT OR REPLACE INTO populations VALUES (?, ?, ?, ?, ?)",
        (
            limits.population,
            limits.unit,
            limits.relation,
            canonical.real_text(limits.epsilon),
            canonical.real_text(limits.delta),
        ),
    )
    number = db.execute(
        "INSERT INTO plans (id, name, bytes, partitions, first_window) VALUES (?, ?, ?, ?, ?)",
        (plan.id, plan.name, plan.bundle, partitions, first_window),
    ).lastrowid
    # Everything before the first window is closed from the start.
    db.executemany(
        "INSERT INTO partitions VALUES (?, ?, 0, ?, ?)",
        [(number, partition, first_window - 1, NOTHING_CLOSED) for partition in range(partitions)],
    )


def account(db: sqlite3.Connection, population: str) -> Account:
    """A population's limits and spends."""
    row = db.execute("SELECT unit, relation, epsilon, delta FROM populations WHERE name = ?", (population,)).fetchone()
    if row is None:
        raise StoreError(f"store: no plan of population {population!r} is registered here")
    unit, relation, epsilon, delta = row
    rows = db.execute("SELECT fields FROM spends WHERE population = ? ORDER BY number", (population,))
    limits = Limits(population, unit, relation, Fraction(epsilon), Fraction(delta))
    return Account(limits).recorded(*(Spend.from_bytes(fields) for (fields,) in rows))


def count_spend(db: sqlite3.Connection, spend: Spend) -> None:
    """Adds a spend that was made, unless it is there."""
    known = db.execute(
        "SELECT 1 FROM spends WHERE plan_id = ? AND kind = ? AND window = ?", (spend.plan_id, spend.kind, spend.window)
    ).fetchone()
    if known is None:
        db.execute(_INSERT_SPEND, _spend_row(spend))


def reserve_outcome(
    db: sqlite3.Connection, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy
) -> bytes:
    """Charges an outcome and fixes its key; gives back the key that is fixed already, where one is."""
    number = plan_number(db, plan.id)
    _refuse_second(db, number, kind, window)
    found = db.execute(
        "SELECT key, digest FROM reservations WHERE plan = ? AND kind = ? AND window = ?", (number, kind, window)
    ).fetchone()
    if found is not None:
        if found[1] != digest:
            raise StoreError(
                f"store: the counters of window {window} are not those that its outcome was charged for: it is damaged"
            )
        return bytes(found[0])
    check_next_outcome(db, number, window)
    # What a release costs, whatever will be drawn: to refuse the dearer outcome alone would tell which it was.
    spend = spend_of(plan, kind=kind, window=window)
    account(db, spend.population).charge(spend)
    key = entropy.read(KEY_BYTES)
    db.execute(_INSERT_SPEND, _spend_row(spend))
    db.execute("INSERT INTO reservations VALUES (?, ?, ?, ?, ?)", (number, kind, window, key, digest))
    return key


def commit_outcome(db: sqlite3.Connection, plan: Plan, kind: str, window: int, data: bytes, *, withheld: bool) -> None:
    """Stores an outcome in place of its key; what was charged too much for a withheld one is given back."""
    number = plan_number(db, plan.id)
    _refuse_second(db, number, kind, window)
    check_next_outcome(db, number, window)
    reserved = (number, kind, window)
    if db.execute("DELETE FROM reservations WHERE plan = ? AND kind = ? AND window = ?", reserved).rowcount != 1:
        raise StoreError(f"store: the outcome of window {window} was not charged before it was drawn")
    if withheld:
        spend = spend_of(plan, kind=kind, window=window, withheld=True)
        changed = db.execute(
            "UPDATE spends SET fields = ? WHERE plan_id = ? AND kind = ? AND window = ?",
            (_fields(spend), spend.plan_id, kind, window),
        ).rowcount
        if changed != 1:
            raise StoreError(f"store: the charge of window {window} is gone: it is damaged")
    db.execute(
        "INSERT INTO outcomes (plan, kind, window, published, sha256, data) VALUES (?, ?, ?, 0, ?, ?)",
        (number, kind, window, hashlib.sha256(data).digest(), data),
    )
    move(db, number, window, WindowState.WITHHELD if withheld else WindowState.RELEASED)


def publish(db: sqlite3.Connection, plan_id: bytes, kind: str, window: int) -> None:
    """Lets everybody see an outcome."""
    changed = db.execute(
        "UPDATE outcomes SET published = 1 WHERE plan = ? AND kind = ? AND window = ?",
        (plan_number(db, plan_id), kind, window),
    ).rowcount
    if changed != 1:
        raise StoreError(f"store: window {window} has no outcome to publish")


def outcomes(db: sqlite3.Connection, plan_id: bytes) -> list[Outcome]:
    """All outcomes of a plan, in the order of their windows, without their bytes."""
    rows = db.execute(
        "SELECT kind, window, length(data), sha256, published, state = 'withheld' "
        "FROM outcomes JOIN windows USING (plan, window) WHERE plan = ? ORDER BY window, kind",
        (plan_number(db, plan_id),),
    )
    return [
        Outcome(plan_id, kind, window, size, digest, bool(published), bool(withheld))
        for kind, window, size, digest, published, withheld in rows
    ]


def whole_outcomes(
    db: sqlite3.Connection, plan_id: bytes, *, published: bool, window: int | None = None
) -> list[StoredOutcome]:
    """Outcomes with their bytes, in the order of their windows: the published or the others, of one window or all."""
    rows = db.execute(
        "SELECT kind, window, data, sha256, state = 'withheld' FROM outcomes JOIN windows USING (plan, window) "
        "WHERE plan = ? AND published = ? AND (window = ? OR ? IS NULL) ORDER BY window, kind",
        (plan_number(db, plan_id), int(published), window, window),
    )
    return [StoredOutcome(plan_id, kind, at, data, digest, bool(withheld)) for kind, at, data, digest, withheld in rows]


def _refuse_second(db: sqlite3.Connection, plan: int, kind: str, window: int) -> None:
    stored = db.execute("SELECT 1 FROM outcomes WHERE plan = ? AND kind = ? AND window = ?", (plan, kind, window))
    if stored.fetchone() is not None:
        raise OutcomeExistsError(f"window {window} has its outcome already")


def _spend_row(spend: Spend) -> tuple[str, str, str, int | None, bytes]:
    return spend.population, spend.plan_id, spend.kind, spend.window, _fields(spend)


def _fields(spend: Spend) -> bytes:
    return canonical.encode(spend.to_fields())
