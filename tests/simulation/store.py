"""The store of all processes: the real one over a database in memory, with what goes wrong on the way to it."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from aggregator.model import ClaimedFold, ReservedStep, StoredOutcome
from aggregator.store.store import Store
from aggregator.store.transaction import run_to_end
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.weather import Line

_READS: Final = frozenset(
    {
        "load_plan",
        "plan_named",
        "windows",
        "states",
        "unfinished",
        "now_ms",
        "fold_marks",
        "stream_memory",
        "first_window",
        "lease",
        "forget_asked",
        "sealed_window",
        "unpublished",
        "outcomes",
        "outcome",
        "account",
        "spends_alike",
        "receipts_mark",
    }
)
_RELEASERS: Final = frozenset(
    {
        *("mark_closing", "bind_receipts", "reserve_outcome", "commit_outcome", "publish"),
        *("reserve_step", "commit_step", "ask_to_forget", "forget", "remove_releases", "renew_lease"),
    }
)


class SimStore:
    """Every method of :class:`aggregator.store.store.Store`, over a line.

    Args:
        line: The way to the store.
        inner: The store itself, which never waits.
        books: Are told what was read and written.
    """

    def __init__(self, line: Line, inner: Store, books: Books) -> None:
        self.inner = inner
        self._line, self._books = line, books

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any, **keywords: Any) -> Any:
            async def serve(process: Process | None) -> Any:
                result = await getattr(self.inner, name)(*arguments, **keywords)
                self._note(name, arguments, keywords, result, process)
                return result

            return await self._line.call(name, serve, writes=name not in _READS)

        return call

    async def close(self) -> None:
        """It goes on for the other processes."""

    def _note(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any, process: Process | None
    ) -> None:
        books = self._books
        if name in _RELEASERS:
            books.wrote("the lease", keywords["fence"], process)
        match name:
            case "acquire_lease" if result is not None:
                books.gave("the lease", result, process)
            case "claim_partition" if result is not None:
                books.gave(f"partition {arguments[1]}", cast("ClaimedFold", result).fence, process)
            case "checkpoint":
                books.wrote(f"partition {arguments[1]}", keywords["fence"], process)
            case "sealed_window":
                books.read_sealed(arguments[1], result)
            case "commit_outcome":
                books.drew(arguments[2], hashlib.sha256(arguments[3]).digest())
            case "reserve_step":
                books.reserved(arguments[1], cast("ReservedStep", result))
            case "commit_step":
                books.drew(arguments[1], hashlib.sha256(arguments[2]).digest())
            case "publish":
                outcome = run_to_end(self.inner.outcome(*arguments))
                assert outcome is not None
                books.published(arguments[2], outcome)
            case "outcome" if result is not None:
                books.published(arguments[2], cast("StoredOutcome", result))


def as_store(store: SimStore) -> Store:
    """The same, for a type checker that cannot see its methods."""
    return cast("Store", store)
