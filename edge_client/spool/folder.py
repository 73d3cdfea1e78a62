"""A folder of spools: a file for each plan that its client has contributed to, and the name of the one in use.

What was collected under a plan that is no longer collected stays until the windows that it is of are over, and is sent
if the service goes back to that plan before. Then it is erased, and counted. The file itself is deleted if the service
spends under its plan. If the device spends, the file stays with its spends alone: plans of one population are paid for
from one account, and a device that forgot what it has spent could spend it again.
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from edge_client.errors import PolicyError, SpoolError
from edge_client.spool.changes import Remove
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import TAKES_PART
from edge_client.spool.window_submissions import SecureSubmissions, SiloSubmissions, WindowSubmissions
from edge_client.status import WITHDRAWN
from hushsum.delta import read_header
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, SECURE

_IN_USE: Final = "in-use"
_HEADER_BYTES: Final = 64  # no delta's header is longer
_HAS_SPENDS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'rounds'"
#: Windows of a secure sum or of a silo that may still be submitted, and submissions of unknown result.
_UNFINISHED: Final = (
    f"SELECT 1 FROM attempts WHERE state = {TAKES_PART} UNION ALL "  # noqa: S608  the constant TAKES_PART alone
    "SELECT 1 FROM rounds WHERE fate IS NULL AND length(round) > 0 LIMIT 1"
)


@dataclass(frozen=True)
class Erased:
    """What was collected under a plan that is no longer collected, and counts nowhere.

    Attributes:
        plan: That plan.
        deltas: Number of deltas that had no answer when their windows were over.
        windows: With a secure sum, or of a silo: windows that ended with no submission, or one of unknown result.
    """

    plan: Plan
    deltas: int
    windows: tuple[int, ...]


class SpoolFolder:
    """The spools of one client, all open and locked. Its methods block.

    Args:
        path: The folder.
        open_spool: Opens a spool's file, for a client id or None for the one that it names.
        client_id: Who contributes; None: as of :class:`Spool`.

    Attributes:
        held: Deltas without an answer of plans that are not in use.
        is_unfinished: Whether more than spends is left of those.

    Raises:
        SpoolError: A file cannot be opened, or belongs to another client.
    """

    def __init__(self, path: Path, open_spool: Callable[[Path, str | None], Spool], client_id: str | None) -> None:
        self.held = 0
        self.is_unfinished = False
        self._lock = threading.RLock()
        self._path = path
        self._open = open_spool
        self._spools: dict[int, Spool] = {}
        self._submissions: dict[int, WindowSubmissions] = {}
        try:
            for file in sorted(path.glob("plan-*.db")):
                self._spools[int(file.stem.removeprefix("plan-"))] = open_spool(file, client_id)
            marker = path / _IN_USE
            named = int(marker.read_text(encoding="ascii")) if marker.exists() else 0
            self._number = named if named in self._spools else max(self._spools, default=1)
            if not self._spools:
                self._spools[1] = open_spool(self._file(1), client_id)
        except BaseException:
            self.close()
            raise
        self._share()

    @property
    def current(self) -> Spool:
        """The spool of the plan in use, which may be none yet."""
        return self._spools[self._number]

    def take_up(self, plan: Plan, signature: bytes | None) -> Spool:
        """The spool of a plan, which is in use from here on, durably: its own if there was one before, or a new one.

        Raises:
            PolicyError: This device has spent of the plan's population, and in another unit or relation.
            SpoolError: A file cannot be written; the plan in use is the one before.
        """
        with self._lock:
            try:
                return self._take_up(plan, signature)
            except OSError as error:
                raise SpoolError(f"spools {self._path}: {error}") from error

    def _take_up(self, plan: Plan, signature: bytes | None) -> Spool:
        self._check_population(plan)
        client_id = self.current.client_id
        number = next((each for each, spool in self._spools.items() if spool.plan in (None, plan.bundle)), 0)
        if not number:
            number = max(self._spools) + 1
            self._spools[number] = self._open(self._file(number), client_id)
        spool = self._spools[number]
        if spool.plan is None:
            spool.keep_plan(plan.bundle, signature)
        elif signature is not None:
            spool.keep_signature(signature)
        self._mark(number)
        self._number = number
        self._submissions.pop(number, None)
        self._share()
        return spool

    def erase_over(self, now_ms: int) -> list[Erased]:
        """Erases what is of windows that are over, under plans that are not in use, and counts it in the spool in use.

        Args:
            now_ms: The service's clock, ms since 1970 UTC: a device whose own is wrong must not erase anything.
        """
        with self._lock:
            erased = self._erase_over(now_ms)
            self._share()
        return erased

    def _erase_over(self, now_ms: int) -> list[Erased]:
        erased = []
        for number, spool, plan in self._earlier():
            oldest = plan.window.index_at(now_ms - plan.window.lateness_ms)  # the first that is not over
            heads = spool.rows("SELECT sequence, substr(bytes, 1, ?) FROM deltas ORDER BY sequence", _HEADER_BYTES)
            over = [sequence for sequence, head in heads if read_header(head).window < oldest]
            windows = self._end_windows(number, spool, plan, oldest)
            if over:
                # First the count: after a kill between the two it is too large, and nothing is lost in silence.
                self.current.change(partial(_count_withdrawn, len(over)), recount=False)
                spool.commit([Remove(sequence, WITHDRAWN) for sequence in over])
                spool.erase_answered()
            if over or windows:
                erased.append(Erased(plan, len(over), windows))
            if plan.privacy.mode == CENTRAL and len(over) == len(heads) and not self._has_open_windows(spool, oldest):
                self._delete(number)
        return erased

    def close(self) -> None:
        with self._lock:
            for spool in self._spools.values():
                spool.close()

    def _earlier(self) -> list[tuple[int, Spool, Plan]]:
        """The spools of plans that are not in use, with their numbers."""
        others = [(number, spool, spool.plan) for number, spool in self._spools.items() if number != self._number]
        return [(number, spool, Plan.from_bytes(bundle)) for number, spool, bundle in others if bundle is not None]

    def _end_windows(self, number: int, spool: Spool, plan: Plan, oldest: int) -> tuple[int, ...]:
        """Ends the windows before this one, in which a secure sum's or a silo's client took part; those it has lost."""
        if plan.privacy.mode != SECURE and not plan.privacy.is_silo:
            return ()
        if number not in self._submissions:
            kind = SecureSubmissions if plan.privacy.mode == SECURE else SiloSubmissions
            self._submissions[number] = kind(spool, plan)
        submissions = self._submissions[number]
        status = submissions.update(range(oldest, oldest))
        submissions.erase()
        return tuple(sorted({*status.passed, *status.lost}))

    def _has_open_windows(self, spool: Spool, oldest: int) -> bool:
        """Whether its count of records a client and window is still needed, should the service go back to its plan."""
        return bool(spool.rows("SELECT 1 FROM contributions WHERE window >= ? LIMIT 1", oldest))

    def _check_population(self, plan: Plan) -> None:
        for spool in self._spools.values():
            if spool.plan in (None, plan.bundle) or not spool.rows(_HAS_SPENDS):
                continue
            limits = Plan.from_bytes(spool.plan or b"").limits
            mine = plan.limits
            if limits.population == mine.population and (limits.unit, limits.relation) != (mine.unit, mine.relation):
                asked = f"unit {mine.unit!r} under {mine.relation}"
                allowed = f"unit {limits.unit!r} under {limits.relation}, in which it has spent of the same population"
                raise PolicyError("population", asked, allowed)

    def _share(self) -> None:
        """Tells the spool in use what this device has spent of its plan's population under other plans."""
        self.held = sum(len(spool.unanswered()) for _, spool, _ in self._earlier())
        self.is_unfinished = any(
            plan.privacy.mode == CENTRAL or not spool.is_empty or (spool.rows(_HAS_SPENDS) and spool.rows(_UNFINISHED))
            for _, spool, plan in self._earlier()
        )
        bundle = self.current.plan
        if bundle is None:
            return
        population = Plan.from_bytes(bundle).limits.population
        self.current.earlier = tuple(
            (plan.limits, tuple(spend for (spend,) in spool.rows("SELECT spend FROM rounds ORDER BY window")))
            for _, spool, plan in self._earlier()
            if plan.limits.population == population and spool.rows(_HAS_SPENDS)
        )

    def _mark(self, number: int) -> None:
        partial_file = self._path / f"{_IN_USE}.tmp"
        with partial_file.open("w", encoding="ascii") as file:
            file.write(f"{number}\n")
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(self._path / _IN_USE)

    def _delete(self, number: int) -> None:
        self._spools.pop(number).close()
        for file in self._path.glob(f"{self._file(number).name}*"):
            file.unlink()

    def _file(self, number: int) -> Path:
        return self._path / f"plan-{number:04}.db"


def _count_withdrawn(deltas: int, database: sqlite3.Connection, counts: Counter[str]) -> None:
    del database
    counts[WITHDRAWN] += deltas
