"""The fold of one partition: microseconds a delta, beside a bare compiled loop that adds ready indices."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from aggregator.fold.fold import Fold, warm_up
from aggregator.fold.state import FoldState
from aggregator.fold.verdicts import VerdictKind
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from hushsum.compiled import VARIABLE, compiled
from hushsum.delta import Delta, DeltaId, Run
from hushsum.delta_decoder import DeltaReader, digests, reader_of
from hushsum.families import Increments
from hushsum.plan import Plan
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_proto.many_entries import DeltaColumns

TITLE = (
    "Fold, us a delta, W = 1024, batches of 512 (bare: a compiled loop over ready indices, for all deltas at once or "
    "called once a delta; fold: decoding, checks, digests, dedupe and adding; entry: parsing the log's protobuf, apart)"
)
WIDTH = 1024
BATCH = 512
STREAMS = 64
_WINDOW = 0


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of rows and of records a delta."""
    warm_up()
    return [_measure(rows, records, quick=quick) for rows in (100, 1000) for records in (1, 50)]


def _measure(rows: int, records: int, *, quick: bool) -> Row:
    load = _Load(rows, records, 64 if quick else 2048 if records == 1 else 256)
    slow = load.first(32)
    cases: dict[str, Case] = {
        "bare": lambda: _increment(load.ready, load.counters),
        "bare calls": load.bare_calls,
        "fast": load.fold,
        "plain": slow.fold_plain,
        "entry": load.parse,
        "digest": lambda: [digests(some) for some in load.joined],
        "decode": load.decode,
    }
    rounds = Rounds(cases, repeats=1 if quick else 15)
    unit = 1e6 / len(load.deltas)
    shares = {name: rounds.seconds(name) * unit for name in ("entry", "digest", "decode")}
    fast = rounds.seconds("fast") * unit
    shares["dedupe and add"] = fast - shares["digest"] - shares["decode"]
    return {
        "R": rows,
        "records": records,
        "bytes": len(load.deltas[0]),
        "bare": rounds.seconds("bare") * unit,
        "bare calls": rounds.seconds("bare calls") * unit,
        "fast": fast,
        "plain": rounds.seconds("plain") * 1e6 / len(slow.deltas),
        "bare/fast": rounds.ratio(["bare"], ["fast"]),
        "bare calls/fast": rounds.ratio(["bare calls"], ["fast"]),
        **shares,
        "bound by": max((share, name) for name, share in shares.items() if name != "entry")[1],
    }


class _Load:
    """Deltas of random buckets, of 64 streams in turn, and what each case needs of them."""

    def __init__(self, rows: int, records: int, count: int) -> None:
        sketch = {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "rows": rows, "buckets": WIDTH}
        record = {"kind": "vector", "dim": 1, "lower": [0], "upper": [1]}
        privacy = {"epsilon": 1, "total_epsilon": 1}
        window = {"length": "1h", "lateness": "5m"}
        fields: dict[str, Any] = {"name": "fold", "record": record, "sketch": sketch, "privacy": privacy}
        self.plan = Plan.from_fields({**fields, "window": window})
        made = list(_deltas(self.plan, records, count))
        self.deltas = [delta for delta, _ in made]
        self.ready = np.concatenate([indices for _, indices in made])
        self.each = [indices for _, indices in made]
        self.counters = np.zeros(rows * WIDTH, np.int64)
        self.entries = [(i, DeltaEntry(f"client-{i % STREAMS}", delta, 0)) for i, delta in enumerate(self.deltas)]
        self.logged = [entry_to_bytes(entry) for _, entry in self.entries]
        self.batches = [DeltaColumns.of(self.entries[at : at + BATCH]) for at in range(0, count, BATCH)]
        self.reader = _reader(self.plan)
        self.joined = [self.reader.gathered(some.data, some.delta_spans) for some in self.batches]
        self.known = Delta.unpack(self.deltas[0], self.plan)
        self.reader.learn(self.known)

    def first(self, count: int) -> "_Load":
        """The same of the first deltas alone, for what is slow."""
        some = object.__new__(_Load)
        some.plan, some.deltas, some.entries = self.plan, self.deltas[:count], self.entries[:count]
        return some

    def bare_calls(self) -> None:
        for indices in self.each:
            _increment(indices, self.counters)

    def fold(self) -> None:
        fold = Fold(self.plan, 0, 1, FoldState(closed_through=_WINDOW - 1))
        # A fold that has run for a while: it knows how large runs may be, and its window's memory is not new.
        reader, window = fold._reader, fold._window(_WINDOW)  # noqa: SLF001 -- it is made warm
        assert reader is not None
        reader.learn(self.known)
        window.counters = self.counters.reshape(self.plan.counters_shape)
        for some in self.batches:
            assert fold.apply(some, int(some.positions[-1]) + 1).kinds() == {VerdictKind.COUNTED: len(some)}

    def fold_plain(self) -> None:
        import os

        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = "plain"
        try:
            fold = Fold(self.plan, 0, 1, FoldState(closed_through=_WINDOW - 1))
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before
        fold.apply(self.entries, len(self.entries))

    def parse(self) -> None:
        for data in self.logged:
            entry_from_bytes(data)

    def decode(self) -> None:
        for some in self.batches:
            batch, at = self.reader.gathered(some.data, some.delta_spans), 0
            while at < len(some):
                at = self.reader.read(batch, at)


def _deltas(plan: Plan, records: int, count: int) -> Iterator[tuple[bytes, "np.ndarray[Any, np.dtype[np.int64]]"]]:
    """Packed, and the indices of every increment."""
    rng, rows = np.random.default_rng(1), plan.family.shape[0]
    for i in range(count):
        drawn = np.sort(rng.integers(0, WIDTH, (rows, records)), axis=1) + np.arange(rows)[:, None] * WIDTH
        indices, values = np.unique(drawn, return_counts=True)
        run = Run(0, records, Increments(indices, values))
        yield Delta(plan.id, _WINDOW, DeltaId(i % STREAMS, i // STREAMS), (run,)).pack(plan), drawn.reshape(-1)


def _reader(plan: Plan) -> DeltaReader:
    reader = reader_of(plan)
    assert reader is not None, "this benchmark needs compiled loops"
    return reader


@compiled
def _increment(indices: "np.ndarray[Any, np.dtype[np.int64]]", counters: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
    for i in range(len(indices)):
        counters[indices[i]] += 1
