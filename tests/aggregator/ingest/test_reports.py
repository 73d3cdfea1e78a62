"""Reports at the gateway: whose they are is dropped before anything is kept, and the answers are those of deltas."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from aggregator.app import Service
from aggregator.errors import ConfigError, RefusedError, StoreUnavailableError
from aggregator.fold.fold import NOBODY
from aggregator.ingest.group_commit import CommitLimits, GroupCommitter
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.ingest.validation import submission_policy_of
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import Log
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import BATCH_COST_MIN, RateLimits
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy, OsEntropy, ReplayableEntropy
from hushsum.errors import BudgetError, Reason
from hushsum.labels import DIRECTORY, SHUFFLED
from hushsum.plan import Plan
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.entries import ReportsEntry, partition_of_sum
from hushsum_proto.messages import Authenticity
from tests.aggregator.local_clients import batch_of, report_plan, submit_shuffled
from tests.doubles import ManualRuntime, MemoryStore, PowerLossLog
from tests.plans import small_plan
from tests.services import (
    HOUR_MS,
    NOW_MS,
    WINDOW,
    Contributor,
    HeldLog,
    RawClient,
    SetRuntime,
    config_of,
    counted,
    ends_of,
    folded_all,
    service_of,
    trailing,
)

REPORTS = report_plan()
SHUFFLED_PLAN = report_plan(shuffle_min=100)


async def entries_of(service: Service) -> list[list[ReportsEntry]]:
    """The batches in each partition of the log."""
    found = []
    for partition in range(service.log.partitions):
        positioned = (await service.log.read(partition, 0, 10**6, 0.0)).entries
        entries = [entry_from_bytes(each.data) for each in positioned]
        found.append([entry for entry in entries if isinstance(entry, ReportsEntry)])
    return found


async def charged(service: Service) -> int:
    """How many windows the ledger has paid for."""
    return len((await service.store.account("")).spends)


async def test_a_batch_enters_the_log_as_nobodys_at_its_windows_start_in_the_partition_of_its_stream(
    tmp_path: Path,
) -> None:
    async with service_of(config_of(tmp_path, REPORTS, partitions=3)) as service:
        streams = [2**63 + 7 * n for n in range(12)]
        for n, stream in enumerate(streams):
            async with RawClient(service.grpc, f"client-{n}") as client:
                answer = await client.submit_one(REPORTS.id, batch_of(REPORTS, stream, 5))
                assert (answer.status, answer.id) == (Status.ACKNOWLEDGED, DeltaId(stream, 0))
        found = await entries_of(service)
    expected = [[s for s in streams if partition_of_sum(DeltaId(s, 0), 3) == p] for p in range(3)]
    for entries, of_partition in zip(found, expected, strict=True):
        batches = {batch_of(REPORTS, stream, 5) for stream in of_partition}
        assert set(entries) == {ReportsEntry(batch, False, WINDOW * HOUR_MS) for batch in batches}


async def test_the_same_bytes_get_the_same_answer_whoever_sends_them_and_count_once(tmp_path: Path) -> None:
    async with (
        service_of(config_of(tmp_path, REPORTS)) as service,
        RawClient(service.grpc, "alice") as alice,
        RawClient(service.grpc, "bob") as bob,
    ):
        data = batch_of(REPORTS, 5, 20)
        answers = [await client.submit_one(REPORTS.id, data) for client in (alice, bob, alice)]
        assert {answer.status for answer in answers} == {Status.ACKNOWLEDGED}
        await folded_all(service)
        assert (await alice.submit_one(REPORTS.id, data)).status is Status.ACKNOWLEDGED
        await alice.seal()
        assert counted(service, "hushsum_folded_total", partition="0", verdict="counted") == 1
        answers = [await client.submit_one(REPORTS.id, data) for client in (alice, bob)]
        assert {answer.status for answer in answers} == {Status.COUNTED}
        late = await bob.submit_one(REPORTS.id, batch_of(REPORTS, 6))
        assert late.status is Status.LATE


async def test_the_same_id_with_other_bytes_is_refused_whoever_sends_them(tmp_path: Path) -> None:
    async with (
        service_of(config_of(tmp_path, REPORTS)) as service,
        RawClient(service.grpc, "alice") as alice,
        RawClient(service.grpc, "bob") as bob,
    ):
        assert (await alice.submit_one(REPORTS.id, batch_of(REPORTS, 5, 20))).status is Status.ACKNOWLEDGED
        await folded_all(service)
        answer = await bob.submit_one(REPORTS.id, batch_of(REPORTS, 5, 21))
        assert answer.refusal is not None
        assert answer.refusal.reason is Reason.ID_REUSED


SPOILS: tuple[tuple[Callable[[bytes], bytes], Reason], ...] = (
    (lambda data: data[:-1], Reason.MALFORMED),
    (lambda data: data + b"\0", Reason.MALFORMED),
    (lambda data: data[:41] + b"\1" + data[42:], Reason.MALFORMED),  # another sequence number than 0
    (lambda data: data[:-4] + data[-2:] + data[-4:-2], Reason.MALFORMED),  # out of order
    (lambda data: data[:-2] + b"\xff\xff", Reason.BUCKET_OUT_OF_RANGE),
    (lambda data: data[:1] + bytes(32) + data[33:], Reason.WRONG_PLAN),
    (lambda data: data + bytes(REPORTS.upload_bytes_max), Reason.TOO_LARGE),
    (lambda _: b"", Reason.MALFORMED),
)


async def test_a_batch_that_breaks_a_rule_is_refused_with_its_reason_and_changes_nothing(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, REPORTS)) as service, RawClient(service.grpc) as client:
        for spoil, reason in SPOILS:
            before = counted(service, "hushsum_refusals_total", reason=reason.value)
            answer = await client.submit_one(REPORTS.id, spoil(batch_of(REPORTS, 5, 20)))
            assert answer.refusal is not None
            assert (answer.status, answer.refusal.reason) == (Status.REFUSED, reason)
            assert counted(service, "hushsum_refusals_total", reason=reason.value) == before + 1
        assert (await ends_of(service), await charged(service)) == ([0], 0)


# ------------------------------------------------------------------------------------------------------ rate limits


async def test_a_client_beyond_its_rate_is_told_how_long_to_wait_and_others_are_served(tmp_path: Path) -> None:
    config = config_of(tmp_path, REPORTS, client_rate=1.0, client_burst=50)
    async with (
        service_of(config) as service,
        RawClient(service.grpc, "liar") as liar,
        RawClient(service.grpc, "bob") as bob,
    ):
        answers = await liar.submit(REPORTS.id, [batch_of(REPORTS, n, 64) for n in range(4)])
        assert [answer.status for answer in answers].count(Status.ACKNOWLEDGED) == 1
        refusals = [answer.refusal for answer in answers if answer.refusal is not None]
        assert {refusal.reason for refusal in refusals} == {ServiceReason.RATE_LIMITED}
        assert all(refusal.retry and 9_000 < refusal.retry_after_ms <= 17_001 for refusal in refusals)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await liar.submit_one(REPORTS.id, batch_of(REPORTS, 9, 1))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing(error.value)["hushsum-reason"] == "rate_limited"
        assert (await bob.submit_one(REPORTS.id, batch_of(REPORTS, 10, 60))).status is Status.ACKNOWLEDGED


class CountingLimits(RateLimits):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(1.0, 10**9)
        self.asked: list[int] = []

    def wait_ms(self, client_id: str, reports: int, now_s: float) -> int | None:
        self.asked.append(reports)
        return super().wait_ms(client_id, reports, now_s)


def received(client_id: str, plan_id: bytes, data: bytes) -> ReceivedDelta:
    return ReceivedDelta(client_id, plan_id, data)


@pytest.mark.parametrize("window", [0, -1, WINDOW, 2**40])
def test_what_a_batch_costs_is_the_number_of_its_reports_but_for_two_and_64_at_least(window: int) -> None:
    limits = CountingLimits()
    policy = submission_policy_of(REPORTS, limits=limits, shufflers=None, runtime=ManualRuntime())
    for reports in (1, 2, 63, 127, 128, 1000, 65_536):
        data = batch_of(REPORTS, 1, reports, window=window)
        assert policy.reserve(received("alice", REPORTS.id, data)).owner == NOBODY
        assert max(reports, BATCH_COST_MIN) <= limits.asked[-1] <= max(reports + 2, BATCH_COST_MIN)
    assert limits.asked[:2] == [64, 64]


def test_what_no_batch_of_the_plan_can_be_costs_nothing() -> None:
    limits = CountingLimits()
    policy = submission_policy_of(REPORTS, limits=limits, shufflers=None, runtime=ManualRuntime())
    most = REPORTS.upload_bytes_max
    for plan_id, data, reason in [
        (REPORTS.id, bytes(most + 1), Reason.TOO_LARGE),
        (bytes(32), bytes(2 * most), Reason.TOO_LARGE),
        (bytes(32), batch_of(REPORTS, 1, 9), Reason.WRONG_PLAN),
    ]:
        with pytest.raises(RefusedError) as refused:
            policy.reserve(received("alice", plan_id, data))
        assert refused.value.refusal.reason is reason
    assert limits.asked == []
    policy.reserve(received("alice", REPORTS.id, bytes(most)))
    assert limits.asked[0] <= 65_536 + 32, "no bytes cost more than the largest batch does"


async def test_a_window_that_has_not_begun_takes_no_reports_and_costs_nothing(tmp_path: Path) -> None:
    runtime = SetRuntime(NOW_MS + HOUR_MS // 2 - 1000)  # a second before the next window, which the skew has opened
    early = [batch_of(REPORTS, number, 3, window=WINDOW + 1) for number in range(2)]
    async with service_of(config_of(tmp_path, REPORTS), runtime) as service, RawClient(service.grpc) as client:
        (answer,) = await client.submit(REPORTS.id, early[:1])
        assert answer.refusal is not None
        assert answer.refusal.reason is ServiceReason.UNAVAILABLE
        assert "has not started" in answer.refusal.detail
        assert (await service.store.account("")).spends == ()
        runtime.set_ms += 1000
        for data in early:
            assert (await client.submit_one(REPORTS.id, data)).status is Status.ACKNOWLEDGED
        assert [spend.window for spend in (await service.store.account("")).spends] == [WINDOW + 1]


async def test_what_the_service_refuses_for_its_own_reasons_costs_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, REPORTS, client_rate=0.001, client_burst=1)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        honest, data = service.store.charge_collection, batch_of(REPORTS, 5, 20)
        for error, reason in [
            (StoreUnavailableError("away"), "unavailable"),
            (BudgetError("exhausted"), "budget"),
        ]:

            async def fails(plan: Plan, window: int, members: object = None, error: Exception = error) -> None:
                del plan, window, members
                raise error

            service.store.charge_collection = fails  # type: ignore[method-assign]  # the ledger, in trouble
            for _ in range(3):
                (answer,) = await client.submit(REPORTS.id, [data])
                assert answer.refusal is not None
                assert answer.refusal.reason is not None
                assert answer.refusal.reason.value == reason
        service.store.charge_collection = honest  # type: ignore[method-assign]  # it is well again
        service.gateway._pending_entries_max = 0
        for _ in range(3):
            (answer,) = await client.submit(REPORTS.id, [data])
            assert answer.refusal is not None
            assert answer.refusal.reason is ServiceReason.OVERLOADED
        service.gateway._pending_entries_max = 10
        assert (await client.submit_one(REPORTS.id, data)).status is Status.ACKNOWLEDGED
        (answer,) = await client.submit(REPORTS.id, [batch_of(REPORTS, 6, 1)])
        assert answer.refusal is not None
        assert answer.refusal.reason is ServiceReason.RATE_LIMITED, "what was taken is paid for"


async def test_a_resend_of_what_is_under_way_costs_nothing_and_is_given_back_once(tmp_path: Path) -> None:
    held: list[HeldLog] = []

    def hold(log: Log) -> Log:
        held.append(HeldLog(log))
        return held[0]

    config = config_of(tmp_path, REPORTS, client_rate=0.001, client_burst=1000)
    async with service_of(config, wrap_log=hold) as service, RawClient(service.grpc) as client:
        held[0].hold()
        data = batch_of(REPORTS, 5, 900)
        sent = asyncio.create_task(client.submit(REPORTS.id, [data] * 20))
        await held[0].arrived()
        inflight_table = service.gateway._inflight._inflight
        while sum(len(inflight.on_answer) for inflight in inflight_table.values()) < 20:  # noqa: ASYNC110  nobody tells it
            await asyncio.sleep(0.005)
        held[0].free()
        assert {answer.status for answer in await sent} == {Status.ACKNOWLEDGED}
        (answer,) = await client.submit(REPORTS.id, [batch_of(REPORTS, 6, 200)])
        assert answer.status is Status.ACKNOWLEDGED, "900 of 1000 are owed"
        (answer,) = await client.submit(REPORTS.id, [batch_of(REPORTS, 7, 1)])
        assert answer.refusal is not None
        assert answer.refusal.reason is ServiceReason.RATE_LIMITED, "1100 are: no resend was given back twice"


async def test_what_comes_several_times_in_one_turn_costs_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, REPORTS, client_rate=0.001, client_burst=1000)
    async with service_of(config) as service:
        told: list[asyncio.Future[Answer]] = []
        for _ in range(20):  # all before the gateway looks at any
            told.append(asyncio.get_running_loop().create_future())
            service.gateway.send(ReceivedDelta("alice", REPORTS.id, batch_of(REPORTS, 5, 900)), told[-1].set_result)
        assert {answer.status for answer in await asyncio.gather(*told)} == {Status.ACKNOWLEDGED}


async def test_bytes_that_are_no_batch_are_paid_for_as_well(tmp_path: Path) -> None:
    config = config_of(tmp_path, REPORTS, client_rate=0.001, client_burst=1)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        answers = await client.submit(REPORTS.id, [b"\0nonsense"] * 5)
        reasons = [str(answer.refusal.reason) for answer in answers if answer.refusal is not None]
        assert sorted(reasons) == sorted([Reason.MALFORMED] + [ServiceReason.RATE_LIMITED] * 4)


async def test_deltas_of_other_modes_are_not_limited_by_client(tmp_path: Path) -> None:
    plan = small_plan()
    config = config_of(tmp_path, plan, client_rate=0.001, client_burst=1)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        contributor = Contributor(plan, 3)
        answers = await client.submit(plan.id, [contributor.delta()[1] for _ in range(20)])
        assert {answer.status for answer in answers} == {Status.ACKNOWLEDGED}


# -------------------------------------------------------------------------------------------------------- the order


async def test_the_entries_of_a_group_stand_in_another_order_and_each_answer_finds_its_sender(seed: int) -> None:
    async def order_of(shuffle: Entropy | None) -> tuple[list[bytes], list[int]]:
        log, runtime, store = PowerLossLog(), ManualRuntime(NOW_MS), MemoryStore()
        window_tracker = WindowTracker(REPORTS, store, runtime, skew_ms=0, first_window=WINDOW)
        await store.register(REPORTS, 1, WINDOW)
        await window_tracker.open_accepted()
        limits = CommitLimits(1000, 10**6, 1000, 10**6)
        commits = GroupCommitter(log, window_tracker, runtime, limits, Metrics(), shuffle=shuffle)
        told: dict[int, int] = {}
        for n in range(50):
            entry = NewEntry(0, WINDOW, n.to_bytes(2, "big"))
            assert commits.offer(entry, lambda committed, n=n: told.__setitem__(n, committed.position)) is None  # type: ignore[misc]  # committed: a lambda's argument cannot be annotated
        commits.start()
        await commits.stop()
        stood = [positioned.data for positioned in (await log.read(0, 0, 100, 0.0)).entries]
        assert all(stood[told[n]] == n.to_bytes(2, "big") for n in range(50))
        return stood, [told[n] for n in range(50)]

    as_it_came = [n.to_bytes(2, "big") for n in range(50)]
    shuffled, _ = await order_of(ReplayableEntropy(seed.to_bytes(8, "big")))
    assert sorted(shuffled) == as_it_came
    assert shuffled != as_it_came
    assert (await order_of(OsEntropy()))[0] != as_it_came  # it may be, once in 50! times
    assert (await order_of(None))[0] == as_it_came


async def test_a_service_of_reports_draws_the_order_and_one_of_deltas_keeps_it(tmp_path: Path) -> None:
    found: list[HeldLog] = []

    def hold(log: Log) -> Log:
        found.append(HeldLog(log))
        return found[0]

    async with service_of(config_of(tmp_path, REPORTS), wrap_log=hold) as service, RawClient(service.grpc) as client:
        await client.submit_one(REPORTS.id, batch_of(REPORTS, 10**6))
        found[0].hold()
        first = asyncio.create_task(client.submit_one(REPORTS.id, batch_of(REPORTS, 10**6 + 1)))
        await found[0].arrived()
        data = [batch_of(REPORTS, n) for n in range(60)]
        rest = asyncio.create_task(client.submit(REPORTS.id, data))
        while service.gateway.waiting < 61:
            await client.hello()
        found[0].free()
        await asyncio.gather(first, rest)
        stood = [entry.batch for entry in (await entries_of(service))[0] if entry.batch in set(data)]
        assert found[0].groups == [1, 1, 60]
    assert sorted(stood) == sorted(data)
    assert stood != data  # it may be, once in 60! times


# ------------------------------------------------------------------------------------------------------ the shuffler


def shuffler_files(folder: Path) -> tuple[Path, SigningKey, SigningKey]:
    """A directory of a shuffler and a gateway, and their keys."""
    keys = [SigningKey.generate(OsEntropy()) for _ in range(2)]
    entries = [
        DirectoryKey("mix-1", Role.SHUFFLER, keys[0].verify_key),
        DirectoryKey("gw-1", Role.GATEWAY, keys[1].verify_key),
    ]
    path = folder / "shufflers.toml"
    path.write_text("".join(map(toml_of, entries)))
    return path, keys[0], keys[1]


async def test_only_what_its_shuffler_has_signed_is_taken_and_marked(tmp_path: Path) -> None:
    path, mix, gateway_key = shuffler_files(tmp_path)
    plan = SHUFFLED_PLAN
    config = config_of(tmp_path, plan, shufflers=str(path), client_rate=0.001, client_burst=1)
    good, other = batch_of(plan, 1, 100), batch_of(plan, 2, 100)
    claims = {
        "nobody": None,
        "unknown key": Authenticity("mix-9", mix.sign(SHUFFLED, good)),
        "another role": Authenticity("gw-1", gateway_key.sign(SHUFFLED, good)),
        "another batch": Authenticity("mix-1", mix.sign(SHUFFLED, other)),
        "another label": Authenticity("mix-1", mix.sign(DIRECTORY, good)),
        "another suite": Authenticity("mix-1", mix.sign(SHUFFLED, good), 2),
    }
    async with service_of(config) as service, RawClient(service.grpc) as client:
        for claim in claims.values():
            answer = await submit_shuffled(client, plan, good, claim)
            assert answer.refusal is not None
            assert (answer.refusal.reason, answer.refusal.retry) == (Reason.UNSHUFFLED, False)
            assert "send reports to the shuffler" in answer.refusal.detail
        assert (await ends_of(service), await charged(service)) == ([0], 0)
        for data in (good, other):  # far beyond a client's rate: these are the reports of many
            signed = Authenticity("mix-1", mix.sign(SHUFFLED, data))
            assert (await submit_shuffled(client, plan, data, signed)).status is Status.ACKNOWLEDGED
        few = batch_of(plan, 3, 99)
        answer = await submit_shuffled(client, plan, few, Authenticity("mix-1", mix.sign(SHUFFLED, few)))
        assert answer.refusal is not None
        assert answer.refusal.reason is Reason.TOO_FEW_REPORTS
        entries = (await entries_of(service))[0]
        assert set(entries) == {ReportsEntry(data, True, WINDOW * HOUR_MS) for data in (good, other)}


@pytest.mark.parametrize("plan", [REPORTS, small_plan()], ids=["reports", "central"])
async def test_a_signature_is_refused_where_the_plan_has_no_shuffler(tmp_path: Path, plan: object) -> None:
    chosen = REPORTS if plan is REPORTS else small_plan()
    data = batch_of(REPORTS, 1) if chosen is REPORTS else Contributor(chosen, 3).delta()[1]
    async with service_of(config_of(tmp_path, chosen)) as service, RawClient(service.grpc) as client:
        answer = await submit_shuffled(client, chosen, data, Authenticity("mix-1", bytes(64)))
        assert answer.refusal is not None
        assert answer.refusal.reason is Reason.MALFORMED
        assert (await ends_of(service)) == [0]


async def test_the_setting_shufflers_is_wanted_where_the_plan_has_one_and_nowhere_else(tmp_path: Path) -> None:
    path, _, gateway_key = shuffler_files(tmp_path)
    without = tmp_path / "none.toml"
    without.write_text(toml_of(DirectoryKey("gw-1", Role.GATEWAY, gateway_key.verify_key)))
    for n, (plan, settings, message) in enumerate(
        (
            (SHUFFLED_PLAN, {}, "shufflers: required"),
            (REPORTS, {"shufflers": str(path)}, "shufflers: got"),
            (SHUFFLED_PLAN, {"shufflers": str(without)}, "no key of role shuffler"),
            (SHUFFLED_PLAN, {"shufflers": str(tmp_path / "missing.toml")}, "shufflers: "),
        )
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        with pytest.raises(ConfigError, match=message):
            async with service_of(config_of(folder, plan, **settings)):
                pass


# -------------------------------------------------------------------------------------------------------- the ledger


class AskedStore:
    """Counts the questions for charges, and lets the test hold them or make them fail."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.failures = 0, list[Exception]()
        self.free, self.waits = asyncio.Event(), asyncio.Event()
        self.free.set()
        charge = service.store.charge_collection

        async def counted_charge(plan: object, window: int) -> None:
            self.asked += 1
            self.waits.set()
            await self.free.wait()
            if self.failures:
                raise self.failures.pop()
            await charge(plan, window)  # type: ignore[arg-type]  # the plan it was given

        monkeypatch.setattr(service.store, "charge_collection", counted_charge)


