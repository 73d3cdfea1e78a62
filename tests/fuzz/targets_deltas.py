"""Deltas, batches of reports, noised sums and their bits: plain and compiled decoders say the same."""

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from aggregator.ingest.validation import ExactDeltas, id_in
from hushsum import Plan
from hushsum.bitpacking import (
    Reader,
    pack_bits,
    pack_elias_fano,
    pack_rows,
    pack_signed,
    packed_size,
    unpack_bits,
    unpack_elias_fano,
    unpack_rows,
    unpack_signed,
    varint,
    zigzag,
)
from hushsum.compiled import VARIABLE
from hushsum.delta import Delta, DeltaId, Run, apply, opened, pack_header, read_header, renumbered, unpack_at_home
from hushsum.delta_decoder import Batch, DeltaReader, reader_of
from hushsum.delta_decoder_loops import GOOD
from hushsum.errors import DeltaError, SecureSumError
from hushsum.families import Increments
from hushsum.local import report_batch, silo
from hushsum.privacy.modular_words import Words
from tests.fuzz import layouts, octets, worlds
from tests.fuzz.pieces import Piece, mutator
from tests.fuzz.target import MIB, Kit, Refused, Target, Verdict, expect, judge, plainly

_FIRST: Final = re.compile(r"^(malformed: delta format|newer_format|wrong_plan|too_large)")


