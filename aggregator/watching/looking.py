"""What a service looks at for as long as it runs, by what it stands on."""

from collections.abc import Awaitable, Callable

from aggregator.caught_up import CaughtUp
from aggregator.data_folder import DataFolder
from aggregator.ports import Log, Runtime, Store
from aggregator.watching.same_files import SameFiles
from aggregator.watching.soundings import Soundings
from aggregator.watching.store_metrics import StoreMetrics
from aggregator.watching.survey import Survey
from aggregator.watching.vitals import Vitals
from hushsum.plan import Plan


def soundings_of(
    plan: Plan,
    log: Log,
    store: Store,
    runtime: Runtime,
    vitals: Vitals,
    *,
    folder: DataFolder | None,
    caught_up: CaughtUp | None,
) -> Soundings:
    """Looks at log and store, and at files where log and store are such.

    Args:
        plan: What is collected.
        log: Its log.
        store: Its store.
        runtime: Time.
        vitals: Are told.
        folder: Of the files, where there is one.
        caught_up: What the gateway here waits for; None where nothing here does.
    """
    looks: list[Callable[[], Awaitable[None]]] = []
    if folder is not None:
        files = SameFiles((folder.log, folder.store), runtime)
        looks.append(files.look)
    soundings = Soundings(plan.id, log, store, runtime, vitals.metrics, vitals.tell, caught_up)
    soundings.looks, soundings.tracer = looks, vitals.tracer
    return soundings


def survey_of(plan: Plan, store: Store, runtime: Runtime, vitals: Vitals) -> Survey:
    """Looks at windows and ledger, for the metrics alone."""
    return Survey(plan, store, runtime, StoreMetrics(vitals.metrics.registry), vitals.metrics.retried)
