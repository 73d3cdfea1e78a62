"""An operator who sets back, loses and copies files at random, with every command about receipts, and kills in between.

Nothing is drawn twice, and no command makes a receipt vanish, while the store, its receipts or the copy that the store
knows proves every outcome that was ever published.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from aggregator.backends import Backends
from aggregator.config import Config
from aggregator.data_dir import DataDir
from aggregator.errors import AggregatorError
from aggregator.model import Outcome, ReceiptsMark
from aggregator.observability.metrics import Metrics
from aggregator.release.receipts import ReceiptsFile
from aggregator.repair import begin_receipts_copy, end_receipts_copy, mark_all_lost, rebuild_receipts
from aggregator.runtime import SystemRuntime
from aggregator.store.store import Store, open_sqlite_store
from hushsum.entropy import ReplayableEntropy
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import DiskSite
from tests.doubles import ManualRuntime

PLAN = tally_plan(counters=50, records_per_client=3, total_epsilon=1000)
WINDOWS: Final = 60
STEPS: Final = 80
RUNTIME = SystemRuntime()

STORE, RECEIPTS, COPY, OTHER = "data/store.db", "data/receipts.jsonl", "copy.jsonl", "other.jsonl"
SET_BACK = (
    *((STORE, "data/log.db"), (STORE, "data/log.db", RECEIPTS), (STORE, "data/log.db", COPY)),
    *((RECEIPTS,), (COPY,), (OTHER,)),
)
COMMANDS: Mapping[str, Callable[[Config, SystemRuntime], Awaitable[object]]] = {
    "begin": begin_receipts_copy,
    "reverse": rebuild_receipts,
    "end": end_receipts_copy,
    "mark lost": mark_all_lost,
}
STEPS_OF_OTHERS = ("snapshot", "set back", "lose", "copy")
WEIGHTS = {"start": 6, "snapshot": 2, "set back": 4, "lose": 2, "copy": 1, "begin": 3, "reverse": 2, "end": 1.5}
KILLED_IN: tuple[tuple[type, str], ...] = (
    *((ReceiptsFile, name) for name in ("append", "write", "begin")),
    *((Store, name) for name in ("publish", "set_receipts", "bind_receipts", "mark_lost", "commit_outcome")),
)

Proved = dict[int, bytes]


class KilledError(BaseException):
    """The process ends here: no handler of its own sees it."""


class World:
    """Files in a folder: ``data`` of a service, and two places for a copy of its receipts."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.random, self._monkeypatch = folder, random.Random(seed), monkeypatch
        self.shown: Proved = {}
        self.snapshots: list[dict[Path, bytes]] = []
        self.said: list[str] = []
        self._starts = 0

    def config(self, copy: str | None) -> Config:
        named = {} if copy is None else {"receipts_copy": str(self.folder / copy)}
        return Config.load(None, {"data": str(self.folder / "data"), **named}, needs_plan=False)

    def files(self) -> dict[Path, bytes]:
        folders = (self.folder, self.folder / "data")
        paths = [path for folder in folders for path in folder.iterdir() if path.is_file() and "lock" not in path.name]
        return {path: path.read_bytes() for path in paths}

    def put(self, files: Mapping[Path, bytes]) -> None:
        for path in self.files():
            path.unlink()
        for path, data in files.items():
            path.write_bytes(data)

    async def stored(self) -> tuple[list[Outcome], ReceiptsMark | None]:
        if not (self.folder / STORE).exists():
            return [], None
        store = await open_sqlite_store(self.folder / STORE, RUNTIME)
        try:
            plans = await store.plans()
            return await store.outcomes(PLAN.id) if plans else [], await store.receipts_mark()
        finally:
            await store.close()

    async def proved(self) -> Proved:
        """What store, receipts and the copy that the store knows prove together: the digest of each outcome."""
        outcomes, bound = await self.stored()
        known = "" if bound is None else bound.copy.removeprefix("receipts ")
        found: Proved = {}
        for path in (self.folder / RECEIPTS, *([Path(known)] if known else [])):
            try:
                sink = await ReceiptsFile.open(path, RUNTIME, ReplayableEntropy(b""), repairs=False)
            except AggregatorError:
                continue  # it is damaged
            if bound is None or not bound.id or sink.lines.mark.id == bound.id:
                found |= {receipt.window: receipt.sha256 for receipt in sink.lines.receipts}
        return found | {outcome.window: outcome.sha256 for outcome in outcomes if outcome.published}

    @asynccontextmanager
    async def service(self, copy: str | None) -> AsyncIterator[DiskSite]:
        """A service with these settings, whose releaser has started; another start draws with other randomness."""
        self._starts += 1
        async with AsyncExitStack() as stack:
            data = DataDir.open(self.folder / "data")
            stack.callback(data.close)
            backends = Backends(self.config(copy), data, RUNTIME, Metrics(), stack)
            key = ReplayableEntropy(b"%d" % self._starts)
            site = await DiskSite.open(data.path, PLAN, ManualRuntime(), entropy=key)
            stack.push_async_callback(site.die)
            await site.store.open_windows(PLAN.id, site.window, site.window + WINDOWS)
            backends.use_store(site.store)
            site.releaser = site.new_releaser(site.fence, receipts=await backends.receipts())
            await site.start()
            yield site

    async def start(self, copy: str | None, windows: int) -> str:
        async with self.service(copy) as site:
            for _ in range(windows if not site.releaser.stopped else 0):
                await site.releaser.seal(early=True)
                await site.releaser.release()
            return site.releaser.stopped or "released"

    def change(self, step: str) -> str:
        if step == "snapshot":
            self.snapshots = [*self.snapshots[-5:], self.files()]
        elif step == "set back" and self.snapshots:
            snapshot, names = self.random.choice(self.snapshots), self.random.choice(SET_BACK)
            for path in (self.folder / name for name in names):
                for end in ("", "-wal", "-shm"):
                    path.with_name(path.name + end).unlink(missing_ok=True)
                if path in snapshot:
                    path.write_bytes(snapshot[path])
            return str(names)
        elif step == "lose":
            name = self.random.choice([RECEIPTS, COPY, OTHER])
            (self.folder / name).unlink(missing_ok=True)
            return name
        elif step == "copy":
            source, target = self.random.choice([(COPY, OTHER), (OTHER, COPY), (RECEIPTS, COPY), (RECEIPTS, OTHER)])
            if (self.folder / source).exists():
                (self.folder / target).write_bytes((self.folder / source).read_bytes())
            return f"{source} to {target}"
        return ""

    async def step(self) -> None:
        step = self.random.choices([*WEIGHTS, "mark lost"], [*WEIGHTS.values(), 2])[0]
        copy = self.random.choice([COPY, COPY, COPY, OTHER, None])
        before, files = await self.proved(), self.files()
        if step in STEPS_OF_OTHERS:
            what = self.change(step)
            after = await self.proved()
            if any(after.get(window) != digest for window, digest in self.shown.items()):
                self.put(files)  # nothing that is asked would tell
                return
            self.said.append(f"{step} {what}")
            return
        with self._monkeypatch.context() as patched:
            if self.random.random() < 0.25:
                self._kill(patched)
            try:
                self.said.append(f"{step} {copy}: {await self._command(step, copy)}")
            except (KilledError, AggregatorError) as error:
                self.said.append(f"{step} {copy}: {type(error).__name__}: {error}")
        after = await self.proved()
        assert not [window for window in self.shown if window in before and window not in after], "receipts vanished"
        await self.look()

    async def look(self) -> None:
        """Somebody looks at every published outcome."""
        for outcome in (await self.stored())[0]:
            if outcome.published:
                assert self.shown.setdefault(outcome.window, outcome.sha256) == outcome.sha256, "drawn twice"

    async def _command(self, step: str, copy: str | None) -> str:
        if step == "start":
            return await self.start(copy, self.random.choice([0, 1, 1, 2]))
        return str(await COMMANDS[step](self.config(None if step == "end" else copy), RUNTIME))

    def _kill(self, patched: pytest.MonkeyPatch) -> None:
        """Before or after the first, second or third call of one method from now on."""
        port, name = self.random.choice(KILLED_IN)
        left, after, method = self.random.choice([1, 1, 2, 3]), self.random.random() < 0.5, getattr(port, name)

        async def killed(*arguments: object, **keywords: object) -> object:
            nonlocal left
            left -= 1
            if not left and not after:
                raise KilledError(f"before {name}")
            result: object = await method(*arguments, **keywords)
            if not left:
                raise KilledError(f"after {name}")
            return result

        patched.setattr(port, name, killed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
async def test_nothing_is_drawn_twice_and_no_receipt_vanishes_while_something_that_is_asked_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    world = World(tmp_path, seed, monkeypatch)
    try:
        await world.start(world.random.choice([COPY, COPY, None]), 2)
        await world.look()
        for _ in range(STEPS):
            await world.step()
    except AssertionError as error:
        raise AssertionError("\n".join([f"{error}; seed {seed}", *world.said])) from error
