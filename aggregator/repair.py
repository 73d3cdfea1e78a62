"""What an operator does to the receipts or the store of a stopped service: begin a copy, mark lost outcomes."""

from contextlib import AsyncExitStack

from aggregator.config import Config
from aggregator.errors import ConfigError, ReceiptsError
from aggregator.release.lost import mark_lost
from aggregator.release.receipts import reconcile
from aggregator.release.receipts_copy import begin_copy
from aggregator.runtime import Runtime
from aggregator.verify import looking


async def begin_receipts_copy(config: Config, runtime: Runtime) -> int:
    """Makes the copy of the receipts that ``receipts_copy`` names, once receipts and store are compared.

    Returns:
        The number of lines that were copied.

    Raises:
        ConfigError: ``receipts_copy`` is not set, or a service runs on these files.
        ReceiptsError: The receipts do not fit the store, or the copy has lines that they lack: it is left as it is.
    """
    if config.receipts_copy is None:
        raise ConfigError("receipts_copy: required: where the copy is to be")
    async with AsyncExitStack() as stack:
        backends = await looking(config, runtime, stack)
        store = await backends.look_at_store()
        if not backends.is_current:
            raise ReceiptsError("the store is of an older version: start the service once without receipts_copy before")
        sinks = await backends.sinks()
        assert sinks.copy is not None, "it is set"
        for plan in await store.plans():
            problem, _ = await reconcile(plan.plan_id, store, sinks.first, fence=None)
            if problem:
                raise ReceiptsError(problem)
        return await begin_copy(sinks.first, sinks.copy)


async def mark_all_lost(config: Config, runtime: Runtime) -> dict[str, list[int]]:
    """Marks the outcomes of every plan that receipts prove and the store lacks; their windows, by the plan's name.

    Raises:
        ConfigError: A service runs on these files.
        ReceiptsError: The receipts are not this store's, contradict each other, or a releaser runs.
        StoreError: A cumulative sequence has lost steps.
    """
    async with AsyncExitStack() as stack:
        backends = await looking(config, runtime, stack, changes=True)
        store = await backends.store()
        receipts = (await backends.sinks()).receipts
        lost = {}
        for registered in await store.plans():
            plan = await store.load_plan(registered.plan_id)
            assert plan is not None, "it is registered"
            if windows := await mark_lost(plan, store, receipts):
                lost[plan.name] = windows
        return lost