async def test_a_window_is_charged_once_before_anything_of_it_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_of(config_of(tmp_path, REPORTS)) as service, RawClient(service.grpc) as client:
        store = AskedStore(service, monkeypatch)
        store.free.clear()
        call = asyncio.create_task(client.submit(REPORTS.id, [batch_of(REPORTS, n) for n in range(30)]))
        await store.waits.wait()
        while service.gateway.waiting < 30:
            await client.hello()
        assert await ends_of(service) == [0], "nothing may be taken that is not paid for"
        store.free.set()
        assert {answer.status for answer in await call} == {Status.ACKNOWLEDGED}
        assert (store.asked, await charged(service), await ends_of(service)) == (1, 1, [30])
        await client.submit_one(REPORTS.id, batch_of(REPORTS, 99))
        assert store.asked == 1


async def test_a_store_that_does_not_answer_makes_the_sender_try_again_and_nothing_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_of(config_of(tmp_path, REPORTS)) as service, RawClient(service.grpc) as client:
        store = AskedStore(service, monkeypatch)
        store.failures = [StoreUnavailableError("away")]
        [answer] = await client.submit(REPORTS.id, [batch_of(REPORTS, 1)])
        assert answer.refusal is not None
        assert (answer.refusal.reason, answer.refusal.retry) == (ServiceReason.UNAVAILABLE, True)
        assert await ends_of(service) == [0]
        assert service.gateway.waiting == 0
        assert (await client.submit_one(REPORTS.id, batch_of(REPORTS, 1))).status is Status.ACKNOWLEDGED


