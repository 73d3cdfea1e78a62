"""Messages of the wire through real protobuf bytes, entries and messages of the log, receipts, the store's blocks."""

import asyncio
import importlib
import inspect
import pkgutil
import random
import re
import typing
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError, Message

import hushsum_proto
from aggregator.api.collection import LargeDeltas
from aggregator.errors import LogError, ReceiptsError, RefusedError, StoreError
from aggregator.fold.deduplication import HEAD, REACH, SLOT_BYTES, StreamState
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.log.entries import PlainMessages, SignedMessages
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import SendLimits
from aggregator.release.receipts import Receipt, ReceiptsHeader, read_line
from aggregator.store.schema import pack, unpack
from hushsum.errors import Reason
from hushsum.privacy.spending import spend_of
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.answers import Answer, Status
from hushsum_proto.batches import Batch, signed_batch
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes, reason_from_wire, submission_to_wire
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes, is_seal
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.entries import ENTRY_FORMAT, CohortSumEntry, DeltaEntry, ReportsEntry, SealEntry
from hushsum_proto.errors import MalformedEntryError, MalformedMessageError, NewerEntryError
from hushsum_proto.many_entries import delta_columns, joined, message_entries
from hushsum_proto.messages import chunks_of
from hushsum_proto.v1 import wire_pb2 as pb
from tests.fuzz import layouts, octets, protobuf, worlds
from tests.fuzz.pieces import mutator
from tests.fuzz.tables import canonical_text
from tests.fuzz.tables import read as read_json
from tests.fuzz.target import Kit, Refused, Target, Verdict, expect, judge, plainly
from tests.fuzz.targets_deltas import kernels
from tests.services import SetRuntime

# --------------------------------------------------------------------------------------------------- the translator

#: What writes is not called as what reads is.
_WRITERS: Final[dict[str, Callable[[Any], Message]]] = {
    "shuffled_from_wire": lambda claim: submission_to_wire(b"", b"", claim),
    "ledger_request_from_wire": lambda asked: pb.GetLedgerRequest(skip=asked[0], limit=asked[1]),
}


def translators() -> dict[str, Any]:
    """Every ``*_from_wire`` by its qualified name."""
    found = {}
    for module in pkgutil.iter_modules(hushsum_proto.__path__, "hushsum_proto."):
        if module.name.startswith("hushsum_proto.convert"):
            loaded = importlib.import_module(module.name)
            for name, value in vars(loaded).items():
                if name.endswith("_from_wire") and getattr(value, "__module__", "") == module.name:
                    found[f"{module.name}.{name}"] = value
    return found


def _message_of(reader: Any) -> type[Message] | None:
    """The message that a translator reads; None of one that reads a number."""
    module = importlib.import_module(reader.__module__)
    annotation = next(iter(inspect.signature(reader).parameters.values())).annotation
    kind = eval(annotation, vars(module)) if isinstance(annotation, str) else annotation
    return kind if isinstance(kind, type) and issubclass(kind, Message) else None


def _writer_of(reader: Any) -> Callable[[Any], Message]:
    name = reader.__name__
    if name in _WRITERS:
        return _WRITERS[name]
    write = getattr(importlib.import_module(reader.__module__), name.replace("_from_wire", "_to_wire"))
    several = len(inspect.signature(write).parameters) > 1
    return lambda value: write(*value) if several else write(value)


def _translation(reader: Any, message: type[Message]) -> Kit:
    write = _writer_of(reader)

    def read(data: bytes) -> Any:
        return reader(message.FromString(data))

    def check(_: bytes, value: Any) -> None:
        expect(read(write(value).SerializeToString()) == value, f"{value!r} is not read back")

    rng = random.Random(11)
    attempt = plainly(read, DecodeError, MalformedMessageError, check=check)
    drawn = [protobuf.filled(rng, message()).SerializeToString() for _ in range(400)]
    samples = [data for data in drawn if attempt(data) is None][:24] or [b""]
    if message is pb.GetLedgerReply:
        spend = spend_of(worlds.fresh_plans()["central"], kind="tumbling", window=3).to_bytes()
        samples.append(pb.GetLedgerReply(spends=[spend] * 3, population="all").SerializeToString())
    return Kit(samples, attempt, protobuf.mutated, first=re.compile("[Ee]rror parsing|[Dd]ecod"))


