"""Which plan a shuffler serves: the aggregator's, or a file's, at the first start; from then on the one it has kept."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aggregator.errors import ConfigError
from aggregator.plan_source import signature_of
from aggregator.ports import Runtime
from aggregator.retries import Backoff
from aggregator.shuffler.reports_file import ReportsFile
from aggregator.shuffler.upstream import UpstreamError
from aggregator.shuffler.values import KeptPlan
from aggregator.shuffler.windows import check_plan
from hushsum.errors import PlanError
from hushsum.plan import Plan

Fetch = Callable[[], Awaitable[KeptPlan]]


async def plan_of(
    path: Path | None, file: ReportsFile, fetch: Fetch, *, start_s: float, runtime: Runtime
) -> tuple[Plan, KeptPlan]:
    """The plan, and how it is kept.

    Args:
        path: A made ``plan.json``; None: the one that the aggregator collects.
        file: Keeps it.
        fetch: Asks the aggregator.
        start_s: How long to ask.
        runtime: Time.

    Raises:
        ConfigError: The file cannot be read, holds another plan than the one kept, or the aggregator does not answer.
        PlanError: It is no plan, or none that has a shuffler.
    """
    named = None if path is None else _read(path)
    kept = await file.plan()
    if kept is None:
        kept = named or await _fetched(fetch, start_s, runtime)
        plan = Plan.from_bytes(kept.bundle)
        check_plan(plan)
        await file.keep_plan(kept)
        return plan, kept
    plan = Plan.from_bytes(kept.bundle)
    if named is not None and Plan.from_bytes(named.bundle).id != plan.id:
        expected = f"plan {plan.name!r} ({plan.hex_id[:12]}), whose reports lie in the data folder"
        raise ConfigError(f"plan: {path} holds another one, expected {expected}; another plan needs another folder")
    check_plan(plan)
    return plan, kept


def _read(path: Path) -> KeptPlan:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"plan: {path} cannot be read: {error.strerror}") from error
    try:
        plan = Plan.from_bytes(data)
    except PlanError as error:
        expected = "expected the plan.json that the aggregator collects; leave plan out to ask the aggregator for it"
        raise ConfigError(f"plan: {path}: {error}; {expected}") from error
    signed = signature_of(path, plan)
    if signed is None:
        return KeptPlan(plan.bundle, "", 0, b"")
    return KeptPlan(plan.bundle, signed.key_id, signed.suite, signed.signature)


async def _fetched(fetch: Fetch, start_s: float, runtime: Runtime) -> KeptPlan:
    began_s, backoff = runtime.monotonic(), Backoff()
    while True:
        try:
            return await fetch()
        except UpstreamError as error:
            if runtime.monotonic() - began_s >= start_s:
                raise ConfigError(f"{error}: the first start needs its plan; or name a plan.json") from error
            await runtime.sleep(backoff.next_s())
