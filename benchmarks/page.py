"""How long a view of the web page takes on one core, and how long the event loop of a service beside it waits.

    taskset --cpu-list 0 python -m benchmarks.page

Every figure is a median, of CPU time (of the whole process, the reader that asks included) and of wall time. Analyst's
views are asked for a release that is not in memory yet (cold: read, verified, unpacked, computed, drawn), and once more
for another place of the same release (warm: computed and drawn). Sketches have 1,000 rows. Operator's views are asked
of a service with 1,000 windows, 10 plans and 50 tokens, in SQLite and, where there are both,
in PostgreSQL beside Kafka.
"""

import asyncio
import hashlib
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import numpy as np

import hushsum as hs
from aggregator.app import Service, running
from aggregator.auth.tokens import TokenTable, change_table, issue
from aggregator.config import Config
from aggregator.logs import write_journal
from aggregator.model import Scope
from aggregator.runtime import SystemRuntime
from aggregator.store.charges import insert_spend
from aggregator.store.transaction import Transaction
from hushsum.entropy import OsEntropy
from hushsum.privacy.events import TUMBLING
from hushsum.releases import draw, spend_of
from hushsum_page.library import warm_up
from hushsum_page.viewer import Viewer
from hushsum_simulator.testbed.kafka import JARS, KafkaBroker, missing_java
from hushsum_simulator.testbed.postgres import PostgresServer, missing_postgres

_ROWS: Final = 1000
_WINDOWS: Final = 100
_ROUNDS: Final = 5
_LIMIT_MS: Final = 300
_LOOP_S: Final = 0.001
_HASHED: Final = {"family": "hashed", "kernel": "euclidean", "bandwidth": 2, "rows": _ROWS}


def plan_of(dim: int, sketch: dict[str, object], **record: object) -> hs.Plan:
    """A plan over a cube of this many columns."""
    return hs.Plan(
        name="points",
        record={"dim": dim, "lower": [0] * dim, "upper": [10] * dim, **record},
        sketch=sketch,
        privacy={"epsilon": 1, "total_epsilon": 10},
        window={"length": "1h"},
    )


PLANS: Final = {
    "hashed, 1,024 buckets": plan_of(2, {**_HASHED, "buckets": 1024, "draws": "sobol"}),
    "hashed, 5 columns": plan_of(5, {**_HASHED, "buckets": 1024}),
    "hashed, 3 classes": plan_of(2, {**_HASHED, "buckets": 1024}, classes=["a", "b", "c"]),
    "fourier": plan_of(2, {"family": "fourier", "kernel": "gaussian", "bandwidth": 2, "rows": _ROWS}),
    "hermite": plan_of(2, {"family": "hermite", "kernel": "gaussian", "bandwidth": 1}),
    "partition": plan_of(1, {"family": "partition", "bandwidth": "0.1", "rows": 1, "buckets": 256}),
}
_SERIES: Final = {
    _WINDOWS: plan_of(2, {**_HASHED, "buckets": 64}),
    8: plan_of(2, {**_HASHED, "buckets": 1024, "draws": "sobol"}),  # as many as the page shows of this size
}
_KINDS: Final = ("density", "pairs", "classes", "cdf")

# Of a service.
_SERVICE_WINDOWS: Final = 1000
_OPEN_WINDOWS: Final = 10
_OTHER_PLANS: Final = 9
_SPENDS_OF_OTHERS: Final = 10
_TOKENS: Final = 50
_PARTITIONS: Final = 4
_OPERATORS_VIEWS: Final = {
    "service (processes, refusals, certificates)": "/service",
    "windows": "/windows",
    "  older ones": "/windows?before={before}",
    "ledger": "/ledger",
    "tokens": "/tokens",
    "audit log": "/audit",
    "plans (analyst's)": "/",
}


def release_of(plan: hs.Plan, window: int, seed: int) -> hs.Release:
    """A release of 5,000 records."""
    drawn = np.random.default_rng(seed)
    sketch = hs.Sketch(plan)
    records = np.clip(drawn.normal(5, 1, (5000, plan.vectors.dim)), 0, 10)
    sketch.add(records, labels=drawn.choice(plan.classes, 5000).tolist() if plan.classes else None)
    return draw(sketch, kind="tumbling", window=window, entropy=OsEntropy(), accounted=True)


class TimedAnswer(NamedTuple):
    """How long a request took.

    Attributes:
        cpu_ms: Of the whole process.
        wall_ms: From its start to its end.
        data: What came.
    """

    cpu_ms: float
    wall_ms: float
    data: bytes