def _translations() -> list[Target]:
    made = []
    for name, reader in sorted(translators().items()):
        message = _message_of(reader)
        if message is not None:
            short = "wire-" + reader.__name__.removesuffix("_from_wire").replace("_", "-")
            made.append(Target(short, (name,), partial(_translation, reader, message), 2))
    return made


# ------------------------------------------------------------------------------------------------------- the log

_PLAN_ID: Final = bytes(range(32))
_DELTA: Final = DeltaEntry("alice", b"a delta", 1_763_800_000_000)
_GOOD: Final = entry_to_bytes(_DELTA)
_ENTRIES: Final = tuple(
    entry_to_bytes(entry)
    for entry in (
        _DELTA,
        DeltaEntry("é", b"", 0),
        DeltaEntry("a" * 128, bytes(300), -1),
        SealEntry(_PLAN_ID, -3, 7),
        CohortSumEntry(_PLAN_ID, 5, bytes(32), 3, b"sum", 7),
        ReportsEntry(b"reports", True, 7),
    )
)


def _entries() -> Kit:
    judged = judge(entry_from_bytes, MalformedEntryError, NewerEntryError)

    def attempt(data: bytes) -> Verdict:
        verdict, entry = judged(data)
        if verdict is None:
            expect(entry_from_bytes(entry_to_bytes(entry)) == entry, "an entry that is not read back")
        is_seal(data)
        for which in ("fast", "plain"):
            with kernels(which):
                found = _deltas_of([_GOOD, data, _GOOD, data, _GOOD])
            expect([found[i] for i in (0, 2, 4)] == [_DELTA if which == "fast" else None] * 3, "a good entry is lost")
            expect(found[1] == found[3] and found[1] in {None, entry}, f"loops read {found[1]} of {entry}")
        return verdict

    return Kit(_ENTRIES, attempt, protobuf.mutated, first=re.compile("got other bytes|expected a format version"))


def _deltas_of(entries: list[bytes]) -> list[DeltaEntry | None]:
    found = delta_columns(np.arange(len(entries)), *joined(entries))
    if found is None:
        return [None] * len(entries)
    return [None if place in found[1] else entry for place, (_, entry) in enumerate(found[0])]


def _held_by(*messages: bytes) -> list[tuple[bytes, ...]] | None:
    data, spans = joined(messages)
    found = message_entries(data, spans)
    if found is None:
        return None
    return [
        tuple(data[first:last] for number, _, first, last in found.tolist() if number == message)
        for message in range(len(messages))
    ]


def _messages() -> Kit:
    keys = {role: SigningKey(bytes([number]) * 32) for number, role in enumerate(Role, 1)}
    directory = Directory({role.value: DirectoryKey(role.value, role, key.verify_key) for role, key in keys.items()})
    signed_log = SignedMessages(_PLAN_ID, directory, producers=True)
    plain_log = PlainMessages()
    unsigned = [batch_to_bytes(Batch(entries)) for entries in (_ENTRIES[:1], _ENTRIES, (b"",), _ENTRIES[:2] * 40)]
    signed = [
        batch_to_bytes(signed_batch(_ENTRIES[:2], plan_id=_PLAN_ID, partition=5, key_id=role.value, key=key))
        for role, key in keys.items()
    ]
    one = unsigned[0]

    def attempt(data: bytes) -> Verdict:
        verdict, batch = judge(batch_from_bytes, MalformedEntryError)(data)
        if verdict is None:
            expect(batch_from_bytes(pb_of(batch)) == batch, "a message that is not read back")
        plain = [_in_log(plain_log, data, which) for which in ("fast", "plain")]
        expect(plain[0] == plain[1], f"compiled {plain[0]}, plain {plain[1]}")
        believed = _in_log(signed_log, data, "fast")
        for which in ("fast", "plain"):
            with kernels(which):
                among, entries = _held_by(one, data, one), _held_by(data)
            alone = None if batch is None or batch.suite or batch.format_version != ENTRY_FORMAT else batch.entries
            expect(entries is None or entries == [alone], "loops find other entries")
            expect(among is None or among[1] == alone, "loops find other entries among others")
        is_seal(data)
        return verdict if verdict is not None or plain[1] is None else believed

    def pb_of(batch: Batch) -> bytes:
        message = pb.Entry(format_version=batch.format_version, batch=pb.EntryBatch(entries=batch.entries))
        message.authenticity.suite, message.authenticity.key_id = batch.suite, batch.key_id
        message.authenticity.tag = batch.tag
        return message.SerializeToString()

    return Kit([*unsigned, *signed], attempt, protobuf.mutated, first=re.compile("got other bytes"))


