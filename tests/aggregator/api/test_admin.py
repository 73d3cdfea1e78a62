"""What the operator is told over the wire: plans, windows, the ledger; in pages, and nobody else."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import grpc.aio
import pytest

from aggregator.api.admin import Admin
from aggregator.errors import UnauthenticatedError
from aggregator.windows import due_ms
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.statement import account_told
from hushsum.releases import spend_of
from hushsum_proto import convert_admin
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import PAGE_MAX, LedgerPage, PlanInfo, WindowsPage
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_simulator.console import Console
from hushsum_simulator.errors import ServiceError
from tests.hushsum.privacy.spends import spend
from tests.plans import small_plan
from tests.services import WINDOW, RawClient, SetRuntime, config_of, service_of

PLAN = small_plan()
SKEW_S = 4 * 3600.0  # five windows are open from the start


class Refusing:
    """Lets nobody in."""

    reads_certificates = False

    def admit(self, *_: object) -> str:
        raise UnauthenticatedError("nobody")


async def test_every_call_asks_who_calls_before_anything_else() -> None:
    # Without a store or anything else: a call that went on to them would fail otherwise.
    service = object.__new__(Admin)
    call = Refusing()
    for refused in (
        service.list_plans(call, pb.ListPlansRequest()),  # type: ignore[arg-type]  # all that is asked of a call
        service.list_windows(call, pb.ListWindowsRequest(limit=PAGE_MAX + 1)),  # type: ignore[arg-type]  # all that is asked of a call
        service.get_ledger(call, pb.GetLedgerRequest(limit=PAGE_MAX + 1)),  # type: ignore[arg-type]  # all that is asked of a call
    ):
        with pytest.raises(UnauthenticatedError, match="nobody"):
            await refused


async def test_the_plans_of_the_store_and_which_is_collected_here(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, partitions=3)) as service, Console(service.grpc) as console:
        assert await console.plans() == [PlanInfo(PLAN.id, "test", "central", "", 3, WINDOW, "", collected_here=True)]


async def test_windows_come_in_pages_by_state_and_before_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, skew_s=SKEW_S)
    async with service_of(config) as service, Console(service.grpc) as console:
        await console.seal(early=True)
        await console.release()
        await console.seal(early=True)
        states = ["released", "sealed", "open", "open", "open"]
        every = tuple((WINDOW + index, state) for index, state in enumerate(states))[::-1]

        assert await console.windows() == WindowsPage(every)
        assert await console.windows(2) == WindowsPage(every[:2], more=True)
        assert await console.windows(5) == WindowsPage(every)
        assert await console.windows(2, before=WINDOW + 2) == WindowsPage(every[3:])
        assert await console.windows(3, before=WINDOW) == WindowsPage(())
        assert await console.windows(2, states={"open"}) == WindowsPage(every[:2], more=True)
        assert await console.windows(3, states={"open"}) == WindowsPage(every[:3])
        assert await console.windows(1, states={"released", "skipped"}) == WindowsPage(every[4:])


async def test_every_window_that_is_over_is_sealed_oldest_first_and_no_other(tmp_path: Path) -> None:
    runtime = SetRuntime()
    async with (
        service_of(config_of(tmp_path, PLAN, skew_s=SKEW_S), runtime) as service,
        Console(service.grpc) as console,
    ):
        with pytest.raises(ServiceError, match=f"window {WINDOW} is not over: it ends at"):
            await console.seal_due()
        runtime.set_ms = due_ms(PLAN.window, WINDOW + 2)
        assert await console.seal_due() == [WINDOW, WINDOW + 1, WINDOW + 2]
        with pytest.raises(ServiceError, match=f"window {WINDOW + 3} is not over") as caught:
            await console.seal_due()
        assert caught.value.reason == "window_order"
        assert await console.seal(WINDOW + 3, early=True) == WINDOW + 3


async def test_the_ledger_shows_limits_totals_words_and_the_newest_spends(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, skew_s=SKEW_S)
    async with service_of(config) as service, Console(service.grpc) as console:
        untouched = await console.ledger()
        assert (untouched.spends, untouched.spends_total, untouched.epsilon_left) == ((), 0, "100")
        for _ in range(3):
            await console.seal(early=True)
            await console.release()
        spends = tuple(spend_of(PLAN, kind=TUMBLING, window=WINDOW + index) for index in (2, 1, 0))
        account = Account(PLAN.limits).recorded(*spends[::-1])
        words = account_told(account, next_spend=replace(spends[0], window=WINDOW + 5))
        told = LedgerPage("", "record", "add/remove", "100", "1", "99", "0", "0", "0", words, spends, 3)

        assert await console.ledger() == told
        assert await console.ledger(2) == replace(told, spends=spends[:2])
        assert (await console.status()).statement == words


async def test_a_service_starts_on_a_ledger_that_an_earlier_rule_let_pass_its_limits_and_releases_nothing(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path, PLAN, skew_s=SKEW_S)
    async with service_of(config):
        pass
    passing = spend(Fraction(101, 2), plan=9, window=0, unit="client")  # of a limit of 100, for records
    with closing(sqlite3.connect(tmp_path / "data" / "store.db")) as db, db:
        db.execute(
            'INSERT INTO spends (population, plan_id, kind, "window", fields) VALUES (?, ?, ?, ?, ?)',
            ("", passing.plan_id, passing.kind, passing.window, passing.to_bytes()),
        )
    async with service_of(config) as service, Console(service.grpc) as console:
        ledger = await console.ledger()
        assert (ledger.epsilon_spent, ledger.epsilon_left) == ("101", "0")
        assert "This exceeds the limits" in ledger.statement
        await console.seal(early=True)
        with pytest.raises(ServiceError, match="Budget exceeded"):
            await console.release()
        assert (await console.ledger()).spends == (passing,)


async def test_pages_of_spends_follow_each_other_whatever_is_spent_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, PLAN, skew_s=SKEW_S)
    async with service_of(config) as service, Console(service.grpc) as console:
        for _ in range(3):
            await console.seal(early=True)
            await console.release()
        monkeypatch.setattr("hushsum_simulator.console.PAGE_MAX", 1)  # a page a spend
        asked, ledger = 0, console._ledger

        async def and_then_release(skip: int, limit: int) -> LedgerPage:
            nonlocal asked
            page = await ledger(skip, limit)
            asked += 1
            if asked == 1:
                await console.seal(early=True)
                await console.release()
            return page

        monkeypatch.setattr(console, "_ledger", and_then_release)
        page = await console.ledger(100)
        assert [spend.window for spend in page.spends] == [WINDOW + 2, WINDOW + 1, WINDOW]
        assert asked == 4, "one page came twice, and was not shown twice"


async def test_more_than_a_page_is_refused_and_what_was_not_asked_is_a_hundred(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        beyond = PAGE_MAX + 1
        for asked in (
            client.administration.ListWindows(pb.ListWindowsRequest(newest=True, limit=beyond)),
            client.administration.GetLedger(pb.GetLedgerRequest(limit=beyond)),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="limit: got 1001, expected at most 1000") as caught:
                await asked
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        far = await client.administration.GetLedger(pb.GetLedgerRequest(skip=2**64 - 1))
        assert not far.spends
    assert convert_admin.windows_request_from_wire(pb.ListWindowsRequest(before=-3)) == (-3, 100)
    assert convert_admin.ledger_request_from_wire(pb.GetLedgerRequest(skip=7, limit=1)) == (7, 1)


def test_a_spend_that_this_version_cannot_read_is_malformed() -> None:
    with pytest.raises(MalformedMessageError, match="a spend that this version cannot read"):
        convert_admin.ledger_from_wire(pb.GetLedgerReply(spends=[b"{}"]))


async def test_a_window_that_was_never_open_says_so(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, Console(service.grpc) as console:
        with pytest.raises(
            ServiceError, match=f"window {WINDOW + 9} cannot be sealed: it was never opened by a gateway"
        ):
            await console.seal(WINDOW + 9, early=True)
        with pytest.raises(ServiceError, match=f"window {WINDOW + 9} cannot be released: it is unknown, not sealed"):
            await console.release(WINDOW + 9)
