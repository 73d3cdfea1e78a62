"""What an operator does to the receipts or the store of a stopped service.

A copy of the receipts is begun or ended, lost receipts are made from their copy, lost outcomes are marked.
"""

from contextlib import AsyncExitStack
from dataclasses import replace

from aggregator.backends import Backends
from aggregator.backup import STORE
from aggregator.config import Config
from aggregator.errors import ConfigError, ForeignReceiptsError, ReceiptsError
from aggregator.interfaces import Receipts
from aggregator.logs import journal
from aggregator.model import ReceiptsMark
from aggregator.release.lease import operators_lease
from aggregator.release.lost import LostOutcomes, mark_every_lost
from aggregator.release.receipts import NO_SOURCE, ReceiptLines, check_published, reconcile
from aggregator.release.receipts_copy import begin_copy, check_begun, check_prefix, is_same_place
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from aggregator.verify import looking

_journal = journal("receipts")


async def begin_receipts_copy(config: Config, runtime: Runtime) -> int:
    """Makes the copy of the receipts that ``receipts_copy`` names, once receipts and store are compared.

    The store records it before the first line is copied: if this is cut off, a start finds an incomplete copy.

    Returns:
        The number of lines that were copied.

    Raises:
        ConfigError: ``receipts_copy`` is not set, there is no store, or a service runs on these files.
        ReceiptsError: The receipts do not fit the store, a releaser or another command runs, or the copy, or the one
            that the store knows at another place, has lines that they lack: it is left as it is.
    """
    if config.receipts_copy is None:
        raise ConfigError("receipts_copy: required: where the copy is to be")
    async with AsyncExitStack() as stack:
        backends, store = await _opened(config, runtime, stack)
        fences = await _leases(backends, store, runtime, stack)
        sinks = await backends.sinks()
        assert sinks.copy is not None, "it is set"
        await _compare(store, sinks.first)
        bound, copy = await store.receipts_mark(), await sinks.copy.catch_up()
        await _compare_recorded(backends, bound, await sinks.first.catch_up(), copy)
        if bound is not None and bound.id:  # else the next start binds the store to both
            await store.set_receipts(replace(bound, copy=copy.where), fences=fences)
        return await begin_copy(sinks.first, sinks.copy)


async def rebuild_receipts(config: Config, runtime: Runtime) -> int:
    """Makes lost receipts, or completes older ones, from the copy that ``receipts_copy`` names.

    The copy is compared with the store first: it must have the store's id and lines, and a receipt for every published
    outcome. The store records the copy before the first line is made from it: if this is cut off, a start without the
    copy releases nothing. For a store that has neither an id nor a published outcome, as one from before its first
    outcome, nothing tells whose copy it is; that is logged, and the store is bound to it.

    Returns:
        The number of lines that were copied.

    Raises:
        ConfigError: ``receipts_copy`` is not set, there is no store, or a service runs on these files.
        ReceiptsError: The copy does not fit the store, a releaser or another command runs, or the receipts, or the copy
            that the store knows at another place, have lines that the copy lacks: they are left.
    """
    if config.receipts_copy is None:
        raise ConfigError("receipts_copy: required: the copy that the receipts are made from")
    async with AsyncExitStack() as stack:
        backends, store = await _opened(config, runtime, stack)
        fences = await _leases(backends, store, runtime, stack)
        sinks = await backends.sinks(rebuilds=True)
        assert sinks.copy is not None, "it is set"
        lines = await sinks.copy.catch_up()
        bound = await store.receipts_mark()
        # In a topic the lost lines may have been there twice, and the mark counts all.
        if config.log == "sqlite" and bound is not None:
            lines.check(bound, NO_SOURCE)
        if not await check_published(store, lines):
            _journal.warning(
                "the store knows of no receipts and has published nothing: whether the copy is its own cannot be told; "
                "make sure that it is",
                copy=lines.where,
            )
        check_begun(lines)  # before anything is recorded: a store that misses receipts which never were starts no more
        check_prefix(await sinks.first.catch_up(), lines)
        await _compare_recorded(backends, bound, lines, lines)
        # Before the first line: receipts that are cut short prove too little.
        known = bound if bound is not None and bound.id else lines.mark
        await store.set_receipts(replace(known, copy=lines.where), fences=fences)
        copied = await begin_copy(sinks.copy, sinks.first)
        mark = (await sinks.first.catch_up()).mark
        await store.set_receipts(replace(mark, copy=lines.where), fences=fences)
        return copied