def _in_log(log: Any, data: bytes, which: str) -> Verdict:
    with kernels(which):
        verdict, opened = judge(lambda data: log.read(5, data), LogError, NewerEntryError)(data)
    if verdict is None:
        expect((opened.problem is None) == bool(opened.entries), "a message without entries and without a problem")
        expect(opened.problem in {None, Reason.MALFORMED, Reason.UNSIGNED}, "another problem")
        return opened.problem and Refused(opened.problem.value, "in the log")
    return verdict


def _chunks() -> Kit:
    plan_id, runner, runtime, metrics = bytes(32), asyncio.Runner(), SetRuntime(), Metrics()
    sends = SendLimits(1e12, 10**12, 10**12, runtime)

    class Uploads:
        """Takes whatever is whole."""

        async def submit(self, received: ReceivedDelta) -> Answer:
            expect(
                len(received.plan_id) == 32 and 1 <= len(received.data) <= 1000, "a delta that must not be put together"
            )
            return Answer(None, Status.COUNTED)

    def messages(data: bytes) -> list[pb.DeltaChunk]:
        return [pb.DeltaChunk.FromString(part) for part in layouts.parts_of(data)]

    async def submit(parts: Sequence[pb.DeltaChunk]) -> Answer:
        async def coming() -> AsyncGenerator[pb.DeltaChunk, None]:
            for part in parts:
                yield part

        limits: dict[str, Any] = {"delta_bytes_max": 1000, "held_bytes_max": 1500}
        large, chunks = LargeDeltas(typing.cast("Any", Uploads()), runtime, metrics, sends, **limits), coming()
        try:
            answer = await large.submit("alice", chunks)
        finally:
            await chunks.aclose()
            expect(large.held_bytes == 0, "bytes that are held after the answer")
        if answer.status is Status.REFUSED:
            raise RefusedError(typing.cast("Any", answer.refusal))
        return answer

    def read(data: bytes) -> Answer:
        return runner.run(submit(messages(data)))

    sizes = [(20, 20), (600, 200), (1000, 999)]
    samples = []
    for size, step in sizes:
        body = random.Random(size).randbytes(size)
        parts = [pb.DeltaChunk(offset=at, data=body[at : at + step]) for at in range(0, size, step)]
        parts[0].plan_id, parts[0].size = plan_id, size
        samples.append(layouts.joined([part.SerializeToString() for part in parts]))
    samples.append(
        layouts.joined([delta_chunk_to_wire(chunk).SerializeToString() for chunk in chunks_of(plan_id, b"x")])
    )

    def prefixed(data: bytes) -> list[Any]:
        from dataclasses import replace

        return [replace(piece, inner=protobuf.mutated) for piece in layouts.prefixed(data)]

    attempt = plainly(read, DecodeError, RefusedError)
    return Kit(samples, attempt, mutator(prefixed), first=re.compile("[Ee]rror parsing|[Dd]ecod"))


def _reasons() -> Kit:
    def read(data: bytes) -> Any:
        return reason_from_wire(int.from_bytes(data[:4], "big", signed=True))

    return Kit([bytes([0, 0, 0, number]) for number in range(40)], plainly(read), octets.mutated)


# ------------------------------------------------------------------------------------------- files beside the log


