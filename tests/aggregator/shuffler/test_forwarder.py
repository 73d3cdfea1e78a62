"""Cutting, forwarding and erasing: nothing is lost, nothing is doubled, and nothing small ever leaves."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.aggregator.shuffler.shuffled import (
    BUSY,
    LATE,
    LEAST,
    PLAN,
    UNKNOWN_KEY,
    Counting,
    Site,
    bytes_in,
    copied,
    opened,
    shuffled_plan,
    taken,
)
from tests.doubles import ManualRuntime

CUT_S, OVER_S = 15.0, 20.0  # after a window's start
FIRST_STREAM = 0x1234_5678_0000_0001


@asynccontextmanager
async def site_on(folder: Path, receiver: Counting | None = None) -> AsyncIterator[Site]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240  a test waits for it
    runtime = ManualRuntime()
    file = await opened(folder, runtime)
    try:
        yield Site(file, receiver or Counting(), runtime)
    finally:
        await file.close()


async def collect(site: Site, reports: int, *, batches: int = 4, first_stream: int = FIRST_STREAM) -> Counter[int]:
    """So many reports for the site's window, in so many batches."""
    parts = np.array_split(np.arange(reports) * 7 % 1280, batches)
    await site.file.take(
        [taken(part.tolist(), window=site.window, stream=first_stream + n) for n, part in enumerate(parts)]
    )
    await site.file.tidy()
    return Counter((np.arange(reports) * 7 % 1280).tolist())


