"""Messages of the wire through real protobuf bytes, entries and messages of the log, client ids, receipts, tokens."""

import asyncio
import importlib
import inspect
import pkgutil
import random
import re
import typing
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

import hushsum_proto
from aggregator.callers.auth import is_loopback_peer
from aggregator.callers.tokens.table import Table, TokenTableError
from aggregator.errors import LogError, ReceiptsError, StoreError
from aggregator.fold.streams import StreamState
from aggregator.log_messages import PlainMessages, SignedMessages
from aggregator.receipt import Receipt
from aggregator.refusals import RefusedError
from aggregator.server.large import LargeDeltas
from aggregator.store.schema import pack, unpack
from hushsum.directory import Directory, DirectoryKey, Role
from hushsum.errors import Reason
from hushsum.privacy.spending import spend_of
from hushsum.signatures import SigningKey
from hushsum_proto.answers import Answer, Status
from hushsum_proto.batches import Batch, signed_batch
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes, reason_from_wire, submission_to_wire
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes, is_seal
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.entries import ENTRY_FORMAT, CohortSumEntry, DeltaEntry, ReportsEntry, SealEntry, partition_of
from hushsum_proto.errors import MalformedEntryError, MalformedMessageError, NewerEntryError
from hushsum_proto.many_entries import batch_entries, delta_entries, single_entries
from hushsum_proto.messages import chunks_of
from hushsum_proto.metadata import client_id_from_metadata, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from tests.fuzz import layouts, octets, protobuf, worlds
from tests.fuzz.pieces import mutator
from tests.fuzz.tables import broken
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
                found = delta_entries([_GOOD, data, _GOOD, data, _GOOD])
            expect([found[i] for i in (0, 2, 4)] == [_DELTA if which == "fast" else None] * 3, "a good entry is lost")
            expect(found[1] == found[3] and found[1] in {None, entry}, f"loops read {found[1]} of {entry}")
        return verdict

    return Kit(_ENTRIES, attempt, protobuf.mutated, first=re.compile("got other bytes|expected a format version"))


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
                single, entries = single_entries([one, data, one, one]), batch_entries(data)
            alone = None if batch is None or batch.suite or batch.format_version != ENTRY_FORMAT else batch.entries
            expect(entries in {None, alone}, "loops find other entries")
            expect(single is None or (single[1],) == alone, "loops find another entry")
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
    plan_id, runner, runtime = bytes(32), asyncio.Runner(), SetRuntime()

    class Uploads:
        """Takes whatever is whole."""

        async def submit(self, client_id: str, plan_id: bytes, delta: bytes) -> Answer:
            expect(len(plan_id) == 32 and 1 <= len(delta) <= 1000, "a delta that must not be put together")
            return Answer(None, Status.COUNTED)

    def messages(data: bytes) -> list[pb.DeltaChunk]:
        return [pb.DeltaChunk.FromString(part) for part in layouts.parts_of(data)]

    async def submit(parts: Sequence[pb.DeltaChunk]) -> Answer:
        async def coming() -> AsyncGenerator[pb.DeltaChunk, None]:
            for part in parts:
                yield part

        limits: dict[str, Any] = {"delta_bytes_max": 1000, "held_bytes_max": 1500}
        large, chunks = LargeDeltas(typing.cast("Any", Uploads()), runtime=runtime, **limits), coming()
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


def _client_ids() -> Kit:
    texts = ("alice", "é", "a b", "%", "a" * 128, "\U0001f600", "日本")
    samples = [client_id_to_metadata(text).encode() for text in texts]

    def read(data: bytes) -> str:
        text = client_id_from_metadata(data.decode("ascii", "replace"))
        flaw = flaw_of(text)
        if flaw:
            raise MalformedMessageError(flaw)
        return text

    def check(_: bytes, text: str) -> None:
        expect(client_id_from_metadata(client_id_to_metadata(text)) == text, "a client id that is not read back")
        expect(0 <= partition_of(text, 7) < 7, "a client without a partition")

    return Kit(samples, plainly(read, MalformedMessageError, check=check), octets.mutated)


def _reasons() -> Kit:
    def read(data: bytes) -> Any:
        return reason_from_wire(int.from_bytes(data[:4], "big", signed=True))

    return Kit([bytes([0, 0, 0, number]) for number in range(40)], plainly(read), octets.mutated)


def _peers() -> Kit:
    samples = [b"ipv4:127.0.0.1:80", b"ipv6:%5B::1%5D:80", b"ipv6:[::1]:80", b"unix:/tmp/x", b"ipv4:10.0.0.1:1"]

    def check(_: bytes, is_loopback: object) -> None:
        expect(isinstance(is_loopback, bool), "neither")

    return Kit(
        samples, plainly(lambda data: is_loopback_peer(data.decode("utf-8", "replace")), check=check), octets.mutated
    )


# ------------------------------------------------------------------------------------------- files beside the log