def _receipts() -> Kit:
    samples: list[bytes] = []
    for name in ("central", "secure", "silo", "reports"):
        plan = worlds.fresh_plans()[name]
        line, _checksum = Receipt(
            plan.id, "tumbling", -3, bytes(32), spend_of(plan, kind="tumbling", window=-3)
        ).to_line()
        samples.append(line)
    samples.append(ReceiptsHeader(bytes(range(16))).to_line()[0])

    def check(line: bytes, value: tuple[ReceiptsHeader | Receipt, int]) -> None:
        fields = read_json(line)
        written = fields.pop("checksum")
        expect(written == f"{zlib.crc32(canonical_text(fields)):08x}", "a checksum of something else")
        held = value[0]
        expect(read_line(held.to_line()[0])[0] == held, "a receipt that is not read back")

    one, end = samples[0], samples[0].index(b'"checksum":"') + len(b'"checksum":"')
    bad = {
        "another checksum": one[:end] + b"%08x" % (int(one[end : end + 8], 16) ^ 1) + one[end + 8 :],
        "a checksum in capitals": one[:end] + b"ABCDEF01" + one[end + 8 :],
        "the checksum of a later line": read_line(one)[0].to_line(1)[0],
        "a header of another length": ReceiptsHeader(bytes(15)).to_line()[0],
        "another window": one.replace(b'"window":-3}', b'"window":-4}'),
        "half of it": one[: len(one) // 2],
    }
    attempt = plainly(read_line, ReceiptsError, check=check)
    return Kit(samples, attempt, layouts.change_receipt, first=re.compile("not canonical"), bad=bad)


def _streams() -> Kit:
    samples = []
    for numbers in ((), (0,), (5, 6, 70), tuple(range(100))):
        state = StreamState()
        for number in numbers:
            state.record(number, bytes([number]) * 8, number, Reason.TOO_MANY_RECORDS if number % 3 else None)
        samples.append(state.to_bytes())

    def check(data: bytes, state: StreamState) -> None:
        expect(state.to_bytes() == data, "a stream of other bytes")
        _, _, mask, _, count = HEAD.unpack_from(data)
        expect(mask.bit_length() <= count <= REACH, "a stream that remembers what it has no place for")

    head = list(HEAD.unpack_from(samples[2]))
    slots = samples[2][HEAD.size :]
    bad = {
        "a bit beyond the slots": HEAD.pack(*head[:2], head[2] | 1 << head[4], *head[3:]) + slots,
        "the highest bit": HEAD.pack(*head[:2], head[2] | 1 << 63, *head[3:]) + slots,
        "too many slots": HEAD.pack(*head[:4], REACH + 1) + bytes(SLOT_BYTES * (REACH + 1)),
        "a slot too few": samples[2][:-SLOT_BYTES],
        "format 0": b"\0" + samples[2][1:],
        "format 2": b"\2" + samples[2][1:],
    }
    attempt = plainly(StreamState.from_bytes, StoreError, check=check)
    return Kit(samples, attempt, octets.mutated, first=re.compile("invalid encoding|format"), bad=bad)


def _blocks() -> Kit:
    import numpy as np

    samples = [pack(np.array(values, np.int64)) for values in ([1, -1], [300, 2], [2**31, 5], [2**62, -(2**63)])]

    def check(_: bytes, values: Any) -> None:
        expect(not len(values) or (unpack(pack(values)) == values).all(), "counters that are not read back")

    return Kit(samples, plainly(unpack, StoreError, check=check), octets.mutated)


TARGETS: Final = (
    *_translations(),
    Target("wire-reason", ("hushsum_proto.convert.reason_from_wire",), _reasons, 1),
    Target(
        "entry",
        (
            "hushsum_proto.convert.entry_from_bytes",
            "hushsum_proto.many_entries.delta_columns",
            "hushsum_proto.convert_batches.is_seal",
            "hushsum_proto.entry_loops",
        ),
        _entries,
        8,
    ),
    Target(
        "log-message",
        (
            "hushsum_proto.convert_batches.batch_from_bytes",
            "hushsum_proto.many_entries.message_entries",
            "aggregator.log.entries",
        ),
        _messages,
        5,
    ),
    Target("delta-chunks", ("aggregator.api.collection.LargeDeltas",), _chunks, 2),
    Target(
        "receipt",
        ("aggregator.release.receipts.read_line", "aggregator.release.receipts.Receipt.from_fields"),
        _receipts,
        2,
    ),
    Target(
        "stream-state",
        ("aggregator.fold.deduplication.StreamState.from_bytes", "aggregator.fold.deduplication.StreamState.head_of"),
        _streams,
        1,
    ),
    Target("store-block", ("aggregator.store.schema.unpack",), _blocks, 1),
)
