"""Cumulative releases: of all windows so far, one after another, under one ε (docs/explanation/proofs/cumulative.md).

A pure state machine. ``initial`` gives the state before the first window; ``step`` takes a state, the exact counters of
one window and private randomness, and gives the release and the next state. The same arguments give the same bytes.
A state holds the noise: whoever has it can compute exact sums of the windows so far, from the state alone or with the
releases. So it is as secret as sealed counters, and whoever keeps it erases it once the next one replaces it, or the
sequence has ended. One state is stepped with one window and one key alone: two releases of one key that differ by their
counters differ by an exact number. A plan has one sequence, in one ledger.

With buffers (δ > 0) a state holds 2^k·s + Σ w in two words, and the buffers β, which give w of the first steps. With a
tree (δ = 0) it holds the last release, and the keys of the nodes that are in use, which give its noise. A key is read
from a step's own randomness, so that neither a later key nor a later state tells it, and is dropped with its node.
"""

import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import canonical
from hushsum.compiled import enabled
from hushsum.entropy import KEY_BYTES, Entropy, KeyedEntropy
from hushsum.errors import (
    BudgetError,
    CanonicalError,
    GuaranteeError,
    PlanError,
    PlanMismatchError,
    ReleaseError,
    repr_of,
)
from hushsum.labels import CHAINED_WINDOWS
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE
from hushsum.privacy.factorisation import (
    BUFFERS_MAX,
    LEVELS_MAX,
    UNIT,
    BufferedToeplitz,
    Cumulation,
    Node,
    SignedDigitTree,
)
from hushsum.releases import Release
from hushsum.schema import Table
from hushsum.sketch import Sketch

STATE_FORMAT: Final = 2
_WHOLE_WORDS: Final = 1  # the older format: all vectors in 8 bytes a number, and 4 of the rest of a sum
_MAGIC: Final = b"HUSC"
_DIGEST_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 4  # against accidents alone; the chained digest is of the sealed counters, not of the state
_HEADER_BYTES_MAX: Final = 1 << 20
_BLOCK: Final = 1 << 14  # counters whose words stay in the second-level cache
_FAST_COUNTERS: Final = 4096  # fewer do not pay for loading the compiled loop
_UNIT_BITS: Final = UNIT.bit_length() - 1
_WORDS: Final = np.dtype("<i8")
_PARTS: Final = np.dtype("<u4")
_OF_PARTS: Final = 1  # among the vectors of a block
#: By bytes of a number: the pieces that it is stored in, as (byte, size), the least significant first.
_PIECES: Final[Mapping[int, tuple[tuple[int, int], ...]]] = {
    1: ((0, 1),),
    2: ((0, 2),),
    3: ((0, 2), (2, 1)),
    4: ((0, 4),),
    5: ((0, 4), (4, 1)),
    6: ((0, 4), (4, 2)),
    7: ((0, 4), (4, 2), (6, 1)),
    8: ((0, 8),),
}

