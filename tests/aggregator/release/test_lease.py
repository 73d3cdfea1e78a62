"""An operator's command holds a plan's lease for as long as it works, and no other command has it meanwhile."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aggregator.errors import FencedError, ReceiptsError
from aggregator.model import ReceiptsMark
from aggregator.release.lease import operators_lease
from aggregator.store.store import Store, memory_store
from tests.doubles import ManualRuntime
from tests.hooks import Hooks, unreachable
from tests.plans import small_plan

PLAN = small_plan()


@asynccontextmanager
async def registered(runtime: ManualRuntime) -> AsyncIterator[Store]:
    store = memory_store(runtime, exclusive=False)
    await store.register(PLAN, 1, 0)
    try:
        yield store
    finally:
        await store.close()


async def test_two_commands_at_once_exclude_each_other() -> None:
    runtime = ManualRuntime()
    async with registered(runtime) as store:
        async with operators_lease(PLAN.id, PLAN.name, store, runtime, owner="admin 1"):
            with pytest.raises(
                ReceiptsError, match="'test': admin 1 holds the releaser lease for 20 s more: stop every"
            ):
                async with operators_lease(PLAN.id, PLAN.name, store, runtime, owner="admin 2"):
                    pass
        async with operators_lease(PLAN.id, PLAN.name, store, runtime, owner="admin 2"):
            pass


async def test_a_command_that_takes_long_keeps_its_lease() -> None:
    runtime = ManualRuntime()
    async with registered(runtime) as store:
        async with operators_lease(PLAN.id, PLAN.name, store, runtime, owner="admin 1") as fence:
            for _ in range(60):
                await runtime.advance(5)
            assert await store.acquire_lease(PLAN.id, "releaser", "", 10) is None
            await store.renew_lease(PLAN.id, 10, "", fence=fence)
        assert await store.acquire_lease(PLAN.id, "releaser", "", 10) is not None


async def test_a_command_whose_database_does_not_answer_loses_its_lease_and_writes_nothing_more() -> None:
    runtime, hooks = ManualRuntime(), Hooks()
    async with registered(runtime) as store, AsyncExitStack() as stack:
        hooks.put("renew_lease", *[unreachable] * 1000)
        hooked = hooks.around(store)
        fence = await stack.enter_async_context(operators_lease(PLAN.id, PLAN.name, hooked, runtime, owner="admin 1"))
        for _ in range(10):
            await runtime.advance(5)
        assert await store.acquire_lease(PLAN.id, "releaser", "", 10) is not None
        with pytest.raises(FencedError):
            await store.set_receipts(ReceiptsMark(bytes(16), 1, bytes(32)), fences={PLAN.id: fence})


async def test_a_database_that_is_gone_at_the_end_hides_neither_what_a_command_did_nor_why_it_failed() -> None:
    runtime, hooks = ManualRuntime(), Hooks()
    async with registered(runtime) as store:
        hooks.put("return_lease", unreachable, unreachable)
        hooked = hooks.around(store)
        async with operators_lease(PLAN.id, PLAN.name, hooked, runtime, owner="admin 1"):
            pass
        await runtime.advance(25)
        with pytest.raises(ReceiptsError, match="why"):
            async with operators_lease(PLAN.id, PLAN.name, hooked, runtime, owner="admin 2"):
                raise ReceiptsError("why")
        await runtime.advance(25)
        assert await store.acquire_lease(PLAN.id, "releaser", "", 10) is not None
