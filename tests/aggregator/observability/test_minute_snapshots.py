"""Of a plan of reports metrics say in which minute something came, and nothing nearer than that."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from aggregator.fold.verdicts import Verdict, VerdictKind
from aggregator.observability.health import ProcessTelemetry
from aggregator.observability.metrics import Metrics, until_step_s
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status
from tests.aggregator.local_clients import report_plan
from tests.doubles import ManualRuntime
from tests.plans import small_plan
from tests.services import config_of, without_process_labels


class Page:
    """What a scrape would see of one process, and how to make it see more."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.runtime, self.metrics = ManualRuntime(1_000_000_000_000), Metrics()  # 40 s into its minute
        self.telemetry = ProcessTelemetry(config_of(folder, plan), self.runtime, self.metrics)

    @property
    def text(self) -> str:
        return without_process_labels(generate_latest(self.metrics.registry).decode())

    def something_comes(self) -> None:
        """A batch is answered, appended, folded, and its fold stored."""
        self.metrics.session_opened()
        self.metrics.answered(Answer(None, Status.COUNTED))
        self.metrics.committed(1, 300, 0.01)
        self.metrics.appended(0, 1)
        self.metrics.folded(0, 1, [Verdict(VerdictKind.COUNTED, None, None, None, 0, 0)])
        self.metrics.checkpointed(0, 1, 0.01)
        self.metrics.sounded({0: 2}, {0: 1})


@asynccontextmanager
async def paged(folder: Path, plan: Plan) -> AsyncIterator[Page]:
    page = Page(folder, plan)
    async with AsyncExitStack() as stack:
        page.telemetry.collect(plan, stack)
        await page.runtime.settle()
        yield page


async def test_of_a_plan_of_reports_nothing_is_seen_before_the_next_whole_minute(tmp_path: Path) -> None:
    async with paged(tmp_path, report_plan()) as page:
        before = page.text
        page.something_comes()
        for _ in range(19):
            await page.runtime.advance(1.0)
            assert page.text == before, "not one byte tells that something came"

        await page.runtime.advance(4.0)
        after = page.text
        for line in (
            'hushsum_deltas_total{status="counted"} 1.0',
            "hushsum_appended_bytes_total 300.0",
            "hushsum_commit_seconds_count 1.0",
            "hushsum_group_entries_count 1.0",
            'hushsum_log_end{partition="0"} 2.0',
            'hushsum_fold_position{partition="0"} 1.0',
            'hushsum_stored_fold_lag{partition="0"} 1.0',
            'hushsum_folded_total{partition="0",verdict="counted"} 1.0',
            "hushsum_checkpoint_seconds_count 1.0",
            "hushsum_sessions 1.0",
        ):
            assert f"\n{line}\n" in after
            assert f"\n{line}\n" not in before

        page.something_comes()
        await page.runtime.advance(55.0)
        assert page.text == after
        await page.runtime.advance(6.0)
        assert 'hushsum_deltas_total{status="counted"} 2.0' in page.text


async def test_it_says_of_when_it_is_and_not_when_anything_came_first(tmp_path: Path) -> None:
    async with paged(tmp_path, report_plan()) as page:
        page.something_comes()
        await page.runtime.advance(60.0)
        told = [line for line in page.text.splitlines() if line.startswith("# HELP ")]
        assert told
        assert all(line.endswith(" (as of the last whole minute)") for line in told)
        assert "_created" not in page.text


async def test_of_other_plans_everything_is_seen_at_once(tmp_path: Path) -> None:
    async with paged(tmp_path, small_plan()) as page:
        page.something_comes()
        assert 'hushsum_deltas_total{status="counted"} 1.0' in page.text
        assert "whole minute" not in page.text


@pytest.mark.parametrize("plan", [report_plan(), small_plan()], ids=["reports", "others"])
async def test_every_sample_says_which_plan_and_which_role(tmp_path: Path, plan: Plan) -> None:
    async with paged(tmp_path, plan) as page:
        page.something_comes()
        await page.runtime.advance(60.0)
        text = generate_latest(page.metrics.registry).decode()
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert len(samples) > 100
        named = f'plan="{plan.name}"'
        assert [line for line in samples if named not in line or 'role="all"' not in line] == []
        labels = f'mode="{plan.privacy.mode}",{named},plan_id="{plan.hex_id}",role="all"'
        assert f"hushsum_plan_info{{{labels}}} 1.0" in samples


def test_before_the_plan_is_known_every_sample_says_the_role(tmp_path: Path) -> None:
    page = Page(tmp_path, small_plan())
    text = generate_latest(page.metrics.registry).decode()
    assert all('role="all"' in line for line in text.splitlines() if not line.startswith("#"))


def test_a_process_itself_reads_what_is_so_now() -> None:
    metrics = Metrics()
    metrics.registry.hold()
    metrics.session_opened()
    assert metrics.registry.get_sample_value("hushsum_sessions") == 1
    assert metrics.registry.get_sample_value("hushsum_deltas_total", {"status": "counted"}) == 0
    assert metrics.registry.get_sample_value("hushsum_nothing") is None


def test_steps_are_whole_minutes_of_the_clock() -> None:
    assert [until_step_s(now_ms) for now_ms in (0, 1, 59_999, 60_000)] == [60.0, 59.999, 0.001, 60.0]