Counters = npt.NDArray[np.int64]
Parts = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class CumulativeState:
    """What a sequence carries from one outcome to the next: a secret, of which exact sums of windows can be computed.

    Attributes:
        plan_id: 32 bytes.
        step: How many outcomes there were.
        digest: 32 bytes: of the sealed counters of all of them (:func:`chained`); before the first the plan's id.
        first_window: Index of the first one's window; None before it.
        last_window: Index of the last one's; None before it.
        words: (n,) int64, the counters and then the count counters: with buffers the whole part of 2^k·s + Σ w in
            counters, with a tree the last release; empty before the first.
        parts: (n,) uint32: with buffers the rest of that sum, in units of 2^−k of a counter; empty with a tree.
        buffers: (d, n) int64: β of each buffer; empty with a tree.
        keys: Of each node in use its 32 bytes; none with buffers.
    """

    plan_id: bytes
    step: int
    digest: bytes
    first_window: int | None = None
    last_window: int | None = None
    words: Counters = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    parts: Parts = field(default_factory=lambda: np.zeros(0, np.uint32), repr=False)
    buffers: Counters = field(default_factory=lambda: np.zeros((0, 0), np.int64), repr=False)
    keys: Mapping[Node, bytes] = field(default_factory=dict, repr=False)

    def to_bytes(self) -> bytes:
        """``HUSC``, version (2 bytes), header (canonical bytes after their length in 4), blocks, CRC-32 of all.

        A block has the same 16,384 counters of each vector, the last one what is left: a byte for each vector, which
        says how many bytes its numbers have there, and then the numbers, vector after vector. That is as few bytes as
        hold them all: signed, parts unsigned. Numbers of 3, 5, 6 or 7 bytes are stored in pieces of 4, 2 and 1, the
        least significant first; pieces of one size follow each other.
        """
        return _joined(self, _split(self.words, self.parts, self.buffers))

    @classmethod
    def from_bytes(cls, plan: Plan, data: bytes) -> "CumulativeState":
        """Reads what :meth:`to_bytes` wrote, and the format before it.

        Args:
            plan: Whose sequence it is.
            data: All bytes.

        Raises:
            GuaranteeError: The plan has no cumulative releases.
            ReleaseError: Truncated, altered, of another plan or of a newer format.
        """
        state, blocks = _opened(plan, data)
        if not state.step:
            return state
        found = [tuple(each.copy() for each in block) for block in blocks]
        words, parts, buffers = (np.concatenate(each, axis=-1) for each in zip(*found, strict=True))
        return replace(state, words=words, parts=parts, buffers=buffers)


#: (m,) words, (m,) parts and (d, m) buffers of some counters; parts and buffers of a tree are empty.
_Block = tuple[Counters, Parts, Counters]
_NONE: Final = np.zeros(0, np.uint32), np.zeros((0, 0), np.int64)


def _joined(state: CumulativeState, blocks: Iterable[memoryview]) -> bytes:
    """The bytes of a state whose vectors are in ``blocks``."""
    fields: dict[str, object] = {"plan_id": state.plan_id.hex(), "step": state.step, "digest": state.digest.hex()}
    for key in ("first_window", "last_window"):
        if (number := getattr(state, key)) is not None:
            fields[key] = number
    if state.keys:
        nodes = sorted(state.keys, key=lambda node: (node.level, node.index))
        fields["nodes"] = [{"level": node.level, "index": node.index, "key": state.keys[node].hex()} for node in nodes]
    header = canonical.encode(fields)
    header = _MAGIC + STATE_FORMAT.to_bytes(2, "big") + len(header).to_bytes(4, "big") + header
    written, checksum = io.BytesIO(), zlib.crc32(header)  # which gives its bytes without a copy of them
    written.write(header)
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
        written.write(block)
    written.write(checksum.to_bytes(_CHECKSUM_BYTES, "big"))
    return written.getvalue()