async def test_a_ledger_that_is_spent_refuses_every_window_it_cannot_pay_for(tmp_path: Path) -> None:
    client_unit = {"unit": "client", "records_per_client": 1}
    plan = small_plan(privacy={"mode": "local", "epsilon": 2, "total_epsilon": 3, "local": {}, **client_unit})
    runtime = SetRuntime()
    async with service_of(config_of(tmp_path, plan), runtime) as service, RawClient(service.grpc) as client:
        assert (await client.submit_one(plan.id, batch_of(plan, 1))).status is Status.ACKNOWLEDGED
        runtime.set_ms += HOUR_MS
        answer = await client.submit_one(plan.id, batch_of(plan, 2, window=WINDOW + 1))
        assert answer.refusal is not None
        assert (answer.refusal.reason, answer.refusal.retry) == (ServiceReason.BUDGET, False)
        assert (await ends_of(service), await charged(service)) == ([1], 1)
        assert (await client.submit_one(plan.id, batch_of(plan, 3))).status is Status.ACKNOWLEDGED


async def test_a_window_that_closes_before_it_was_paid_for_takes_nothing(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, REPORTS)) as service, RawClient(service.grpc) as client:
        await client.seal()
        answer = await client.submit_one(REPORTS.id, batch_of(REPORTS, 1))
        assert answer.status is Status.LATE
        assert (await charged(service), len((await entries_of(service))[0])) == (0, 0)