@contextmanager
def kernels(which: str) -> Iterator[None]:
    """Plain or fast, as long as the block lasts."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = which
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _plan_of(data: bytes, plans: Mapping[bytes, Plan]) -> Plan:
    """The plan that a sample names, or any."""
    return plans.get(data[1:33]) or next(iter(plans.values()))


def _by_id(plans: Any) -> dict[bytes, Plan]:
    return {plan.id: plan for plan in plans}


# ------------------------------------------------------------------------------------------------------------- deltas


def _taught(plan: Plan) -> DeltaReader | None:
    """A reader that knows all sizes, so that it finds every good delta."""
    reader = reader_of(plan)
    if reader is not None:
        nothing = Increments(np.zeros(0, np.int64), np.zeros(0, np.int64))
        for power in range(plan.delta_records_max.bit_length()):
            reader.learn(Delta(plan.id, 0, DeltaId(0, 0), (Run(0, 2**power, nothing),)))
    return reader


def _counters(delta: Delta, plan: Plan) -> tuple[Any, Any]:
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.count_counters, np.int64)
    apply(delta, counters, counts, plan.privacy.mechanism.count_scale)
    return counters, counts


def _in_loops(batch: Batch, i: int, plan: Plan) -> Any:
    """The counters of what loops have found of delta number i."""
    counters = np.zeros((plan.counters_shape[0], plan.family.shape[0] * plan.family.shape[1]), np.int64)
    at, end, records = batch.spans[i].tolist()
    ready, total = batch.ready, 0
    while at < end:
        number, mine, follow = ready[at : at + 3].tolist()
        at, total = at + 3, total + mine
        found = ready[at : at + abs(follow)].astype(np.int64)
        if follow < 0:
            np.add.at(counters[number], found[::2], found[1::2])
        else:
            np.add.at(counters[number], found, 1)
        at += abs(follow)
    expect(total == records, "loops that give another number of records")
    return counters.reshape(plan.counters_shape)


def _compare(reader: DeltaReader, data: bytes, good: bytes, delta: Delta | None, plan: Plan) -> None:
    """Loops call this delta good, between good ones, where and only where it was unpacked, and find the same in it."""
    batch, first = reader.batch([good, data, good]), 0
    while first < 3:
        upto = reader.read(batch, first)
        for i in range(first, upto):
            is_good = batch.states[i] == GOOD
            if i != 1:
                expect(is_good, "a good delta that is refused for its neighbour")
                continue
            expect(is_good == (delta is not None), f"loops say {batch.states[i]} of a delta that is {delta}")
            if delta is not None:
                id = DeltaId(int(batch.streams[i]), int(batch.headers[i, 0]))
                expect((id, int(batch.headers[i, 1])) == (delta.id, delta.window), "loops that read another header")
                same = (_in_loops(batch, i, plan) == _counters(delta, plan)[0]).all()
                expect(same, "loops that read other counters")
        first = upto


_POLICIES: dict[bytes, ExactDeltas] = {}


def _delta_holds(data: bytes, delta: Delta, plan: Plan) -> None:
    expect(read_header(data).id == delta.id == id_in(data), "two readers of a header that do not agree")
    policy = _POLICIES.get(plan.id) or _POLICIES.setdefault(plan.id, ExactDeltas(plan))
    (parsed,) = policy.parse_many([data])
    expect(parsed in {None, (delta.id, delta.window, delta.records)}, "a gateway that reads another header")
    expect(policy.parse(plan.id, data, None)[:2] == (delta.id, delta.window), "a gateway that reads another header")
    again = delta.pack(plan)
    expect(len(again) <= len(data), "a delta that is larger when it is packed anew")
    twice = Delta.unpack(again, plan)
    expect(twice.pack(plan) == again, "a delta that is not read back")
    expect((_counters(twice, plan)[0] == _counters(delta, plan)[0]).all(), "other counters of the same delta")
    moved = renumbered(data, DeltaId(3, 200))
    expect(Delta.unpack(moved, plan).id == DeltaId(3, 200), "a delta that is not renumbered")


def _deltas() -> Kit:
    plans = _by_id(worlds.central_plans().values())
    samples = [data for plan in plans.values() for data in worlds.deltas_of(plan)]
    frozen = worlds.frozen("families/families.json").values()
    samples += [bytes.fromhex(text) for held in frozen for text in held["deltas"]]
    samples += [bytes.fromhex(held["delta"]) for held in worlds.first_files().values()]
    samples = [data for data in samples if data[1:33] in plans]
    good = {plan.id: next(worlds.deltas_of(plan)) for plan in plans.values()}
    with kernels("fast"):
        readers = {plan.id: _taught(plan) for plan in plans.values()}

    def attempt(data: bytes) -> Verdict:
        plan = _plan_of(data, plans)
        verdict, delta = judge(lambda data: Delta.unpack(data, plan), DeltaError)(data)
        home, _ = judge(lambda data: unpack_at_home(data, plan), DeltaError)(data)
        expect(home == verdict, "a device and a service that read a delta otherwise")
        judge(read_header, DeltaError)(data)
        if verdict is None:
            _delta_holds(data, delta, plan)
        reader = readers[plan.id]
        if reader is not None:
            _compare(reader, data, good[plan.id], delta, plan)
        return verdict

    return Kit(samples, attempt, mutator(layouts.delta), 64 * MIB, _FIRST)


def _headers() -> Kit:
    plan = worlds.fresh_plans()["central"]
    samples = [
        pack_header(plan.id, DeltaId(9, sequence), window) for sequence, window in ((0, 0), (2**63 - 1, -(2**63)))
    ]

    def read(data: bytes) -> Any:
        header = read_header(data)
        reader, again = opened(data, plan)
        expect(header == again and id_in(data) == header.id, "two readers of a header that do not agree")
        whole = pack_header(header.plan_id, header.id, header.window)
        expect(data.startswith(whole), "a header of other bytes")
        expect(renumbered(data, header.id) == data, "other bytes under the same id")
        reader.finish()
        return header

    return Kit(samples, plainly(read, DeltaError), octets.mutated, first=_FIRST)


# ------------------------------------------------------------------------------------------- reports and noised sums


def _unpacked(data: bytes, plan: Plan, which: str) -> tuple[Verdict, Any]:
    with kernels(which):
        return judge(lambda data: report_batch.unpack(data, plan), DeltaError)(data)


def _counted(data: bytes, plan: Plan, which: str) -> tuple[Verdict, Any, Any]:
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
    with kernels(which):
        verdict, n = judge(lambda data: report_batch.count_packed(data, plan, counters, counts), DeltaError)(data)
    expect(counts[0] == (n or 0) == counters.sum(), "reports that are counted in part, or though they are refused")
    return verdict, counters, counts


def _reports() -> Kit:
    plans = _by_id(worlds.report_plans())
    samples = [data for plan in plans.values() for data in worlds.batches_of(plan)]

    def attempt(data: bytes) -> Verdict:
        plan = _plan_of(data, plans)
        (verdict, batch), (fast, fast_batch) = (_unpacked(data, plan, which) for which in ("plain", "fast"))
        expect(verdict == fast, f"plain says {verdict}, compiled {fast}")
        (counted, counters, _), (fast_counted, fast_counters, _) = (
            _counted(data, plan, which) for which in ("plain", "fast")
        )
        expect(counted == fast_counted == verdict, f"unpacked {verdict}, counted {counted}, compiled {fast_counted}")
        expect((counters == fast_counters).all(), "compiled loops that count otherwise")
        if verdict is None:
            expect((batch.reports == fast_batch.reports).all(), "compiled loops that read otherwise")
            expect(batch.pack(plan) == data, "a batch of other bytes")
        return verdict

    return Kit(samples, attempt, mutator(layouts.batch), 32 * MIB, _FIRST)


def _submissions() -> Kit:
    plans = _by_id(worlds.silo_plans())
    samples = [data for plan in plans.values() for data in worlds.submissions_of(plan)]
    held = worlds.frozen("local/local.json").values()
    samples += [data for each in held if (data := bytes.fromhex(each["submitted"]))[1:33] in plans]

    def attempt(data: bytes) -> Verdict:
        plan = _plan_of(data, plans)
        verdict, value = judge(lambda data: silo.unpack(data, plan), DeltaError)(data)
        if verdict is None:
            words = plan.words.pack(plan.words.of(value.counters.reshape(-1), value.counts))
            expect(pack_header(plan.id, value.id, value.window) + words == data, "a noised sum of other bytes")
        return verdict

    return Kit(samples, attempt, mutator(layouts.submission), 32 * MIB, _FIRST)


# --------------------------------------------------------------------------------------------------------------- bits


def _vectors() -> Kit:
    widths, sizes = ((2, 63), (18, 40), (32, 5), (33, 7)), ((1, 1), (40, 2), (130, 3))
    shapes = [(*width, *size) for width in widths for size in sizes]
    rng = np.random.default_rng(5)
    samples = []
    for shape in shapes:
        words = Words(*shape)
        drawn = rng.integers(0, 2**32, words.length, np.uint64).astype(words.dtype)
        samples.append(np.array(shape, ">u2").tobytes() + words.pack(drawn))

    def attempt(data: bytes) -> Verdict:
        (bits, count_bits, size, classes), rest = layouts.integers_in(data, 4)
        words = Words(2 + bits % 62, 2 + count_bits % 62, 1 + size % 512, 1 + classes % 8)
        words = Words(bits, count_bits, size, classes) if data[:8] in heads else words

        def check(packed: bytes, value: Any) -> None:
            expect(words.pack(value) == packed, "a vector of other bytes")
            expect(words.pack(words.of(*words.centred(value))) == packed, "counters that are other words")

        return plainly(words.unpack, SecureSumError, check=check)(rest)

    heads = {sample[:8] for sample in samples}
    change = mutator(lambda data: [Piece(data[:8], weight=0.1), Piece(data[8:-1], inner=_same_size), Piece(data[-1:])])
    return Kit(samples, attempt, change, first=re.compile("a vector of"))


def _same_size(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Other bytes, mostly as many."""
    changed = octets.mutated(rng, data, donors)
    return changed[: len(data)].ljust(len(data), b"\0") if rng.random() < 0.8 else changed


