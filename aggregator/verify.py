"""`hushsum admin verify`: is this all that was ever published, and was it charged? For a service that is stopped.

Store, receipts and their copy, ledger, outcomes and published copies are compared with each other, each with each that
it can be compared with. What no comparison can tell is said, too.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Literal

from aggregator.backends import Backends, Sinks
from aggregator.config import Config
from aggregator.data_dir import DataDir
from aggregator.errors import AggregatorError, ConfigError, ForeignReceiptsError
from aggregator.model import Outcome, RegisteredPlan
from aggregator.observability.metrics import Metrics
from aggregator.release.copies import folder_name
from aggregator.release.receipts import ALL_LOST, Receipt, plural, published_outcomes, reconcile
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from aggregator.windows import WindowState
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE, ClaimedEvent, Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import CENTRAL
from hushsum.release_format import file_name
from hushsum.releases import Release

State = Literal["ok", "failed", "not checked"]
#: Called with the name of what was compared, what came of it, and a sentence.
Report = Callable[[str, State, str], None]

_LOST: Final = "find it, or make it from the one that survived: `hushsum admin begin-receipts-copy --help`"
_SHOWN: Final = 16  # hexadecimal digits of a digest
_NOT_MADE: Final = (
    "a topic of receipts does not exist; the store knows of none and has published nothing: the first start of a "
    "releaser makes it"
)
_UNKNOWABLE: Final = (
    "whether the store and every sink of receipts were set back together, or a copy of all of them runs"
)

_Key = tuple[str, str, int | None]


async def verify(config: Config, runtime: Runtime, report: Report) -> None:
    """Compares everything that the settings name, and reports each part; nothing is created or repaired.

    Raises:
        ConfigError: The data directory is missing, or a service uses it.
    """
    async with AsyncExitStack() as stack:
        backends = await looking(config, runtime, stack)
        await _Verification(config, backends, report).run()


async def looking(config: Config, runtime: Runtime, stack: AsyncExitStack, *, changes: bool = False) -> Backends:
    """What a stopped service stores its data in.

    Raises:
        ConfigError: The data directory is missing, or a service uses it.
    """
    folder = None
    if config.data is not None:
        if not config.data.is_dir():
            raise ConfigError(f"data: {config.data} does not exist")
        folder = DataDir.open(config.data, changes=changes)
        stack.callback(folder.close)
    return Backends(config, folder, runtime, Metrics(), stack)


class _Verification:
    def __init__(self, config: Config, backends: Backends, report: Report) -> None:
        self._config, self._backends, self._report = config, backends, report

    async def run(self) -> None:
        try:
            store = await self._backends.look_at_store()
            plans = await self._plans(store)
        except AggregatorError as error:
            self._report("store", "failed", str(error))
            return
        if not self._backends.is_current:
            return
        sinks = await self._sinks(store)
        receipts: list[Receipt] | None = None
        if sinks is not None:
            receipts = await self._own(store, sinks)
            await self._receipts(store, plans, sinks)
            self._unknown_plans(plans, receipts or [])
        for plan in plans:
            await self._log(store, plan)
        for plan in plans:
            await self._outcomes(store, plan, {each.key: each for each in receipts or []})
        if receipts is None:
            text = "it is compared with this store's receipts, which were not found"
            self._report("ledger", "not checked", text)
        else:
            for population in sorted({plan.population for plan in plans}):
                await self._ledger(store, population, plans, receipts)
        for plan in plans:
            await self._copies(store, plan)
        self._report("all of them together", "not checked", _UNKNOWABLE)

    async def _plans(self, store: Store) -> list[RegisteredPlan]:
        if not self._backends.is_current:
            text = "it is of an older version: the next start upgrades it, and it can be verified after that"
            self._report("store", "not checked", text)
            return []
        if (file := self._backends.store_file) is not None and not file.exists():
            text = f"{file.parent} has no {file.name}: restore it from a back-up: `hushsum admin restore`"
            self._report("store", "failed", text)
            return []
        plans = await store.plans()
        published = len(await published_outcomes(store))
        self._report("store", "ok", f"{plural(len(plans), 'plan')}, {plural(published, 'published outcome')}")
        return plans

    async def _sinks(self, store: Store) -> Sinks | None:
        is_bound = await store.receipts_mark() is not None
        try:
            sinks = await self._backends.sinks(repairs=False)
            named = [("receipts", sinks.first), *([] if sinks.copy is None else [("copy of the receipts", sinks.copy)])]
            has_lines = [bool((await sink.catch_up()).kept) for _, sink in named]
            for name, sink in named:
                mark, count = (await sink.catch_up()).mark, len(await sink.read())
                if is_bound and not mark.lines:
                    where = (await sink.catch_up()).where
                    self._report(
                        name,
                        "failed",
                        f"{where}: missing or empty: {_LOST if any(has_lines) else f'find it. {ALL_LOST}'}",
                    )
                    continue
                text = f"readable: {plural(count, 'receipt')}, {plural(mark.lines, 'line')}"
                id_, checksum = mark.id.hex()[:8] or "none", mark.digest.hex()[:_SHOWN]
                self._report(name, "ok", f"{text} of id {id_}, checksum {checksum}")
        except ForeignReceiptsError as error:
            if is_bound or await published_outcomes(store):
                self._report("receipts", "failed", str(error))
            else:
                self._report("receipts", "not checked", _NOT_MADE)
            return None
        except AggregatorError as error:
            self._report("receipts", "failed", str(error))
            return None
        if sinks.copy is None:
            self._report(
                "copy of the receipts", "not checked", "receipts_copy is not set, and the store knows of no copy"
            )
        return sinks

    async def _own(self, store: Store, sinks: Sinks) -> list[Receipt] | None:
        """What those sinks prove that are this store's; None if neither is."""
        bound, found = await store.receipts_mark(), dict[tuple[bytes, str, int], Receipt]()
        lines = [await sink.catch_up() for sink in (sinks.first, sinks.copy) if sink is not None]
        own = [each for each in lines if bound is None or bound.id in {b"", each.mark.id}]
        for each in reversed(own):
            found |= {receipt.key: receipt for receipt in each.receipts}
        return [*found.values()] if own else None

    async def _receipts(self, store: Store, plans: list[RegisteredPlan], sinks: Sinks) -> None:
        """Receipts and outcomes, each way, as a releaser compares them at its start."""
        for plan in plans:
            try:
                problem, _ = await reconcile(plan.plan_id, store, sinks.receipts, fence=None)
            except AggregatorError as error:
                problem = str(error)
            if problem:
                self._report(f"plan {plan.name}: receipts", "failed", problem)
            else:
                text = "every published outcome has its receipt, every receipt its outcome"
                self._report(f"plan {plan.name}: receipts", "ok", text)

    def _unknown_plans(self, plans: list[RegisteredPlan], receipts: list[Receipt]) -> None:
        """Receipts of plans that the store does not have: it is older than the plan's first start."""
        unknown = Counter(each.plan_id for each in receipts)
        for plan in plans:
            del unknown[plan.plan_id]
        for plan_id, count in unknown.items():
            text = (
                f"{plural(count, 'receipt')} of a plan that the store does not have: the store is from before the "
                "plan's first start. Restore a newer store; if there is none, start the service once with the plan's "
                "file, stop it, and use `hushsum admin mark-lost`"
            )
            self._report(f"plan {plan_id.hex()[:12]}: receipts", "failed", text)

    async def _log(self, store: Store, plan: RegisteredPlan) -> None:
        what, loaded = f"plan {plan.name}: log", await store.load_plan(plan.plan_id)
        assert loaded is not None, "it is registered"
        try:
            await self._backends.look_at_log(loaded, plan.partitions)
        except HushsumError as error:
            self._report(what, "failed", str(error))
        else:
            self._report(what, "ok", "it holds what the folds read next")

    async def _outcomes(
        self, store: Store, plan: RegisteredPlan, receipts: Mapping[tuple[bytes, str, int], Receipt]
    ) -> None:
        what, wrong, compared, removed = f"plan {plan.name}: releases", [], 0, 0
        loaded = await store.load_plan(plan.plan_id)
        assert loaded is not None, "it is registered"
        for outcome in await store.outcomes(plan.plan_id):
            stored = await store.outcome(plan.plan_id, outcome.kind, outcome.window) if outcome.published else None
            if stored is None:
                continue
            if not stored.data:
                removed += 1
                continue
            compared += 1
            digest = hashlib.sha256(stored.data).digest()
            receipt = receipts.get((plan.plan_id, outcome.kind, outcome.window))
            if digest != outcome.sha256 or (receipt is not None and receipt.sha256 != digest):
                wrong.append(f"window {outcome.window}: its bytes are not those of its receipt")
            elif not outcome.withheld and (why := _of_another(stored.data, loaded, outcome.window)):
                wrong.append(f"window {outcome.window}: {why}")
        if wrong:
            self._report(what, "failed", "; ".join(wrong))
        else:
            self._report(what, "ok", f"{plural(compared, 'outcome')} with the digests of the receipts")
        if removed:
            text = f"{plural(removed, 'outcome')} whose bytes are removed or lost: the store has their digests alone"
            self._report(what, "not checked", text)

    async def _ledger(
        self, store: Store, population: str, plans: list[RegisteredPlan], receipts: list[Receipt]
    ) -> None:
        what = f"ledger of population {population!r}" if population else "ledger"
        try:
            account = await store.account(population)
        except HushsumError as error:
            self._report(what, "failed", str(error))
            return
        charged = {_key(spend): spend for spend in account.spends}
        proved = {_key(each.spend): each.spend for each in receipts if each.spend.population == population}
        wrong = [f"{_named(key)}: a receipt proves a charge that is missing" for key in proved.keys() - charged.keys()]
        wrong += [
            f"{_named(key)}: the charge differs from that which its receipt proves"
            for key in proved.keys() & charged.keys()
            if charged[key] != proved[key] and not _is_claimed(charged[key], proved[key])
        ]
        waiting = {key: charged[key] for key in charged.keys() - proved.keys()}
        wrong += [
            f"{_named(key)}: it is charged, and has neither a receipt nor a window that waits for its outcome"
            for key in waiting
            if not await self._waits(store, plans, key)
        ]
        if wrong:
            self._report(what, "failed", "; ".join(sorted(wrong)))
            return
        cost = account.cost
        spent = "more than any ε" if cost is None else f"ε = {numeral(cost.epsilon, up=True)}"
        spent += "" if cost is None or not cost.delta else f" and δ = {numeral(cost.delta, up=True)}"
        text = f"{spent} spent, the sum of {plural(len(proved), 'charge')} that receipts prove"
        more = f" and of {plural(len(waiting), 'window')} without an outcome yet" if waiting else ""
        self._report(what, "ok", text + more)

    async def _waits(self, store: Store, plans: list[RegisteredPlan], key: _Key) -> bool:
        """Whether a charge without a receipt is of something that is not published yet."""
        plan = next((each for each in plans if each.plan_id.hex() == key[0]), None)
        if plan is None:
            return False
        outcomes = {outcome.window: outcome for outcome in await store.outcomes(plan.plan_id)}
        if key[1] == CUMULATIVE:
            return not any(outcome.published for outcome in outcomes.values())
        assert key[2] is not None, "a sequence alone has no window"
        if (outcome := outcomes.get(key[2])) is not None:
            return not outcome.published
        if plan.mode != CENTRAL:
            return True  # it is charged before its first submission
        return (await store.states(plan.plan_id, key[2], key[2])).get(key[2]) == WindowState.SEALED

    async def _copies(self, store: Store, plan: RegisteredPlan) -> None:
        publish, what = self._config.publish, f"plan {plan.name}: published copies"
        if self._config.kafka_publish:
            self._report(f"{what} in Kafka", "not checked", "a topic of releases is not read")
        if publish is None:
            return
        if "://" in publish:
            self._report(what, "not checked", f"{publish} is no directory")
            return
        loaded = await store.load_plan(plan.plan_id)
        assert loaded is not None, "it is registered"
        folder = Path(publish) / folder_name(loaded)
        expected = {
            file_name(plan.name, each.window): each
            for each in await store.outcomes(plan.plan_id)
            if each.published and not each.withheld
        }
        try:
            wrong = sorted(_compared_copies(folder, expected))
        except OSError as error:
            wrong = [f"{error.filename}: {error.strerror}"]
        if wrong:
            self._report(what, "failed", "; ".join(wrong))
        else:
            self._report(what, "ok", f"{plural(len(expected), 'file')} in {folder} with the digests of the receipts")


