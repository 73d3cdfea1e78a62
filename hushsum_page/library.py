"""Releases of a source, loaded: a few of them at a time in memory, and what was computed of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from hushsum.release_format import COUNTERS_MAX
from hushsum.releases import Release, Series
from hushsum_page.source import RELEASED, MissingReleaseError, OutcomeEntry, PlanEntry, Source
from hushsum_page.workers import BoundedCache, BusyError, Workers

T = TypeVar("T")

#: Counters of the releases that stay in memory, 8 bytes each.
KEPT_COUNTERS: Final = 2**25
#: Bytes of the figures that stay in memory.
KEPT_BYTES: Final = 2**25
#: Bytes of the files that are on their way to browsers, half of them to one holder; one file may be larger than that
#: alone.
SENT_BYTES_MAX: Final = 2**28
_SENT_PIECE: Final = 2**16
#: Counters of a series, which are unpacked for its first view; of a plan with more the newest windows are shown.
SERIES_COUNTERS: Final = 2**23
SERIES_WINDOWS: Final = 400
#: Computations of seconds that wait, run, or have ended and were not asked for since.
BEGUN_MAX: Final = 8
#: And so many of them for one holder, so that others find a place beside them.
BEGUN_OF_ONE_MAX: Final = 4


class Found(NamedTuple):
    """A release that an address names."""

    entry: PlanEntry
    outcome: OutcomeEntry


@dataclass
class _Computation:
    """A computation of seconds.

    Attributes:
        holder: The key of who asked for it first.
        future: Its result; None while what it needs is loaded.
    """

    holder: str
    future: Future[Any] | None = None

    @property
    def has_ended(self) -> bool:
        return self.future is not None and self.future.done()


class Library:
    """What views read of a source. Only for use on one event loop.

    Args:
        source: Plans and releases.
        workers: Where releases are loaded and figures are computed.
        counters_max: A release with more counters is refused, before anything of that size is allocated.
    """

    def __init__(self, source: Source, workers: Workers, *, counters_max: int = COUNTERS_MAX) -> None:
        self.source, self.workers = source, workers
        self._counters_max = counters_max
        self._releases: BoundedCache[Release] = BoundedCache(KEPT_COUNTERS, lambda each: each.counters.size)
        self._computed: BoundedCache[Any] = BoundedCache(KEPT_BYTES, lambda each: getattr(each, "size", 10_000))
        self._making: dict[Hashable, asyncio.Task[Any]] = {}
        self._sent_bytes: Counter[str] = Counter()  # by the key of their holder
        self._begun: dict[Hashable, _Computation] = {}
        self._loading = asyncio.Lock()  # one at a time: memory of a release that is not in the cache yet is not counted

    async def plan(self, id: str) -> PlanEntry:
        """A plan by the first 16 digits of its id.

        Raises:
            MissingReleaseError: There is none.
        """
        for entry in await self.source.plans():
            if entry.plan.hex_id[: len(id)] == id and len(id) == 16:
                return entry
        raise MissingReleaseError("there is no such plan here")

    async def find(self, id: str) -> Found:
        """A release by its id.

        Raises:
            MissingReleaseError: There is none.
        """
        for entry in await self.source.plans():
            for outcome in entry.outcomes:
                if outcome.state == RELEASED and outcome.id == id:
                    return Found(entry, outcome)
        raise MissingReleaseError("there is no such release here: it may have been removed")

    async def data(self, found: Found) -> bytes:
        """The bytes of a release; MissingReleaseError: it is not there any more."""
        return await self.source.data(found.entry.plan, found.outcome)

    async def sent(self, found: Found, holder: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a release in pieces, for a holder's browser that may be slow; the first one is empty.

        Raises:
            MissingReleaseError: It is not there any more.
            BusyError: Others are on their way, and there is no memory for one more, or not for this holder.
        """
        size, own, total = found.outcome.size_bytes, self._sent_bytes[holder], self._sent_bytes.total()
        if own and own + size > SENT_BYTES_MAX // 2:
            raise BusyError("Other files are on their way to you. Ask for this one again when one of them has arrived.")
        if total and total + size > SENT_BYTES_MAX:
            raise BusyError
        self._sent_bytes[holder] += size
        try:
            data = await self.data(found)
            yield b""
            for at in range(0, len(data), _SENT_PIECE):
                yield data[at : at + _SENT_PIECE]
        finally:
            self._sent_bytes[holder] -= size
            if not self._sent_bytes[holder]:
                del self._sent_bytes[holder]

    async def load(self, found: Found) -> Release:
        """A release.

        Raises:
            MissingReleaseError: It is not there any more.
            ReleaseError: Its bytes are no release, or of too many counters.
        """
        if (kept := self._releases.get(found.outcome.id)) is not None:
            return kept
        async with self._loading:
            if (kept := self._releases.get(found.outcome.id)) is not None:
                return kept
            data = await self.data(found)
            release = await self.workers.run(_loaded, data, self._counters_max)
            return self._releases.put(found.outcome.id, release)

    async def series(self, entry: PlanEntry, outcomes: Sequence[OutcomeEntry]) -> Series:
        """The releases of some windows of a plan, loaded.

        Raises:
            MissingReleaseError: There are none, or one is not there any more.
            ReleaseError: They are no series.
        """
        if not outcomes:
            raise MissingReleaseError("this plan has no release of a window")
        return Series([await self.load(Found(entry, outcome)) for outcome in outcomes])

    async def computed(self, key: Hashable, work: Callable[..., T], *arguments: object) -> T:
        """What a function makes of releases, computed once and kept for as long as there is room.

        Who asks for the same while it is computed waits for it.
        """
        return await self.made(key, lambda: self.workers.run(work, *arguments))

    async def made(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same of work that loads what it needs, which nothing is loaded for if its result is kept."""
        kept: T | None = self._computed.get(key)
        if kept is not None:
            return kept
        if key not in self._making:
            making = self._making[key] = asyncio.create_task(make())
            making.add_done_callback(lambda _: self._making.pop(key))
        made: T = self._computed.put(key, await asyncio.shield(self._making[key]))
        return made

    async def begun(self, key: Hashable, holder: str, prepare: Callable[[], Awaitable[Callable[[], T]]]) -> T | None:
        """The same of work of seconds: it is begun at the first call; None until it has ended.

        ``prepare`` loads what the work needs, and gives the work: it is called only where the work is to begin.

        Raises:
            BusyError: Too much of it waits already, or too much of this holder's.
            Exception: Whatever ``prepare`` or the work raised, once; it begins anew at the next call.
        """
        kept: T | None = self._computed.get(key)
        if kept is not None:
            return kept
        if (begun := self._begun.get(key)) is None:
            self._make_room(holder)
            begun = self._begun[key] = _Computation(holder)
            try:
                begun.future = self.workers.begin(await prepare())
            except BaseException:
                del self._begun[key]
                raise
        if begun.future is None or not begun.future.done():
            return None
        del self._begun[key]
        made: T = self._computed.put(key, begun.future.result())
        return made

    def _make_room(self, holder: str) -> None:
        """Forgets what has ended and was not asked for since, where places are taken: BusyError if that is too little.

        A holder whose own places are taken loses its own results alone.
        """
        taken = [key for key, each in self._begun.items() if each.holder == holder]
        why = "What you asked for before is still computed. Ask for this when that has ended."
        if len(taken) < BEGUN_OF_ONE_MAX:
            taken, why = list(self._begun), ""
            if len(taken) < BEGUN_MAX:
                return
        ended = [key for key in taken if self._begun[key].has_ended]
        if not ended:
            raise BusyError(why)
        for key in ended:
            del self._begun[key]


def newest_windows(entry: PlanEntry) -> tuple[Sequence[OutcomeEntry], int]:
    """The releases of the newest windows of a plan, as many as make a series, and how many older ones are left out."""
    shown = [each for each in entry.outcomes if each.state == RELEASED and each.window is not None]
    newest = shown[: max(2, min(SERIES_WINDOWS, SERIES_COUNTERS // max(1, _size_of(entry))))]
    return newest, len(shown) - len(newest)


def _loaded(data: bytes, counters_max: int) -> Release:
    return Release.from_bytes(data, counters_max=counters_max)


def _size_of(entry: PlanEntry) -> int:
    size = 1
    for side in entry.plan.counters_shape:
        size *= side
    return size


def warm_up() -> None:
    """Loads what the first picture would: nobody waits for it then."""
    import contourpy  # noqa: F401  it is loaded for the pictures, and used there

    from hushsum import families

    families.warm_up()
