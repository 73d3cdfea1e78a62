"""The verdicts that a service has retained, read from its store: for its operator's checks alone."""

import asyncio

from aggregator.fold.verdicts import Verdict
from aggregator.ports import SystemRuntime
from aggregator.store import folds, inspect_sqlite
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from hushsum.plan import Plan
from simulator.deployment.settings import Settings
from simulator.errors import VariableError

_POOL = 3


async def retained(settings: Settings, plan: Plan) -> list[Verdict]:
    """One for each entry that was folded.

    Raises:
        VariableError: No store is named.
        StoreError: It cannot be read.
    """
    if settings.store is not None:
        found = await asyncio.to_thread(inspect_sqlite.read_verdicts, settings.store, plan)
    elif settings.postgres_dsn:
        found = await _from_postgres(settings.postgres_dsn, plan)
    else:
        raise VariableError(
            "HUSHSUM_POSTGRES_DSN", "", "the address of the service's store, or its file: HUSHSUM_STORE"
        )
    return [verdict for _, verdict in found]


async def _from_postgres(dsn: str, plan: Plan) -> list[tuple[int, Verdict]]:
    database = await PostgresDatabase.open(PostgresSettings(dsn, pool=_POOL), SystemRuntime())
    try:
        return await database.read(folds.verdicts, plan.id)
    finally:
        await database.close()