async def test_all_reports_of_a_window_leave_as_one_batch_once_it_is_cut(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        reports = await collect(site, LEAST)
        await site.runtime.advance(CUT_S - 0.001)
        assert await site.turn()
        assert site.receiver.sent == {}
        await site.runtime.advance(0.001)
        assert await site.turn()
        assert site.receiver.reports == {site.window: reports}
        assert site.receiver.sizes() == [LEAST]
        assert site.outcomes("forwarded") == 1


async def test_batches_leave_under_numbers_that_no_device_gave_them(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        await site.turn()
        given = {(FIRST_STREAM + n).to_bytes(8, "big") for n in range(4)}
        assert given.isdisjoint(site.receiver.sent)


async def test_one_report_too_few_never_leaves_and_is_erased(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST - 1)
        await site.runtime.advance(CUT_S)
        assert await site.turn()
        assert site.receiver.sent == {}
        assert site.outcomes("dropped") == 1
        assert FIRST_STREAM.to_bytes(8, "big") not in bytes_in(tmp_path)
        await site.runtime.advance(OVER_S)
        assert await site.turn()
        assert await site.file.finished() == []
        assert site.receiver.sent == {}


async def test_what_does_not_fit_one_batch_leaves_in_equal_ones_that_are_all_large_enough(tmp_path: Path) -> None:
    plan = shuffled_plan()
    most = plan.delta_records_max
    assert most == 65_536
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        reports = await collect(site, 2 * most + 2, batches=8)
        await site.runtime.advance(CUT_S)
        await site.turn()
        assert sorted(site.receiver.sizes()) == [43_691, 43_691, 43_692]
        assert site.receiver.reports == {site.window: reports}


async def test_the_same_bytes_are_sent_until_there_is_an_answer(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        reports = await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        site.receiver.down = True
        assert not await site.turn()
        site.receiver.down, site.receiver.loses_answers = False, 2
        assert not await site.turn()
        assert not await site.turn()
        assert await site.turn()
        assert await site.turn()
        (copies,) = site.receiver.sent.values()
        assert len(copies) == 3
        assert len(set(copies)) == 1
        assert site.receiver.reports == {site.window: reports}


async def test_a_refusal_is_tried_again_while_the_window_is_open_and_then_the_loss_is_said(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        site.receiver.answer = UNKNOWN_KEY
        assert not await site.turn()
        await site.runtime.advance(OVER_S - CUT_S)
        site.receiver.answer = BUSY
        assert not await site.turn()
        assert site.outcomes("lost") == 0
        site.receiver.answer = LATE
        assert await site.turn()
        assert site.outcomes("lost") == 1
        assert await site.file.finished() == []


async def test_a_batch_that_is_refused_keeps_no_other_from_leaving(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(10)
        first, site.window = site.window, site.window + 1
        await collect(site, LEAST, first_stream=FIRST_STREAM + 50)
        site.receiver.answer = UNKNOWN_KEY
        await site.runtime.advance(CUT_S - 10)
        assert not await site.turn()
        await site.runtime.advance(10)
        # The first window's loss is said by now; the second one's batch is still tried.
        assert not await site.turn()
        assert len(site.receiver.sent) == 2
        assert [window for window, _ in await site.file.outgoing()] == [first + 1]
        site.receiver.answer = None
        assert await site.turn()
        assert [*site.receiver.reports] == [first + 1]


async def test_after_its_time_all_that_is_known_of_a_window_is_that_it_is_over(tmp_path: Path) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        await site.turn()
        assert len(await site.file.finished()) == 1
        await site.runtime.advance(OVER_S - CUT_S)
        await site.turn()
        assert await site.file.finished() == []
        assert await site.file.closed_through() == site.window
        assert FIRST_STREAM.to_bytes(8, "big") not in bytes_in(tmp_path)


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """A database whose process dies right after one of its durable steps; what lies on disk then is kept."""

    def __init__(self, database: Any, steps: int, die: Callable[[], None]) -> None:
        self._database, self._steps, self._die = database, steps, die

    async def write(self, work: Callable[[Any], Any]) -> Any:
        return await self._step(self._database.write, work)

    async def truncate(self) -> None:
        await self._step(self._database.truncate)

    async def _step(self, step: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        self._steps -= 1
        result = await step(*arguments)
        if self._steps == 0:
            self._die()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Story:
    """Two batches of one window and a single report of the next, until all is over; after a kill it goes on.

    Attributes:
        unanswered: What devices still send.
    """

    def __init__(self, runtime: ManualRuntime) -> None:
        self.runtime = runtime
        self.window = PLAN.window.index_at(runtime.now_ms())
        self.whole = Counter(range(30))
        self.unanswered = [
            *(taken(range(15 * n, 15 * n + 15), window=self.window, stream=FIRST_STREAM + n) for n in range(2)),
            taken([1279], window=self.window + 1, stream=FIRST_STREAM + 9),
        ]
        self.waits = [CUT_S, 10.0, OVER_S]

    async def go_on(self, site: Site) -> None:
        await site.forwarder.close_windows()
        while self.unanswered:
            await site.file.take([self.unanswered[0]])
            await site.file.tidy()
            del self.unanswered[0]
        while True:
            while not await site.turn():
                pass
            if not self.waits:
                return
            await self.runtime.advance(self.waits.pop(0))


async def killed_at(step: int, folder: Path, dead: Path, story: Story, receiver: Counting) -> bool:
    """Tells the story up to a step, and leaves the folder as it was then; whether it came to that step."""

    def die() -> None:
        copied(folder, dead)
        raise Killed

    folder.mkdir()  # noqa: ASYNC240  a test waits for it
    file = await opened(folder, story.runtime)
    file._database = Mortal(file._database, step, die)  # type: ignore[assignment]  # but for kills as real
    try:
        await story.go_on(Site(file, receiver, story.runtime))
    except Killed:
        return True
    finally:
        await file.close()
    return False


async def test_a_kill_after_any_durable_step_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    step = 1
    while True:
        runtime = ManualRuntime()
        story, receiver = Story(runtime), Counting()
        receiver.loses_answers = 1
        dead = tmp_path / f"dead-{step}"
        if not await killed_at(step, tmp_path / f"{step}", dead, story, receiver):
            break
        file = await opened(dead, runtime)
        await story.go_on(Site(file, receiver, runtime))
        assert receiver.reports == {story.window: story.whole}, f"killed at step {step}"
        assert [len(set(copies)) for copies in receiver.sent.values()] == [1], f"killed at step {step}"
        assert await file.finished() == []
        await file.close()
        assert FIRST_STREAM.to_bytes(8, "big") not in bytes_in(dead), f"killed at step {step}"
        step += 1
    assert receiver.reports == {story.window: story.whole}
    assert step > 15, "the kills went through the whole story"
