"""How long a view of the web page takes on one core, and how long the event loop of a service beside it waits.

    taskset --cpu-list 0 python -m benchmarks.page

Each view is asked for a release that is not in memory yet (cold: read, verified, unpacked, computed, drawn), and once
more for another place of the same release (warm: computed and drawn). Sketches have 1,000 rows.
"""

import re
import tempfile
import threading
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

import hushsum as hs
from hushsum.entropy import OsEntropy
from hushsum.releases import draw
from hushsum_page.library import warm_up
from hushsum_page.viewer import Viewer

_ROWS: Final = 1000
_WINDOWS: Final = 100
_ROUNDS: Final = 3
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
_SERIES: Final = plan_of(2, {**_HASHED, "buckets": 64})


def release_of(plan: hs.Plan, window: int, seed: int) -> hs.Release:
    """A release of 5,000 records."""
    drawn = np.random.default_rng(seed)
    sketch = hs.Sketch(plan)
    records = np.clip(drawn.normal(5, 1, (5000, plan.vectors.dim)), 0, 10)
    sketch.add(records, labels=drawn.choice(plan.classes, 5000).tolist() if plan.classes else None)
    return draw(sketch, kind="tumbling", window=window, entropy=OsEntropy(), accounted=True)


class Reader:
    """A browser that only reads."""

    def __init__(self, viewer: Viewer) -> None:
        self._base = viewer.address.partition("/sign-in")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._opener.open(viewer.address).close()

    def get(self, address: str) -> tuple[float, bytes]:
        """How many ms an address takes, and what comes, uncompressed."""
        began = time.perf_counter()
        with self._opener.open(self._base + address) as answer:
            data: bytes = answer.read()
        return 1000 * (time.perf_counter() - began), data

    def addresses(self, start: str, pattern: str) -> list[str]:
        """What a pattern finds in the page of an address."""
        return re.findall(pattern, self.get(start)[1].decode())


def measure(folder: Path) -> None:
    """Prints a line a view."""
    warm_up()
    print(f"{'view':34} {'cold ms':>9} {'warm ms':>9} {'kB':>6}")
    for name, plan in PLANS.items():
        paths: list[Path] = []
        for number in range(_ROUNDS):
            paths.append(folder / f"{len(paths)}.hush")
            release_of(plan, 472_222 + number, number).save(paths[-1])
        viewer = Viewer(paths, 0, entropy=OsEntropy(), clock=time.monotonic)
        viewer.server.start()
        reader = Reader(viewer)
        releases = reader.addresses("/", r'"(/releases/[0-9a-f]{16})"')
        cold = [reader.get(each) for each in releases]
        held = [f"?hold{plan.vectors.dim - 1}=5" if plan.vectors.dim > 1 else "?kind=density"]
        warm = [reader.get(each + held[0])[0] for each in releases]
        print(f"{name:34} {median(each[0] for each in cold):9.0f} {median(warm):9.0f} {len(cold[0][1]) / 1000:6.0f}")
        asked = "&".join(f"c{column}=5" for column in range(plan.vectors.dim))
        answers = [reader.get(f"{each}/at?{asked}")[0] for each in releases]
        print(f"{'  a question':34} {'':9} {median(answers):9.0f}")
        if name.startswith("hashed, 1"):
            compared = f"/compare?first={releases[0][-16:]}&second={releases[1][-16:]}"
            first, second = reader.get(compared)[0], reader.get(f"{compared}&hold1=4")[0]
            print(f"{'  two compared':34} {first:9.0f} {second:9.0f}")
            print(f"{'  PNG, by matplotlib':34} {reader.get(f'{releases[0]}/figure.png')[0]:9.0f}")
        viewer.server.stop()
    _over_time(folder)


def _over_time(folder: Path) -> None:
    paths = []
    for number in range(_WINDOWS):
        paths.append(folder / f"w{number}.hush")
        release_of(_SERIES, 472_222 + number, number).save(paths[-1])
    viewer = Viewer(paths, 0, entropy=OsEntropy(), clock=time.monotonic)
    viewer.server.start()
    reader = Reader(viewer)
    (plan,) = set(reader.addresses("/", r'"(/plans/[0-9a-f]{16})"'))
    print(f"{'100 windows, 64 buckets: the list':34} {reader.get(plan)[0]:9.0f} {reader.get(plan)[0]:9.0f}")
    print(f"{'  over time':34} {reader.get(f'{plan}/time')[0]:9.0f} {reader.get(f'{plan}/time')[0]:9.0f}")
    print(f"another loop's longest wait while pictures are drawn: {1000 * _longest_wait(reader):.0f} ms")
    viewer.server.stop()


def _longest_wait(reader: Reader) -> float:
    """By how many seconds an event loop in another thread wakes up too late, at most, during 50 pictures."""
    import asyncio

    ended, late = threading.Event(), [0.0]

    async def watch() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            await asyncio.sleep(_LOOP_S)
            late[0] = max(late[0], time.perf_counter() - began - _LOOP_S)

    thread: Any = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    (plan,) = set(reader.addresses("/", r'"(/plans/[0-9a-f]{16})"'))
    release = reader.addresses(plan, r'"(/releases/[0-9a-f]{16})"')[0]
    for number in range(50):
        reader.get(f"{release}?kind=density&hold1={number / 10}")
    ended.set()
    thread.join()
    return late[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measure(Path(made))
