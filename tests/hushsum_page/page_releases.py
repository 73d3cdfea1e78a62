"""Releases of every family and mode for tests of the page, and the page over them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from starlette.testclient import TestClient

import hushsum as hs
from hushsum.cumulative import initial, step
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.releases import draw, of_reports, of_silos, of_sums
from hushsum_page.app import Page
from hushsum_page.files import FilesSource
from hushsum_page.library import Library
from hushsum_page.sessions import OneTimeToken, Sessions
from hushsum_page.settings import PageSettings, ProxySignOn
from hushsum_page.source import Source
from hushsum_page.workers import Workers
from tests.hushsum.cumulative_plans import cumulative_plan
from tests.hushsum.local_plans import bit_plan, report_plan, silo_plan
from tests.plans import classed_plan, model_plan, secure_plan, set_plan, small_plan

PORT = 7445
BASE = f"http://127.0.0.1:{PORT}"
WINDOW = 472_222
NAMED: dict[str, object] = {"names": ["width", "depth"], "units": ["mm", "m"]}
HERMITE: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}
GRID: dict[str, object] = {"family": "partition", "kernel": ..., "bandwidth": 1, "rows": 1, "buckets": 128}
FIVE: dict[str, object] = {"dim": 5, "lower": [0] * 5, "upper": [10] * 5}


def points(dim: int = 2, records: int = 500, seed: int = 1) -> Any:
    drawn = np.random.default_rng(seed)
    return np.clip(drawn.normal(np.linspace(3, 7, dim), 1.0, (records, dim)), 0, 10)


def central(plan: hs.Plan, records: Any, window: int | None = None, labels: Any = None, seed: int = 1) -> hs.Release:
    """The release of some records, with noise that is always the same."""
    sketch = hs.Sketch(plan)
    sketch.add(records) if labels is None else sketch.add(records, labels=labels)
    kind = "in-process" if window is None else "tumbling"
    entropy = ReplayableEntropy(f"page {seed} {window}".encode())
    return draw(sketch, kind=kind, window=window, entropy=entropy, accounted=window is not None)


def _classes(*names: str) -> hs.Release:
    labels = [names[number % len(names)] for number in range(500)]
    return central(classed_plan(*names, record=NAMED), points(), labels=labels)


def _sums() -> hs.Release:
    plan, drawn = secure_plan(), np.random.default_rng(1)
    counters = drawn.integers(0, 51, plan.counters_shape)
    counts = drawn.integers(900, 1000, plan.count_counters)
    return of_sums(plan, counters, counts, window=WINDOW, cohorts=2, submissions=19)


def _silos() -> hs.Release:
    plan, drawn = silo_plan(), np.random.default_rng(1)
    counts = drawn.integers(900, 1000, plan.count_counters)
    return of_silos(plan, drawn.integers(-50, 51, plan.counters_shape), counts, window=WINDOW, submissions=19)


def _reports(plan: hs.Plan) -> hs.Release:
    _, rows, outputs = plan.counters_shape
    counters = np.random.default_rng(1).integers(0, 9, (1, rows, outputs))
    return of_reports(plan, counters, np.array([counters.sum()]), window=WINDOW, shuffled=False)


def _sequence() -> hs.Release:
    plan = cumulative_plan()
    sketch = hs.Sketch(plan)
    sketch.add(points() / 10)
    return step(plan, initial(plan), sketch, window=WINDOW, sealed=bytes(32), entropy=ReplayableEntropy(b"page"))[0]


#: Makers of one release of every family, of every mode, and of each kind of records.
MAKERS: dict[str, Callable[[], hs.Release]] = {
    "hashed": lambda: central(small_plan(record=NAMED), points()),
    "one row": lambda: central(small_plan(sketch={"rows": 1}), points()),
    "one column": lambda: central(small_plan(record={"dim": 1, "lower": [0], "upper": [10]}), points(1)),
    "five columns": lambda: central(small_plan(record=FIVE), points(5)),
    "fourier": lambda: central(
        small_plan(sketch={"family": "fourier", "kernel": "gaussian", "buckets": ...}), points()
    ),
    "hermite": lambda: central(small_plan(sketch=HERMITE), points()),
    "partition": lambda: central(small_plan(sketch=GRID, record={"dim": 1, "lower": [0], "upper": [10]}), points(1)),
    "partition, two columns": lambda: central(small_plan(sketch=GRID), points()),
    "paired": lambda: central(model_plan(), points(3) - 5),
    "sets": lambda: central(set_plan(), [[1, 2, 3], [4, 5]] * 50),
    "classes": lambda: _classes("red", "green"),
    "secure": _sums,
    "silo": _silos,
    "reports": lambda: _reports(report_plan()),
    "bits": lambda: _reports(bit_plan()),
    "cumulative": _sequence,
}


def saved(folder: Path, releases: Mapping[str, hs.Release]) -> list[Path]:
    """Files of releases, by their names."""
    paths = []
    for name, release in releases.items():
        path = folder / f"{name.replace(' ', '-').replace(',', '')}.hush"
        release.save(path)
        paths.append(path)
    return paths


def windows(plan: hs.Plan, number: int) -> dict[str, hs.Release]:
    """So many windows, whose records move in the middle."""
    found = {}
    for at in range(number):
        moved = points(seed=at) if at < number // 2 else points(seed=at)[:, ::-1]
        found[f"w{at}"] = central(plan, moved, WINDOW - number + at)
    return found


class Clock:
    """A clock that stands where the test puts it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Browser:
    """The page over a source, and a client that has its cookies."""

    def __init__(self, source: Source, *, proxy: ProxySignOn | None = None, accounts: Any = None) -> None:
        self.clock, self.errors = Clock(), list[Exception]()
        self.token = OneTimeToken(OsEntropy())
        self.sessions = Sessions(accounts or self.token, OsEntropy(), self.clock)
        self.settings = PageSettings(
            frozenset({"127.0.0.1", "localhost"}), PORT, is_secure=proxy is not None, proxy=proxy
        )
        self.library = Library(source, Workers())
        self.page = Page(self.library, self.sessions, self.settings, self.clock, signs_in_by_address=accounts is None)
        self.connect()

    def connect(self) -> None:
        """A client with an empty jar of cookies."""
        app = self.page.app(self.errors.append)
        base = BASE.replace("http", "https") if self.settings.is_secure else BASE
        self.client = TestClient(app, base, follow_redirects=False, raise_server_exceptions=False)

    def sign_in(self) -> "Browser":
        assert self.get(f"/sign-in?token={self.token.text}").status_code == 200
        return self

    def get(self, address: str, **headers: str) -> httpx2.Response:
        found: httpx2.Response = self.client.get(address, headers=headers)
        assert not self.errors, self.errors
        return found

    def post(self, address: str, fields: Mapping[str, str], **headers: str) -> httpx2.Response:
        found: httpx2.Response = self.client.post(address, data=dict(fields), headers=headers)
        return found


def browser_of(folder: Path, releases: Mapping[str, hs.Release]) -> Browser:
    """A browser that is signed in, over files of releases."""
    return Browser(FilesSource(saved(folder, releases))).sign_in()


def address_of(browser: Browser, file: str) -> str:
    """The address of a file's release."""
    import asyncio

    entries = asyncio.run(browser.library.source.plans())
    return next(f"/releases/{each.id}" for entry in entries for each in entry.outcomes if each.file == file)