def _opened(plan: Plan, data: bytes) -> tuple[CumulativeState, Iterator[_Block]]:
    """A state without its vectors, and these block by block: what one block holds, the next one overwrites.

    Raises:
        GuaranteeError, ReleaseError: As :meth:`CumulativeState.from_bytes`; the blocks raise it, too.
    """
    cumulation = _cumulation(plan)
    start = len(_MAGIC) + 6
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + _CHECKSUM_BYTES:
        raise ReleaseError("not the state of a cumulative sequence")
    version = int.from_bytes(data[len(_MAGIC) : start - 4], "big")
    if version not in (_WHOLE_WORDS, STATE_FORMAT):
        raise ReleaseError(
            f"state format {version}, this version of Hushsum supports {_WHOLE_WORDS} and {STATE_FORMAT}"
        )
    body, checksum = memoryview(data)[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise ReleaseError("checksum mismatch: the state is truncated or altered")
    size = int.from_bytes(data[start - 4 : start], "big")
    if size > _HEADER_BYTES_MAX or start + size > len(body):
        raise ReleaseError(f"a header of {size} bytes, expected at most {_HEADER_BYTES_MAX} and within the state")
    try:
        state = _read(plan, cumulation, Table(canonical.decode(bytes(body[start : start + size])), "state"))
    except (CanonicalError, PlanError, ValueError) as error:
        raise ReleaseError(f"not a state that this version can read: {error}") from error
    made, n = cumulation.factorisation, _size(plan) if state.step else 0
    depth, bits = (len(made.theta), made.bits) if isinstance(made, BufferedToeplitz) else (0, 0)
    vectors = body[start + size :]
    return state, (_whole if version == _WHOLE_WORDS else _blocks)(vectors, n, depth, bits)


def _read(plan: Plan, cumulation: Cumulation, table: Table) -> CumulativeState:
    """The fields of a header, compared with the plan."""
    plan_id, digest = (bytes.fromhex(table.text(key)) for key in ("plan_id", "digest"))
    step = table.integer("step", low=0, high=cumulation.horizon)
    first, last = (
        table.integer(key, low=-canonical.INTEGER_LIMIT) if step else None for key in ("first_window", "last_window")
    )
    keys = {}
    for entry in table.tables("nodes"):
        node = Node(entry.integer("level", low=0, high=LEVELS_MAX), entry.integer("index", low=0))
        keys[node] = bytes.fromhex(entry.text("key"))
        entry.finish()
    table.finish()
    if plan_id != plan.id:
        raise ReleaseError(f"a state of plan {plan_id.hex()[:12]}, expected one of plan {plan.hex_id[:12]}")
    if len(digest) != _DIGEST_BYTES or any(len(key) != KEY_BYTES for key in keys.values()):
        raise ReleaseError(f"digests and keys that are not all of {_DIGEST_BYTES} bytes")
    if first is not None and last is not None and not step <= last - first + 1:
        raise ReleaseError(f"{step} steps of the windows from {first} to {last}")
    made = cumulation.factorisation
    if set(keys) != (made.nodes(step).keys() if isinstance(made, SignedDigitTree) else set()):
        raise ReleaseError(f"{len(keys)} keys of nodes, expected those that step {step} uses")
    return CumulativeState(plan_id, step, digest, first, last, keys=keys)


def _split(words: Counters, parts: Parts, buffers: Counters) -> Iterator[memoryview]:
    """Whole vectors in packed blocks, of which the next one overwrites the one before."""
    packer = _BlockPacker(words.size)
    for start in range(0, words.size, _BLOCK):
        at = slice(start, start + _BLOCK)
        yield packer.packed(words[at], parts[at], buffers[:, at])


class _BlockPacker:
    """Packs blocks of up to ``n`` counters, one after another into the same memory."""

    def __init__(self, n: int) -> None:
        self._memory = np.empty((1 + _WORDS.itemsize * min(n, _BLOCK)) * (2 + BUFFERS_MAX), np.uint8)

    def packed(self, words: Counters, parts: Parts, buffers: Counters) -> memoryview:
        """The bytes of a block, as :meth:`CumulativeState.to_bytes` has them; until the next call."""
        vectors = [np.ascontiguousarray(each, _WORDS) for each in (words, parts, *buffers) if each.size]
        widths = [_width(each, is_signed=number != _OF_PARTS) for number, each in enumerate(vectors)]
        self._memory[: len(widths)] = widths
        end = len(widths)
        for vector, width in zip(vectors, widths, strict=True):
            for at, size in _PIECES[width]:
                start, end = end, end + size * vector.size
                self._memory[start:end].view(f"<u{size}")[:] = _piece(vector, at, size)
        return self._memory[:end].data


def _blocks(data: memoryview, n: int, depth: int, bits: int) -> Iterator[_Block]:
    """The blocks of ``n`` counters, in the same arrays one after another."""
    vectors = np.empty((2 + depth if depth else 1, min(n, _BLOCK)), _WORDS)
    for start in range(0, n, _BLOCK):
        if (left := n - start) < _BLOCK:
            vectors = np.empty((len(vectors), left), _WORDS)  # contiguous, as those before
        widths, data = bytes(data[: len(vectors)]), data[len(vectors) :]
        if len(data) < sum(widths) * vectors.shape[1] or not _PIECES.keys() >= set(widths):
            raise ReleaseError(f"{len(data)} bytes for a block of widths {[*widths]}: the state is damaged")
        for number, (vector, width) in enumerate(zip(vectors, widths, strict=True)):
            _unpack(data, width, vector, is_signed=number != _OF_PARTS)
            data = data[width * vector.size :]
        words, buffers = (each.astype(np.int64, copy=False) for each in (vectors[0], vectors[2:]))
        yield words, _parts(vectors[1:2].reshape(-1), bits), buffers
    if data:
        raise ReleaseError(f"{len(data)} bytes after the last block: the state is damaged")


def _whole(data: memoryview, n: int, depth: int, bits: int) -> Iterator[_Block]:
    """The same of a state of whole words."""
    ends = np.cumsum([8 * n, 4 * n if depth else 0, 8 * n * depth]).tolist()
    if len(data) != ends[-1]:
        raise ReleaseError(f"arrays of {len(data)} bytes, expected {ends[-1]}")
    words, rests = np.frombuffer(data[: ends[0]], _WORDS), np.frombuffer(data[ends[0] : ends[1]], _PARTS)
    buffers = np.frombuffer(data[ends[1] :], _WORDS).reshape(depth, n if depth else 0)
    for start in range(0, n, _BLOCK):
        at = slice(start, start + _BLOCK)
        yield words[at].astype(np.int64), _parts(rests[at].astype(np.int64), bits), buffers[:, at].astype(np.int64)


def _parts(rests: Counters, bits: int) -> Parts:
    if (rests >> bits).any():
        raise ReleaseError(f"rests of sums from {rests.min()} to {rests.max()}, expected all from 0 and below 2^{bits}")
    return rests.astype(np.uint32)


def _width(vector: Counters, *, is_signed: bool) -> int:
    """In how many bytes each of its numbers fits, 1 to 8."""
    bits = max((each if each >= 0 else ~each).bit_length() for each in (int(vector.min()), int(vector.max())))
    return (bits + is_signed + 7) // 8 or 1


def _unpack(data: memoryview, width: int, vector: Counters, *, is_signed: bool) -> None:
    """Fills a vector with numbers of ``width`` bytes each."""
    *lower, (at, size) = _PIECES[width]
    vector[:] = np.frombuffer(data, f"<{'i' if is_signed else 'u'}{size}", vector.size, at * vector.size)
    vector <<= 8 * at
    for at, size in lower:
        _piece(vector, at, size)[:] = np.frombuffer(data, f"<u{size}", vector.size, at * vector.size)


def _piece(vector: Counters, at: int, size: int) -> npt.NDArray[np.unsignedinteger]:
    """A view of ``size`` bytes of each number of a little-endian vector, from byte ``at`` on."""
    return vector.view(f"<u{size}")[at // size :: _WORDS.itemsize // size]


def initial(plan: Plan) -> bytes:
    """The state before the first window: without any data.

    Raises:
        GuaranteeError: The plan has no cumulative releases.
    """
    _cumulation(plan)
    return CumulativeState(plan.id, 0, plan.id).to_bytes()


def digest_of(state: bytes) -> bytes:
    """The digest in the header of a state that :func:`step` made, without reading all of it; 32 bytes."""
    start = len(_MAGIC) + 6
    header = canonical.decode(state[start : start + int.from_bytes(state[start - 4 : start], "big")])
    return bytes.fromhex(Table(header, "state").text("digest"))


def chained(previous: bytes, sealed: bytes) -> bytes:
    """The digest that a reservation fixes: of this window's sealed counters, chained to all before it; 32 bytes.

    Args:
        previous: :attr:`CumulativeState.digest` of the state that is stepped, 32 bytes.
        sealed: Digest of the window's sealed counters, 32 bytes.

    Raises:
        ValueError: A digest of another length.
    """
    if len(previous) != _DIGEST_BYTES or len(sealed) != _DIGEST_BYTES:
        raise ValueError(f"digests of {_DIGEST_BYTES} bytes, got {len(previous)} and {len(sealed)}")
    return hashlib.sha256(CHAINED_WINDOWS + previous + sealed).digest()


def step(
    plan: Plan,
    state: bytes,
    sketch: Sketch,
    *,
    window: int,
    sealed: bytes,
    entropy: Entropy,
    accounted: bool = False,
) -> tuple[Release, bytes]:
    """The next release of a sequence, of all windows so far, and the state after it.

    The arguments decide the bytes of both, as long as ``entropy`` gives the same bytes: one of
    :class:`hushsum.entropy.KeyedEntropy` of the same key. Nothing is charged here: the whole sequence is one spend, and
    a plan has one sequence, in one ledger. A second one from :func:`initial` is not covered by the same spend.

    Args:
        plan: Of cumulative releases.
        state: What :func:`initial` or the last step gave.
        sketch: The exact counters of this window alone.
        window: Its index, above that of the last step; a window that is skipped takes no step.
        sealed: Digest of its sealed counters, 32 bytes; the next state has it chained.
        entropy: Private randomness of this step alone: a fresh one, never that of another step.
        accounted: Whether a ledger was charged for this sequence, and makes sure that it is the plan's only one; the
            release says so.

    Raises:
        GuaranteeError: The plan has no cumulative releases.
        BudgetError: The sequence has as many outcomes as the plan's horizon: ε covers no more.
        ReleaseError: The state cannot be read, or the window is no integer above its last one. Nothing was drawn.
        PlanMismatchError: The sketch is of another plan.
    """
    cumulation, (before, blocks) = _cumulation(plan), _opened(plan, state)
    if sketch.plan.id != plan.id:
        raise PlanMismatchError(f"a sketch of plan {sketch.plan.hex_id[:12]}, expected one of plan {plan.hex_id[:12]}")
    if before.step >= cumulation.horizon:
        raise BudgetError(
            f"plan {plan.name!r} has had the {cumulation.horizon} outcomes of window.horizon, which ε covers: for more "
            "windows make another plan, which adds its own ε"
        )
    if type(window) is not int or abs(window) > canonical.INTEGER_LIMIT:
        raise ReleaseError(f"window {repr_of(window)}, expected an integer up to {canonical.INTEGER_LIMIT}")
    if before.last_window is not None and window <= before.last_window:
        raise ReleaseError(f"window {window} after window {before.last_window}, expected a later one")
    exact = np.concatenate([sketch.counters.reshape(-1), sketch.counts])
    made, keys = cumulation.factorisation, dict[Node, bytes]()
    if isinstance(made, BufferedToeplitz):
        values = plan.privacy.mechanism.noise().sample(exact.size, entropy)
        after = _with_buffers(made, blocks if before.step else _zeros(exact.size, len(made.theta)), exact, values)
    else:
        last = np.concatenate([words.copy() for words, _, _ in blocks]) if before.step else None
        values, keys = _with_tree(plan, made, before, last, exact, entropy)
        after = _split(values, *_NONE)
    first = window if before.first_window is None else before.first_window
    digest = chained(before.digest, sealed)
    following = _joined(CumulativeState(plan.id, before.step + 1, digest, first, window, keys=keys), after)
    split = sketch.counters.size
    release = Release(
        plan=plan,
        kind=CUMULATIVE,
        window=window,
        counters=values[:split].reshape(sketch.counters.shape),
        counts=values[split:],
        guarantee=plan.guarantee,
        accounted=accounted,
        step=before.step + 1,
        first_window=first,
    )
    return release, following


def _with_buffers(
    made: BufferedToeplitz, before: Iterator[_Block], exact: Counters, values: Counters
) -> Iterator[memoryview]:
    """Moves the last sum of draws on by one step, and gives the packed blocks of the state after it.

    ``values`` are draws, which become what is published. Block after block, so that vectors are never in memory whole.
    """
    advance, packer = _advance(exact.size), _BlockPacker(exact.size)
    for start, block in zip(range(0, exact.size, _BLOCK), before, strict=True):
        at = slice(start, start + _BLOCK)
        advance(made, exact[at], values[at], *block)
        yield packer.packed(*block)


def _zeros(n: int, depth: int) -> Iterator[_Block]:
    for start in range(0, n, _BLOCK):
        m = min(n - start, _BLOCK)
        yield np.zeros(m, np.int64), np.zeros(m, np.uint32), np.zeros((depth, m), np.int64)


_Advance = Callable[[BufferedToeplitz, Counters, Counters, Counters, Parts, Counters], None]


def _advance(counters: int) -> _Advance:
    if counters < _FAST_COUNTERS or not enabled():
        return advance
    from hushsum import cumulative_loops

    return cumulative_loops.advance


def advance(
    made: BufferedToeplitz,
    exact: Counters,
    noise: Counters,
    words: Counters,
    parts: Parts,
    buffers: Counters,
) -> None:
    """w_t = z_t − Σ round(ω_i·β_i); β_i ← round(θ_i·β_i) + w_t; published s_t + round(2^−k·Σ w).

    Integers alone, of each counter for itself, in place. What would pass int64 (never seen, as in
    :meth:`hushsum.noise.DiscreteGaussian.sample`) wraps around.

    Args:
        made: θ, ω and k.
        exact: (n,) the counters of the window.
        noise: (n,) the draws z_t, which become what is published.
        words: (n,) as :attr:`CumulativeState.words`; likewise the others.
        parts: (n,).
        buffers: (d, n).
    """
    bits = made.bits
    for start in range(0, exact.size, _BLOCK):
        at = slice(start, start + _BLOCK)
        w = noise[at]
        for omega, buffer in zip(made.omega, buffers, strict=True):
            w -= _share(omega, buffer[at])
        for theta, buffer in zip(made.theta, buffers, strict=True):
            buffer[at] = _share(theta, buffer[at]) + w
        rest = parts[at] + w  # int64
        words[at] += exact[at] + (rest >> bits)
        rest &= (1 << bits) - 1
        parts[at] = rest
        w[:] = words[at] + (rest >> bits - 1)


def _share(share: int, buffer: Counters) -> Counters:
    """round(share/2^20·buffer), halves up, in 64 bits: the share is below 2^20, or 2^20 itself."""
    low = (share * (buffer & (UNIT - 1)) + (UNIT >> 1)) >> _UNIT_BITS
    return share * (buffer >> _UNIT_BITS) + low


def _with_tree(
    plan: Plan,
    made: SignedDigitTree,
    before: CumulativeState,
    last: Counters | None,
    exact: Counters,
    entropy: Entropy,
) -> tuple[Counters, dict[Node, bytes]]:
    """The last release, the window, and the noise of the nodes that enter, without that of those that leave."""
    sampler = plan.privacy.mechanism.noise()
    old, new = made.nodes(before.step), made.nodes(before.step + 1)
    values = exact.copy() if last is None else exact + last
    keys = {node: key for node, key in before.keys.items() if node in new}
    for node, sign in old.items():
        if node not in new:
            values -= sign * sampler.sample(exact.size, KeyedEntropy(before.keys[node]))
    for node in sorted(new.keys() - old.keys(), key=lambda node: (node.level, node.index)):
        keys[node] = entropy.read(KEY_BYTES)
        values += new[node] * sampler.sample(exact.size, KeyedEntropy(keys[node]))
    return values, keys


def _cumulation(plan: Plan) -> Cumulation:
    cumulation = plan.privacy.cumulation
    if cumulation is None:
        raise GuaranteeError(f"plan {plan.name!r} has window.release {plan.window.kind!r}, expected {CUMULATIVE!r}")
    return cumulation


def _size(plan: Plan) -> int:
    return int(np.prod(plan.counters_shape)) + plan.count_counters