class Reader:
    """A browser that only reads.

    Args:
        address: That signs in.
        form: What it sends there; empty: it opens the address alone.
    """

    def __init__(self, address: str, form: dict[str, str] | None = None) -> None:
        self._base = address.partition("/sign-in")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = self._opener.open(address).read().decode()
        if form:
            hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page))
            headers = {"origin": self._base}
            sent = urlencode({**hidden, **form}).encode()
            self._opener.open(urllib.request.Request(address, sent, headers)).close()  # noqa: S310  our own page

    def get(self, address: str) -> TimedAnswer:
        """Asks for an address."""
        cpu, wall = time.process_time(), time.perf_counter()
        with self._opener.open(self._base + address) as answer:
            data: bytes = answer.read()
        return TimedAnswer(1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall), data)

    def addresses(self, start: str, pattern: str) -> list[str]:
        """What a pattern finds in the page of an address."""
        return re.findall(pattern, self.get(start).data.decode())


def _say(view: str, cold: Sequence[TimedAnswer], warm: Sequence[TimedAnswer] = ()) -> None:
    medians = [
        (median(each.cpu_ms for each in took), median(each.wall_ms for each in took)) for took in (cold, warm) if took
    ]
    texts = "".join(f" {cpu:9.0f} {wall:9.0f}" for cpu, wall in medians) + " " * 20 * (2 - len(medians))
    late = " above the limit" if medians[0][0] >= _LIMIT_MS else ""
    print(f"{view:46}{texts} {len(cold[0].data) / 1000:6.0f}{late}")


