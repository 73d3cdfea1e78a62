"""What a deployment begins with, in each of its programs anew: records, plan, and who adds what."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.delta_sizes import RECORDS_MAX
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.privacy.local_mode import SILO
from hushsum.schedule import duration_text
from simulator import local_plans, plans, records
from simulator.cohort_sizes import fit
from simulator.deployment.settings import Settings
from simulator.errors import SettingsConflictError, VariableError
from simulator.material import Material
from simulator.records import Records
from simulator.shares import deal

_QUERIES: Final = 1000
# Pure ε adds noise by the rows: with so many, what it adds to a window of 4,000 records is what the hash errs by.
_CENTRAL_ROWS: Final = 64
_SECURE_DELTA: Final = Fraction(1, 10**6)
# How many records a delta has, on average: a stream of small ones is what a kill finds under way.
_RECORDS_OF_DELTA: Final = 4
_RECORDS_OF_BATCH: Final = 20  # of reports
_BATCHES: Final = 3  # of a client and window that never leave it as they are
# Clients come over a quarter of what the lateness leaves beside this wait: all are there before it is over.
_WAIT_SHARE: Final = 0.3


def source_of(settings: Settings) -> Records:
    """The records: a part of them, chosen by the seed, where there are more than were asked for.

    Raises:
        RecordsError: They cannot be used.
    """
    if settings.data:
        source = records.load(settings.data_folder / settings.data, settings.columns)
    else:
        source = records.photograph()
    if len(source.values) <= settings.records:
        return source
    chosen = np.random.default_rng(settings.seed).choice(len(source.values), settings.records, replace=False)
    return replace(source, values=source.values[np.sort(chosen)])


def made_plan(settings: Settings, source: Records, directory: str) -> Plan:
    """The plan that fits the deployment.

    Args:
        settings: Of it.
        source: Its records.
        directory: In mode secure the digest of its clients' keys; else empty.

    Raises:
        PlanError: There is none.
        VariableError: So many clients cannot be away.
    """
    sizes = {
        "rows": settings.rows or (_CENTRAL_ROWS if settings.mode == CENTRAL else None),
        "buckets": settings.buckets,
    }
    tables: Mapping[str, Mapping[str, object]] = {
        "sketch": {key: value for key, value in sizes.items() if value is not None},
        "window": {"length": f"{settings.length_s}s", "lateness": f"{settings.open_s}s"},
    }
    privacy = _privacy(settings, directory)
    if not settings.data:
        return plans.of_photograph(privacy, settings.seed, tables)
    return plans.of_file(source, privacy, settings.seed, tables)


def dealt(settings: Settings, plan: Plan, source: Records) -> Material:
    """The records that are added, by client and in batches; and those that are held out as queries.

    Raises:
        RecordsError: There are too few.
    """
    rest, queries = records.hold_out(source, _QUERIES, settings.seed)
    bound = RECORDS_MAX if plan.privacy.mode == SECURE or plan.privacy.is_silo else None
    deltas = settings.clients * settings.windows * _BATCHES
    if bound is None:
        deltas = max(deltas, len(rest.values) // (_RECORDS_OF_BATCH if plan.privacy.reports else _RECORDS_OF_DELTA))
    shares = deal(rest.values, clients=settings.clients, deltas=deltas, seed=settings.seed, records_per_client=bound)
    return Material(plan, shares, np.concatenate([batch for share in shares for batch in share.batches]), queries)


def _privacy(settings: Settings, directory: str) -> Mapping[str, object]:
    """``[privacy]`` of unit ``record``."""
    if settings.mode == LOCAL:
        delta = None if settings.form == SILO else Fraction(0)
        keys = local_plans.privacy_keys(form=settings.form, randomiser=None, delta=delta, shuffled=False, reports=1)
        return {**plans.privacy_table(local_plans.EPSILON[settings.form], "record", None), **keys}
    if settings.mode != SECURE:
        return plans.privacy_table(Fraction(1), "record", None)
    cohort = _cohort(settings)
    table = plans.secure_table(Fraction(1), "record", None, delta=_SECURE_DELTA, cohort=cohort)
    wait_ms = max(1, int(1000 * _WAIT_SHARE * settings.open_s))
    secure = table["secure"]
    assert isinstance(secure, dict), "as it was just made"
    return {**table, "secure": {**secure, "directory": directory, "cohort_wait": duration_text(wait_ms)}}


def _cohort(settings: Settings) -> Cohort:
    """All clients of a gateway: each gateway forms its own."""
    size = settings.clients_of_gateway
    away = round(settings.churn * size) + (settings.clients % len(settings.gateways) > 0)
    try:
        return fit(size, size=size, dropout_rate=away / size)
    except SettingsConflictError as error:
        expected = f"fewer clients that are away, or more clients: no cohort of {size} can lose {away}"
        raise VariableError("HUSHSUM_CHURN", f"{settings.churn:g}", expected) from error
