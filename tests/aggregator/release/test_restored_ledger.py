"""A store that was copied before its log: what devices have spent meanwhile is in the ledger of who restores both."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.release.receipts import ReceiptsFile
from aggregator.runtime import SystemRuntime
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, spend_of
from hushsum_proto.answers import Status
from tests.aggregator.local_clients import batch_of, noised, report_plan, silo_plan
from tests.services import WINDOW, RawClient, config_of, folded_all, service_of

REPORTS, SILO = report_plan(), silo_plan()


def copied(name: str, source: Path, target: Path) -> None:
    """A copy of a database in use, as the backup's instructions have it."""
    with closing(sqlite3.connect(source / name)) as here, closing(sqlite3.connect(target / name)) as there:
        here.backup(there)
    (target / name).chmod(0o600)


@pytest.mark.parametrize("plan", [REPORTS, SILO], ids=["reports", "silos"])
async def test_a_window_whose_first_submission_came_between_two_copies_is_charged_when_it_is_released(
    tmp_path: Path, plan: Plan
) -> None:
    data = batch_of(plan, 5, 20) if plan is REPORTS else noised(plan, DeltaId(1, 0))
    folder, restored = tmp_path / "data", tmp_path / "restored" / "data"
    restored.mkdir(parents=True, mode=0o700)
    async with service_of(config_of(tmp_path, plan)) as service, RawClient(service.grpc, "c") as client:
        await client.hello(plan.id)
        copied("store.db", folder, restored)
        assert (await client.submit_one(plan.id, data)).status is Status.ACKNOWLEDGED
        copied("log.db", folder, restored)
        if (receipts := folder / "receipts.jsonl").exists():
            shutil.copy2(receipts, restored)
    spend = spend_of(plan, kind=TUMBLING, window=WINDOW)
    for _ in range(2):  # and after another start, which compares store and receipts
        async with service_of(config_of(restored.parent, plan)) as service, RawClient(service.grpc, None) as operator:
            await folded_all(service)
            if not await service.store.outcomes(plan.id):
                await operator.seal()
                await operator.release()
            stored = await service.store.outcome(plan.id, TUMBLING, WINDOW)
            assert stored is not None
            release = Release.from_bytes(stored.data)
            assert (release.submissions if plan is SILO else int(release.counts.sum())) == (1 if plan is SILO else 20)
            assert (await service.store.account("")).spends == (spend,)
            assert spend.events
    receipts_file = await ReceiptsFile.open(restored / "receipts.jsonl", SystemRuntime(), OsEntropy())
    assert [row[4] for row in await receipts_file.read()] == [spend]