class _StartedPage:
    """The page over some releases: one that has just been started, for each reader."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._viewer = Viewer(paths, 0, entropy=OsEntropy(), clock=time.monotonic)

    def __enter__(self) -> Reader:
        self._viewer.server.start()
        return Reader(self._viewer.address)

    def __exit__(self, *_: object) -> None:
        self._viewer.server.stop()


def _plan_address(reader: Reader) -> str:
    return reader.addresses("/", r'"(/plans/[0-9a-f]{16})"')[0]


def measure(folder: Path) -> None:
    """Prints a line a view."""
    warm_up()
    print(f"{'':46}      cold                warm")
    print(f"{'view':46} {'CPU ms':>9} {'wall ms':>9} {'CPU ms':>9} {'wall ms':>9} {'kB':>6}")
    for name, plan in PLANS.items():
        _analysts_views(folder, name, plan)
    for windows, plan in _SERIES.items():
        _over_time(folder, windows, plan)
    write_journal("error", "console")
    asyncio.run(_operators_views("SQLite", {}))
    if missing_postgres() is not None or missing_java() is not None or not JARS.exists():
        return
    with PostgresServer() as server, KafkaBroker(JARS) as broker:
        cluster = {
            "store": "postgresql",
            "postgres_dsn": server.fresh_database(),
            "log": "kafka",
            "kafka_bootstrap": broker.bootstrap,
            "kafka_prefix": "page",
            "partitions": _PARTITIONS,
        }
        asyncio.run(_operators_views("PostgreSQL and Kafka", cluster))


def _analysts_views(folder: Path, name: str, plan: hs.Plan) -> None:
    paths: list[Path] = []
    for number in range(_ROUNDS + 1):
        paths.append(folder / f"{len(paths)}.hush")
        release_of(plan, 472_222 + number, number).save(paths[-1])
    held = f"hold{plan.vectors.dim - 1}=5" if plan.vectors.dim > 1 else "kind=density"
    asked = "&".join(f"c{column}=5" for column in range(plan.vectors.dim))
    with _StartedPage(paths) as reader:
        releases = reader.addresses(_plan_address(reader), r'"(/releases/[0-9a-f]{16})"')[:_ROUNDS]
        page = reader.get(releases[0]).data.decode()
        kinds = [each for each in _KINDS if f'value="{each}"' in page]
    with _StartedPage(paths) as reader:
        _say(name, [reader.get(each) for each in releases], [reader.get(f"{each}?{held}") for each in releases])
        for kind in kinds:
            _say(f"  {kind}", [reader.get(f"{each}?kind={kind}") for each in releases])
        _say("  a question", [reader.get(f"{each}/at?{asked}") for each in releases])
        _say("  CSV", [reader.get(f"{each}/figure.csv") for each in releases])
    if not name.startswith("hashed, 1"):
        return
    cold, warm = list[TimedAnswer](), list[TimedAnswer]()
    for number in range(_ROUNDS):
        with _StartedPage(paths[number : number + 2]) as reader:
            pair = reader.addresses(_plan_address(reader), r'"/releases/([0-9a-f]{16})"')
            compared = f"/compare?first={pair[0]}&second={pair[1]}"
            cold.append(reader.get(compared))
            warm.append(reader.get(f"{compared}&hold1=4"))
    _say("  two compared", cold, warm)
    with _StartedPage(paths) as reader:
        _say("  PNG, a file made by matplotlib", [reader.get(f"{each}/figure.png") for each in releases])


def _over_time(folder: Path, windows: int, plan: hs.Plan) -> None:
    paths = []
    for number in range(windows):
        paths.append(folder / f"{windows}-w{number}.hush")
        release_of(plan, 472_222 + number, number).save(paths[-1])
    lists, cold, warm = (list[TimedAnswer]() for _ in range(3))
    for _ in range(_ROUNDS):
        with _StartedPage(paths) as reader:
            address = _plan_address(reader)
            lists.append(reader.get(address))
            cold.append(reader.get(f"{address}/time"))
            warm.append(reader.get(f"{address}/time"))
    buckets = plan.counters_shape[-1]
    _say(f"{windows} windows, {buckets:,} buckets: the list", lists)
    _say("  over time", cold, warm)
    if windows == _WINDOWS:
        with _StartedPage(paths) as reader:
            print(f"another loop's longest wait while pictures are drawn: {1000 * _longest_wait(reader):.0f} ms")


def _longest_wait(reader: Reader) -> float:
    """By how many seconds an event loop in another thread wakes up too late, at most, during 50 pictures."""
    ended, late = threading.Event(), [0.0]

    async def watch() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            await asyncio.sleep(_LOOP_S)
            late[0] = max(late[0], time.perf_counter() - began - _LOOP_S)

    thread: Any = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    release = reader.addresses(_plan_address(reader), r'"(/releases/[0-9a-f]{16})"')[0]
    for number in range(50):
        reader.get(f"{release}?kind=density&hold1={number / 10}")
    ended.set()
    thread.join()
    return late[0]


# -------------------------------------------------------------------------------------------------------- for operators


def _telemetry(number: int = 0) -> hs.Plan:
    return hs.Plan(
        name=f"telemetry-{number}",
        record={"dim": 2, "lower": [0, 0], "upper": [10, 10]},
        sketch={**_HASHED, "buckets": 16, "seed": number},
        privacy={"epsilon": 1, "delta": "0.000001", "total_epsilon": 500, "total_delta": "0.000001"},
        window={"length": "1h"},
    )


async def _fill(tx: Transaction, plan: hs.Plan, others: Sequence[hs.Plan], newest: int, release: bytes) -> None:
    """Windows until the newest, which are released but for the last of them, and a ledger that paid for them."""
    (number,) = await tx.fetch_row("SELECT number FROM plans WHERE id = $1", plan.id) or (0,)
    for window in range(newest - _SERVICE_WINDOWS + 1, newest + 1):
        is_open = window > newest - _OPEN_WINDOWS
        await tx.execute('DELETE FROM windows WHERE plan = $1 AND "window" = $2', number, window)
        await tx.execute("INSERT INTO windows VALUES ($1, $2, $3)", number, window, "open" if is_open else "released")
        if not is_open:
            await insert_spend(tx, spend_of(plan, kind=TUMBLING, window=window))
            digest = hashlib.sha256(release).digest()
            row = (number, TUMBLING, window, 1, digest, release)
            await tx.execute("INSERT INTO outcomes VALUES ($1, $2, $3, $4, $5, $6)", *row)
    for each in others:
        for window in range(newest - _SPENDS_OF_OTHERS, newest):
            await insert_spend(tx, spend_of(each, kind=TUMBLING, window=window))


@asynccontextmanager
async def _service(folder: Path, settings: dict[str, object]) -> AsyncIterator[tuple[Service, str]]:
    """A service with 1,000 windows, 10 plans and 50 tokens; and the text of an administrator's token."""
    runtime, plan = SystemRuntime(), _telemetry()
    (folder / "plan.json").write_bytes(plan.bundle)
    admin = issue(OsEntropy(), "Ann", [Scope.ADMIN], now_ms=runtime.now_ms(), expires_ms=None)
    devices = [
        issue(OsEntropy(), f"device-{number}", [Scope.SUBMIT], now_ms=runtime.now_ms(), expires_ms=None)
        for number in range(_TOKENS - 1)
    ]
    change_table(folder / "tokens.jsonl", lambda _: TokenTable(each.entry for each in (admin, *devices)))
    config = Config.of(
        **{
            "plan": str(folder / "plan.json"),
            "data": str(folder / "data"),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "page_listen": "127.0.0.1:0",
            "tokens": str(folder / "tokens.jsonl"),
            "manual": True,
            **settings,
        }
    )
    async with running(config, runtime) as service:
        newest, others = plan.window.index_at(runtime.now_ms()), [_telemetry(1 + each) for each in range(_OTHER_PLANS)]
        for each in others:
            await service.store.register(each, 1, newest)
        await service.store.database.write(_fill, plan, others, newest, release_of(plan, newest, 1).to_bytes())
        yield service, admin.text


async def _operators_views(store: str, settings: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as made:
        async with _service(Path(made), settings) as (service, token):
            await asyncio.to_thread(_ask_as_operator, store, f"http://{service.page}/sign-in", token)


def _ask_as_operator(store: str, address: str, token: str) -> None:
    reader = Reader(address, {"token": token})
    print(f"operator's views, {store}")
    newest = reader.addresses("/windows", r'<th scope="row">([0-9,]+)</th>')[0].replace(",", "")
    for view, path in _OPERATORS_VIEWS.items():
        took = [reader.get(path.format(before=int(newest) - 400)) for _ in range(_ROUNDS)]
        _say(f"  {view}", took[:1], took[1:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measure(Path(made))