async def end_receipts_copy(config: Config, runtime: Runtime) -> str | None:
    """Makes the store forget the copy of its receipts, once they are compared with the store.

    Returns:
        Where the copy was; None if the store knew of none.

    Raises:
        ConfigError: ``receipts_copy`` is still set, there is no store, or a service runs on these files.
        ReceiptsError: The receipts do not fit the store, a releaser or another command runs, or the copy is still there
            and has lines that the receipts lack.
    """
    if config.receipts_copy is not None:
        raise ConfigError(
            "receipts_copy: still set: the next start would begin with the copy; remove the setting first"
        )
    async with AsyncExitStack() as stack:
        backends, store = await _opened(config, runtime, stack)
        fences = await _leases(backends, store, runtime, stack)
        bound = await store.receipts_mark()
        if bound is None or not bound.copy:
            return None
        first = (await backends.sinks(needs_copy=False)).first
        await _compare(store, first)
        await _compare_recorded(backends, bound, await first.catch_up())
        await store.set_receipts(replace(bound, copy=""), fences=fences)
        return bound.copy


async def mark_all_lost(config: Config, runtime: Runtime) -> LostOutcomes:
    """Marks the outcomes of every plan that receipts prove and the store lacks.

    Without ``receipts_copy`` the receipts alone are read: where the copy is lost, too, neither another copy can be
    begun nor the copy be ended before the store is as new as the receipts. The store goes on knowing of the copy.

    Raises:
        ConfigError: There is no store, or a service runs on these files.
        ReceiptsError: The receipts are not this store's, contradict each other, or a releaser or another command runs.
        StoreError: A cumulative sequence has lost steps.
    """
    async with AsyncExitStack() as stack:
        backends, store = await _opened(config, runtime, stack)
        receipts = (await backends.sinks(needs_copy=False)).receipts
        return await mark_every_lost(store, receipts, runtime, owner=backends.command_owner)


async def _opened(config: Config, runtime: Runtime, stack: AsyncExitStack) -> tuple[Backends, Store]:
    """The store of a stopped service, to be written; one of an older version is upgraded."""
    backends = await looking(config, runtime, stack, changes=True)
    if config.store == "sqlite" and not (config.folder / STORE).exists():
        raise ConfigError(f"data: {config.folder} has no {STORE}: it is no data directory of a service")
    if config.store == "postgresql" and not await backends.has_tables():
        raise ConfigError("the database has no tables of a service")
    return backends, await backends.store()


async def _leases(backends: Backends, store: Store, runtime: Runtime, stack: AsyncExitStack) -> dict[bytes, int]:
    """The fence of every plan's lease, by the plan's id; the leases are renewed, and end with the stack.

    A releaser that has taken one since is not overwritten: the write that names the fences is refused.
    """
    return {
        plan.plan_id: await stack.enter_async_context(
            operators_lease(plan.plan_id, plan.name, store, runtime, owner=backends.command_owner)
        )
        for plan in await store.plans()
    }


async def _compare(store: Store, receipts: Receipts) -> None:
    """Raises ReceiptsError unless the receipts are this store's, and those of all that it has published."""
    for plan in await store.plans():
        problem, _ = await reconcile(plan.plan_id, store, receipts, fence=None)
        if problem:
            raise ReceiptsError(problem)


async def _compare_recorded(
    backends: Backends, bound: ReceiptsMark | None, lines: ReceiptLines, named: ReceiptLines | None = None
) -> None:
    """Checks that the copy which the store knows, and which is to be one no longer, has no lines but these.

    Where it is missing, cannot be read now or is another store's, nothing tells whether it has; that is logged.
    ``named`` is the copy from now on.

    Raises:
        ReceiptsError: It has: the store and the receipts may have been set back, and this copy alone tells.
    """
    if bound is None or not bound.copy or is_same_place(bound.copy, lines.where):
        return
    if named is not None and is_same_place(bound.copy, named.where):
        if not named.kept:
            _warn_not_compared(bound.copy, "missing or empty")
        return
    try:
        recorded = await backends.recorded_copy(bound.copy)
        if isinstance(recorded, str):
            _warn_not_compared(bound.copy, recorded)
            return
        found = await recorded.catch_up()
        if not found.kept:
            _warn_not_compared(bound.copy, "missing or empty")
        check_prefix(found, lines)
    except ForeignReceiptsError:
        _warn_not_compared(bound.copy, "another store's receipts are there")
    except ReceiptsError as error:
        raise ReceiptsError(
            f"the copy that the store knows, {bound.copy}, would be given up, and it does not fit: {error}. Only if "
            "it is certain that it is no longer this store's: move it away, and use the command again"
        ) from error


def _warn_not_compared(place: str, why: str) -> None:
    _journal.warning(
        "the copy that the store knows was not compared, and is given up. If it was only away, such as a disk that was "
        "not mounted, compare it before the service is started: `hushsum admin verify`",
        copy=place,
        why=why,
    )
