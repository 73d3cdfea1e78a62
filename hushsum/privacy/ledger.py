"""``hs.Ledger``: an analyst's ledger of one population, in an SQLite file.

The one module of the core that opens a database: whoever releases in process has no service that keeps the account.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hushsum.canonical import real, real_text
from hushsum.errors import BudgetError, LedgerError
from hushsum.notebook import ROWS_MAX, pairs_html, table_html
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.relations import FREE, Cost
from hushsum.privacy.statement import account_told

#: 2: spends hold their events, which version 1 would not read; the tables are the same.
FORMAT_VERSION: Final = 2
_VERSIONS_READ: Final = (1, FORMAT_VERSION)
_APPLICATION_ID: Final = 0x48754C67  # "HuLg", in the file's header
_BUSY_SECONDS: Final = 30.0
_SYNCHRONOUS_FULL: Final = 2
_SWITCH_ATTEMPTS: Final = 100

_SCHEMA: Final = (
    """CREATE TABLE population (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        name TEXT NOT NULL, unit TEXT NOT NULL, relation TEXT NOT NULL,
        epsilon TEXT NOT NULL, delta TEXT NOT NULL)""",
    # The fields are canonical bytes; the columns beside them only keep a window from being charged twice.
    """CREATE TABLE spend (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        plan_id TEXT NOT NULL, kind TEXT NOT NULL, window_index INTEGER,
        fields BLOB NOT NULL,
        UNIQUE (plan_id, kind, window_index))""",
)


_WHAT_NOW: Final = (
    "earlier releases have spent the rest permanently; query a saved release, which spends nothing. "
    "Use a separate ledger only for data of other people, never for the same people"
)


class Ledger:
    """The spends of one population, durable and shared by any number of processes.

    The first registration, or the first charge, fixes whose ledger it is, its unit, its relation and its limits; a
    later one may lower the limits. A charge is one transaction, on disk before it returns. It is a context manager, for
    one thread.

    Args:
        path: The file; made where it is not there.
        read_only: To look at it alone: the file is not made, and an older one stays what it is. A charge fails.

    Raises:
        LedgerError: The file is no ledger, is of a newer version, or lies where SQLite cannot keep it durable.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._path = os.fspath(path)
        self._account: Account | None = None
        self._newest_number = 0
        target = Path(self._path).absolute().as_uri() + "?mode=ro" if read_only else self._path
        try:
            self._db = sqlite3.connect(target, timeout=_BUSY_SECONDS, isolation_level=None, uri=read_only)
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path} cannot be opened as a ledger: {error}") from error
        try:
            if read_only:
                self._check_version()
            else:
                self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise LedgerError(f"{self._path} cannot be opened as a ledger: {error}") from error
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Closes the file. What was charged is on disk already."""
        self._db.close()

    def __del__(self) -> None:
        # One that was handed on without a name, as in release(sketch, ledger=Ledger(path)), closes with its last use.
        with suppress(AttributeError, sqlite3.Error):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._path!r})"

    def _repr_html_(self) -> str:
        try:
            limits, spends, spent, left = self.limits, self.events(), self.spent, self.left
        except LedgerError as error:  # closed, or opened by another thread
            closed = "closed" in str(error).lower()
            state = "closed" if closed else "opened by another thread, only that thread can read it"
            return pairs_html(f"Ledger {self._path}", [("state", state)])
        if limits is None or left is None:
            return pairs_html(f"Ledger {self._path}", [("spent", "nothing; no limits are fixed yet")])
        total = limits.cost
        rows = [
            [
                f"{number:,}",
                each.kind,
                "" if each.window is None else f"{each.window:,}",
                each.plan_id[:12],
                "" if (cost := each.loss.cost(limits.delta)) is None else numeral(cost.epsilon, up=True),
            ]
            for number, each in enumerate(spends, 1)
        ][-ROWS_MAX:]
        about = [
            ("population", limits.population),
            ("unit", f"{limits.unit}, {limits.relation}"),
            ("epsilon", f"{_ends(spent.epsilon, left.epsilon, total.epsilon)}"),
            ("delta", f"{_ends(spent.delta, left.delta, total.delta)}" if total.delta else ""),
        ]
        newest = f", the newest {ROWS_MAX}" if len(spends) > ROWS_MAX else ""
        title = f"{len(spends):,} spend{'' if len(spends) == 1 else 's'}{newest}"
        columns = ["number", "kind", "window", "plan", "epsilon"]
        return pairs_html(f"Ledger {self._path}", about) + (table_html(title, columns, rows) if rows else "")

    def register(self, limits: Limits) -> None:
        """Opens the population's account, or lowers its limits.

        Raises:
            BudgetError: Another population, a higher limit, or a unit and relation that imply nothing for the total.
            LedgerError: The file cannot be written.
        """
        with self._writing():
            self._account = self._registered(limits)

    def charge(self, spend: Spend, limits: Limits) -> None:
        """Registers ``limits`` with a plan's first charge, and charges ``spend``, both or neither.

        A plan that was charged here before goes on under limits that another plan has lowered since.

        Raises:
            BudgetError: It would pass a limit (the message says what is asked and what is left), its window was charged
                before, or :meth:`register` refuses the limits. Nothing is written.
            LedgerError: The file cannot be written.
        """
        with self._writing():
            registered = self._registered(self._lowered(spend, limits))
            try:
                account = registered.charge(spend)
            except BudgetError as error:
                if not registered.recorded(spend).is_passed:
                    raise
                raise BudgetError(f"{error}, because {_WHAT_NOW} (ledger {self._path})") from None
            cursor = self._db.execute(
                "INSERT INTO spend (plan_id, kind, window_index, fields) VALUES (?, ?, ?, ?)",
                (spend.plan_id, spend.kind, spend.window, spend.to_bytes()),
            )
            number = cursor.lastrowid
        assert number is not None  # an INSERT has one
        self._account, self._newest_number = account, number

    @property
    def spent(self) -> Cost:
        """The total (ε, δ) that was charged so far, in the unit and relation of the limits.

        It is the reading of a filter: it holds for all that was released within limits that were fixed before, and is
        no bound at a moment that was chosen by what the releases showed.
        """
        account = self._current()
        return account.spent if account else FREE

    @property
    def left(self) -> Cost | None:
        """The (ε, δ) that the limits still allow; None before any limits are registered."""
        account = self._current()
        return account.left if account else None

    @property
    def limits(self) -> Limits | None:
        """The population's limits; None before any are registered."""
        account = self._current()
        return account.limits if account else None

    def total(self, unit: str, relation: str) -> Cost | None:
        """The total in another unit and relation; None ("none") where the spends imply nothing for it."""
        account = self._current()
        return account.total(unit, relation) if account else FREE

    def events(self) -> tuple[Spend, ...]:
        """All spends, oldest first."""
        account = self._current()
        return account.spends if account else ()

    def statement(self) -> str:
        """What the releases reveal about one unit, and the spent and remaining budget, in plain words."""
        account = self._current()
        if account is None:
            return "Nothing has been charged to this ledger, and no limits are set."
        return f"{account_told(account)} Releases that were not charged here are not included."

    def _open(self) -> None:
        # In this order, for another process that makes the file now writes both in one transaction.
        if self._holds_something() and self._pragma("application_id") != _APPLICATION_ID:
            raise LedgerError(
                f"{self._path} is an SQLite file, but not a ledger"
            )  # found before anything of it changes
        self._switch_to_wal()
        self._db.execute("PRAGMA synchronous = FULL")
        for pragma, expected in (("journal_mode", "wal"), ("synchronous", _SYNCHRONOUS_FULL)):
            found = self._pragma(pragma)
            if found != expected:
                raise LedgerError(f"{self._path}: {pragma} is {found!r}, expected {expected!r}")
        with self._transaction():
            if self._pragma("user_version") == 0 and not self._holds_something():
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            else:
                self._check_version()
            if self._pragma("user_version") != FORMAT_VERSION:  # an older Hushsum refuses it now, instead of half of it
                self._db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _check_version(self) -> None:
        if self._pragma("application_id") != _APPLICATION_ID:
            raise LedgerError(f"{self._path} is an SQLite file, but not a ledger")
        version = self._pragma("user_version")
        if version not in _VERSIONS_READ:
            raise LedgerError(
                f"{self._path} has ledger format {version}; this version of Hushsum supports {FORMAT_VERSION}"
            )

    def _holds_something(self) -> bool:
        return bool(self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])

    def _switch_to_wal(self) -> None:
        # Only the switch of a new file does not wait for another process that switches it too: a transaction does.
        for _ in range(_SWITCH_ATTEMPTS):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                with self._transaction():
                    pass

    def _pragma(self, name: str) -> object:
        row: tuple[object] = self._db.execute(f"PRAGMA {name}").fetchone()
        return row[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE takes the write lock first: two processes cannot both read the same total and both pass the limit.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that starts from what every process has charged so far."""
        try:
            with self._transaction():
                self._read()
                yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path}: the ledger cannot be written: {error}") from error

    def _current(self) -> Account | None:
        try:
            self._db.execute("BEGIN")
            try:
                self._read()
            finally:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path}: the ledger cannot be read: {error}") from error
        return self._account

    def _read(self) -> None:
        """Brings the account up to what is in the file, reading only what is new."""
        row = self._db.execute("SELECT name, unit, relation, epsilon, delta FROM population").fetchone()
        if row is None:
            self._account = None
            return
        name, unit, relation, epsilon, delta = row
        limits = Limits(name, unit, relation, real(epsilon), real(delta))
        account = replace(self._account, limits=limits) if self._account else Account(limits)
        query = "SELECT number, fields FROM spend WHERE number > ? ORDER BY number"
        rows = self._db.execute(query, (self._newest_number,)).fetchall()
        self._account = account.recorded(*(Spend.from_bytes(fields) for _, fields in rows))
        self._newest_number = rows[-1][0] if rows else self._newest_number

    def _lowered(self, spend: Spend, limits: Limits) -> Limits:
        """Of a plan that was charged here before: its limits, or what another plan has lowered them to since."""
        known = self._db.execute("SELECT 1 FROM spend WHERE plan_id = ?", (spend.plan_id,)).fetchone()
        if not known or self._account is None:
            return limits
        now = self._account.limits
        return replace(limits, epsilon=min(limits.epsilon, now.epsilon), delta=min(limits.delta, now.delta))

    def _registered(self, limits: Limits) -> Account:
        """The account under these limits, written down inside the open transaction."""
        account = self._account.register(limits) if self._account else Account(limits)
        now = account.limits
        values = (now.population, now.unit, now.relation, real_text(now.epsilon), real_text(now.delta))
        self._db.execute("INSERT OR REPLACE INTO population VALUES (1, ?, ?, ?, ?, ?)", values)
        return account


def _ends(spent: Fraction, left: Fraction, total: Fraction) -> str:
    """Rounded against us."""
    return f"{numeral(spent, up=True)} spent, {numeral(left, up=False)} left of {numeral(total, up=False)}"