def _receipts() -> Kit:
    samples: list[bytes] = []
    for name in ("central", "secure", "silo", "reports"):
        plan = worlds.fresh_plans()[name]
        line, _checksum = Receipt(
            plan.id, "tumbling", -3, bytes(32), spend_of(plan, kind="tumbling", window=-3)
        ).to_line()
        samples.append(line)

    def check(_: bytes, value: tuple[Receipt, int]) -> None:
        receipt = value[0]
        expect(Receipt.from_line(receipt.to_line()[0])[0] == receipt, "a receipt that is not read back")

    attempt = plainly(Receipt.from_line, ReceiptsError, check=check)
    return Kit(samples, attempt, layouts.change_receipt, first=re.compile("not canonical"))


def _streams() -> Kit:
    samples = []
    for numbers in ((), (0,), (5, 6, 70), tuple(range(100))):
        state = StreamState()
        for number in numbers:
            state.record(number, bytes([number]) * 8, number, Reason.TOO_MANY_RECORDS if number % 3 else None)
        samples.append(state.to_bytes())

    def check(data: bytes, state: StreamState) -> None:
        expect(state.to_bytes() == data, "a stream of other bytes")

    attempt = plainly(StreamState.from_bytes, StoreError, check=check)
    return Kit(samples, attempt, octets.mutated, first=re.compile("not the bytes of one|format"))


def _blocks() -> Kit:
    import numpy as np

    samples = [pack(np.array(values, np.int64)) for values in ([1, -1], [300, 2], [2**31, 5], [2**62, -(2**63)])]

    def check(_: bytes, values: Any) -> None:
        expect(not len(values) or (unpack(pack(values)) == values).all(), "counters that are not read back")

    return Kit(samples, plainly(unpack, StoreError, check=check), octets.mutated)


_TOKEN_LINE: Final = (
    '{"id": "%s", "name": "%s", "scopes": ["submit"], "sha256": "%s", "made": "2026-01-31T12:00:00Z", "expires": %s}\n'
)


def _tokens() -> Kit:
    lines = [
        _TOKEN_LINE % (f"{n:016x}", name, f"{n:064x}", expires)
        for n, (name, expires) in enumerate((("edge-1", "null"), ("é", '"2030-01-31T12:00:00Z"'), ("a b", "null")))
    ]
    samples = [line.encode() for line in (*lines, "".join(lines), lines[0] + "\n" + lines[1])]

    def check(_: bytes, table: Table) -> None:
        again = Table.from_bytes(table.to_bytes())
        expect(again == table and again.to_bytes() == table.to_bytes(), "a table of tokens that is not read back")

    def change(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
        return broken(rng, data, _TOKEN_SOUP) if rng.random() < 0.4 else octets.mutated(rng, data, donors)

    attempt = plainly(Table.from_bytes, TokenTableError, check=check)
    return Kit(samples, attempt, change, first=re.compile("expected one JSON object$"))


_TOKEN_SOUP: Final = (
    "NaN", "1e999", "9" * 5000, "[" * 100_000, '"\\ud800"', '"submit","submit"', '"0000-00-00T00:00:00Z"', "null", "[]",
    '"9999-12-31T23:59:60Z"', '"admin"', '"0001-01-01T00:00:00Z"', "{}", "true", "1", '"\\u0000"', "\u0661", '"SUBMIT"',
)  # fmt: skip


def _tokens_found() -> Kit:
    secret, id = "A" * 43, "0123456789abcdef"
    table = Table.from_bytes((_TOKEN_LINE % (id, "edge-1", "0" * 64, "null")).encode())
    samples = [f"hushsum_{id}_{secret}".encode(), f"hushsum_{'0' * 16}_{secret}".encode()]

    def read(data: bytes) -> object:
        return table.find(data.decode("utf-8", "surrogateescape"), 0)

    return Kit(samples, plainly(read), octets.mutated)


TARGETS: Final = (
    *_translations(),
    Target("wire-reason", ("hushsum_proto.convert.reason_from_wire",), _reasons, 1),
    Target(
        "entry",
        (
            "hushsum_proto.convert.entry_from_bytes",
            "hushsum_proto.many_entries.delta_entries",
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
            "hushsum_proto.many_entries.batch_entries",
            "hushsum_proto.many_entries.single_entries",
            "aggregator.log_messages",
        ),
        _messages,
        5,
    ),
    Target("delta-chunks", ("aggregator.server.large.LargeDeltas",), _chunks, 2),
    Target(
        "client-id",
        ("hushsum_proto.metadata.client_id_from_metadata", "hushsum_proto.client_ids.flaw_of"),
        _client_ids,
        2,
    ),
    Target("peer", ("aggregator.callers.auth.is_loopback_peer",), _peers, 1),
    Target("receipt", ("aggregator.receipt.Receipt.from_line",), _receipts, 2),
    Target(
        "stream-state",
        ("aggregator.fold.streams.StreamState.from_bytes", "aggregator.fold.streams.StreamState.head_of"),
        _streams,
        1,
    ),
    Target("store-block", ("aggregator.store.schema.unpack",), _blocks, 1),
    Target("token-table", ("aggregator.callers.tokens.table.Table.from_bytes",), _tokens, 2),
    Target("token", ("aggregator.callers.tokens.table.Table.find",), _tokens_found, 1),
)
