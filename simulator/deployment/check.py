"""``check``: waits for the outcomes of the fleet's windows, and compares all that was told with all that is there."""

import asyncio
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from simulator.comparison import draw
from simulator.deployment import access, files, judgement
from simulator.deployment.comparing import Comparison, Found
from simulator.deployment.journal import Journal
from simulator.deployment.material import dealt, source_of
from simulator.deployment.prepare import Say, prepared
from simulator.deployment.settings import Settings
from simulator.deployment.table import print_summary
from simulator.deployment.verdicts import retained
from simulator.errors import JourneyError
from simulator.faults.operator import Operator
from simulator.material import Settings as RunSettings
from simulator.progress import Quiet


def check(settings: Settings, say: Say) -> list[str]:
    """Compares, prints the table, writes summary.json, the releases and density.png.

    Returns:
        A sentence for each promise that was broken.

    Raises:
        HushsumError: Something is not there, or the service does not answer.
        OSError: A folder cannot be written.
    """
    plan, journal = prepared(settings), Journal.load(settings.sent_file)
    if journal.plan_id != plan.hex_id:
        raise JourneyError(f"{settings.sent_file}: of plan {journal.plan_id[:12]}, expected {plan.hex_id[:12]}")
    material = dealt(settings, plan, source_of(settings))
    windows = sorted({*journal.window_range, *judgement.told_windows(journal)})
    end_ms = plan.window.end_ms(windows[-1]) + plan.window.lateness_ms
    say(f"waiting for the outcomes of {len(windows)} windows, the last in {max(0, end_ms / 1000 - time.time()):.0f} s")
    found = asyncio.run(_ask(settings, plan, windows, end_ms))
    compared = Comparison(material, journal, found)
    summary = compared.summary()
    files.write_public(settings.reports / "summary.json", summary.to_json().encode())
    for window, release in found.outcomes.items():
        if release is not None:
            release.save(settings.reports / f"release-{window}.hush")
    if compared.latest is not None and importlib.util.find_spec("matplotlib") is not None:
        shown = RunSettings(data=Path(settings.data) if settings.data else None, out=settings.reports)
        draw(shown, *compared.latest, Quiet())
    print_summary(summary)
    return summary.violations()


async def _ask(settings: Settings, plan: Plan, windows: Sequence[int], end_ms: int) -> Found:
    """Waits for what the service says."""
    patience_s = max(0.0, end_ms / 1000 - time.time()) + settings.deadline_s
    analyst = Operator(settings.gateways, credentials=access.reader(settings), patience_s=patience_s)
    outcomes = {window: await analyst.outcome(window) for window in windows}
    before = await analyst.outcomes()
    administrator = Operator(settings.gateways, credentials=access.administrator(settings), patience_s=patience_s)
    status = await administrator.status()
    after = await analyst.outcomes()
    by_verdicts = plan.privacy.mode != SECURE and not plan.privacy.is_silo
    verdicts = await retained(settings, plan) if by_verdicts else []
    return Found(outcomes, verdicts, status, (before, after))