def _after_head(size: int) -> Callable[[bytes], list[Piece]]:
    """Cuts a sample into what stands before the bits, seldom changed, and the bits."""
    return lambda data: [Piece(data[:size], weight=0.3), Piece(data[size:], inner=_same_size)]


def _row_samples() -> list[bytes]:
    samples, rng = [], np.random.default_rng(6)
    for rows, width, total in ((3, 64, 1), (5, 100, 9), (2, 1000, 40), (4, 3, 200)):
        drawn = np.sort(rng.integers(0, width, (rows, total)), axis=1).astype(np.int64)
        indices, values = np.unique(drawn + np.arange(rows)[:, None] * width, return_counts=True)
        _, packed = pack_rows(indices, values, rows, width, total)
        every = {int(encoding): data for encoding, data in [pack_rows(indices, values, rows, width, total)]}
        every[1] = pack_bits(drawn.reshape(-1), (width - 1).bit_length())
        every[2] = pack_elias_fano(drawn, width)
        head = np.array((rows, width, total), ">u2").tobytes()
        samples += [bytes([encoding]) + head + data for encoding, data in every.items()]
        assert packed in every.values()
    return samples


def _rows() -> Kit:
    def attempt(data: bytes) -> Verdict:
        (rows, width, total), rest = layouts.integers_in(data[1:], 3)
        rows, width, total = 1 + (rows - 1) % 32, 2 + (width - 2) % 4096, 1 + (total - 1) % 512
        encoding = data[0] if data else 0

        def check(_: bytes, value: Any) -> None:
            indices, values = value
            sums = np.zeros(rows, np.int64)
            np.add.at(sums, indices // width, values)
            expect((np.diff(indices) > 0).all() and (values > 0).all(), "counters that are no rising ones")
            if (sums == total).all():
                again = unpack_rows(*pack_rows(indices, values, rows, width, total), rows, width, total)
                expect(all((a == b).all() for a, b in zip(again, value, strict=True)), "rows that are not read back")

        return plainly(lambda data: unpack_rows(encoding, data, rows, width, total), DeltaError, check=check)(rest)

    change = mutator(_after_head(7))
    return Kit(_row_samples(), attempt, change, 16 * MIB, re.compile("bytes of buckets|expected one of"))


def _signed_rows() -> Kit:
    samples, rng = [], np.random.default_rng(7)
    for size, entries in ((64, 0), (64, 3), (64, 60), (1000, 20), (3000, 5)):
        indices = np.sort(rng.choice(size, entries, replace=False)).astype(np.int64)
        values = rng.choice([-7, -1, 1, 2, 90], entries).astype(np.int64)
        encoding, packed = pack_signed(indices, values, size)
        samples.append(bytes([encoding]) + np.array((size, size, 100), ">u2").tobytes() + packed)

    def attempt(data: bytes) -> Verdict:
        (size, entries, largest), rest = layouts.integers_in(data[1:], 3)
        size, encoding = 1 + (size - 1) % 4096, data[0] if data else 0

        def decode(data: bytes) -> Any:
            return unpack_signed(encoding, data, size, entries_max=entries, largest=largest)

        def check(_: bytes, value: Any) -> None:
            indices, values = value
            expect((np.diff(indices) > 0).all() and (values != 0).all(), "counters that are no rising ones")
            again = unpack_signed(*pack_signed(indices, values, size), size, entries_max=size, largest=max(1, largest))
            expect(all((a == b).all() for a, b in zip(again, value, strict=True)), "counters that are not read back")

        return plainly(decode, DeltaError, check=check)(rest)

    return Kit(samples, attempt, mutator(_after_head(7)), 16 * MIB, re.compile("expected one of"))


def _bits() -> Kit:
    samples = [bytes([bits, 9]) + pack_bits(np.arange(9) % (1 << bits), bits) for bits in (1, 3, 8, 17, 47)]

    def attempt(data: bytes) -> Verdict:
        bits, count = (1 + (data[0] - 1) % 48, data[1]) if len(data) > 1 else (1, 0)
        rest = data[2 : 2 + packed_size(count, bits)].ljust(packed_size(count, bits), b"\0")
        width = min(1 << bits, 4096)
        judge(lambda data: unpack_elias_fano(data, 2, width, max(1, count)), DeltaError)(data[2:])

        def check(data: bytes, values: Any) -> None:
            expect(pack_bits(values, bits) == data, "numbers of other bytes")

        return plainly(lambda data: unpack_bits(data, count, bits), DeltaError, check=check)(rest)

    return Kit(samples, attempt, octets.mutated)


def _numbers() -> Kit:
    samples = [varint(number) + varint(zigzag(other)) for number, other in ((0, 0), (127, -1), (2**64 - 1, -(2**63)))]

    def read(data: bytes) -> tuple[int, int]:
        reader = Reader(data)
        found = reader.varint(), reader.signed()
        reader.finish()
        return found

    def check(data: bytes, value: tuple[int, int]) -> None:
        expect(varint(value[0]) + varint(zigzag(value[1])) == data, "numbers of other bytes")

    return Kit(samples, plainly(read, DeltaError, check=check), octets.mutated)


def warm(kit: Kit) -> list[Refused]:
    """Every sample once: what the samples themselves are refused for, which is nothing."""
    return [verdict for sample in kit.samples if (verdict := kit.attempt(sample)) is not None]


_MADE: Final[tuple[tuple[str, tuple[str, ...], Callable[[], Kit], float], ...]] = (
    (
        "delta",
        (
            "hushsum.delta.Delta.unpack",
            "hushsum.delta.unpack_at_home",
            "hushsum.delta_decoder.DeltaReader",
            "hushsum.delta_decoder_loops.decode",
            "hushsum.families.base",
            "hushsum.families.base.Family.unpack",
            "aggregator.ingest.validation.SubmissionPolicy",
            "aggregator.ingest.validation.ExactDeltas",
        ),
        _deltas,
        12,
    ),
    (
        "delta-header",
        (
            "hushsum.delta.read_header",
            "hushsum.delta.opened",
            "hushsum.delta.renumbered",
            "aggregator.ingest.validation.id_in",
        ),
        _headers,
        6,
    ),
    ("reports", ("hushsum.local.report_batch.unpack", "hushsum.local.report_batch.count_packed"), _reports, 4),
    ("noised-sum", ("hushsum.local.silo.unpack",), _submissions, 4),
    ("masked-vector", ("hushsum.privacy.modular_words.Words.unpack",), _vectors, 3),
    ("rows", ("hushsum.bitpacking.unpack_rows",), _rows, 4),
    ("signed-rows", ("hushsum.bitpacking.unpack_signed",), _signed_rows, 4),
    ("bits", ("hushsum.bitpacking.unpack_bits", "hushsum.bitpacking.unpack_elias_fano"), _bits, 4),
    ("varint", ("hushsum.bitpacking.Reader",), _numbers, 8),
)
TARGETS: Final = tuple(Target(*made) for made in _MADE)