def _compared_copies(folder: Path, expected: Mapping[str, Outcome]) -> Iterator[str]:
    there = {path.name: path for path in folder.iterdir() if path.suffix == ".hush" and not path.name.startswith(".")}
    for name in there.keys() - expected.keys():
        yield f"{name}: no outcome of the store is published under this name"
    for name, outcome in expected.items():
        if name not in there:
            if outcome.size_bytes:
                yield f"{name}: missing; the service copies it when it runs"
            continue
        with there[name].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        if digest != outcome.sha256:
            yield f"{name}: its bytes are not those of the receipt"


def _of_another(data: bytes, plan: Plan, window: int) -> str:
    try:
        release = Release.from_bytes(data)
    except HushsumError as error:
        return f"it is no release: {error}"
    return "" if (release.plan.id, release.window) == (plan.id, window) else "it is of another plan or window"


def _key(spend: Spend) -> _Key:
    return spend.plan_id, spend.kind, spend.window


def _named(key: _Key) -> str:
    plan, _, window = key
    return f"plan {plan[:12]}" + ("" if window is None else f", window {window}")


def _is_claimed(*spends: Spend) -> bool:
    """Whether one is in the words of the first version, which did not keep the mechanism."""
    return any(isinstance(event, ClaimedEvent) for spend in spends for event in spend.events)
