"""A closed sum becomes a release: noised once, saved, and queried for ever.

The bytes of a ``.hush`` file: ``HUSH``, format version (2 bytes), then header, plan and guarantee (canonical bytes,
each after its length in 4), the counters and count counters as one zstandard frame of little-endian integers (after its
length in 8), and SHA-256 over all that stands before. All numbers of the frame are big-endian.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from hushsum import canonical, query
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import CanonicalError, PlanError, ReleaseError
from hushsum.families import Answer
from hushsum.plan import Plan
from hushsum.privacy.event import Spend
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.ledger import Ledger
from hushsum.sketch import Sketch

Counters = npt.NDArray[np.int64]
RELEASE_FORMAT: Final = 1
IN_PROCESS: Final = "in-process"
TUMBLING: Final = "tumbling"
_MAGIC: Final = b"HUSH"
_HEADER_BYTES_MAX: Final = 1 << 20
_PLAN_BYTES_MAX: Final = 16 << 20
_CHECKSUM_BYTES: Final = 32
_ACCOUNTING: Final = {True: "ledger", False: "unaccounted"}


@dataclass(frozen=True, eq=False)
class Release:
    """A differentially private sketch: it may be shown to anybody, and answers any number of queries.

    Attributes:
        plan: Whose counters these are.
        kind: ``tumbling`` (one window) or ``in-process`` (a sketch built by an analyst).
        window: Index of the window; None without one.
        counters: int64, (classes, shape of the family...): the noised integers.
        counts: int64, (classes,): the noised count counters.
        guarantee: What was promised, and by which mechanism.
        accounted: Whether a ledger was charged.
    """

    plan: Plan
    kind: str
    window: int | None
    counters: Counters
    counts: Counters
    guarantee: Guarantee
    accounted: bool

    @property
    def count(self) -> float:
        """The noisy number of records: unbiased, and maybe below 0."""
        return query.count(self.plan, self.counts)

    def kernel_sum(self, queries: npt.ArrayLike) -> Answer:
        """Estimates of Σ k(x, q) over all records, at (m, d) queries, with standard errors.

        Raises:
            RecordError: The queries cannot be used.
        """
        return query.kernel_sum(self.plan, self.counters, queries)

    def density(self, queries: npt.ArrayLike) -> Answer:
        """The same divided by the noisy number of records (taken as at least 1)."""
        return query.density(self.plan, self.counters, self.counts, queries)

    def statement(self) -> str:
        """What is promised, in plain words."""
        return self.guarantee.statement(accounted=self.accounted)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a ``.hush`` file."""
        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The bytes of a ``.hush`` file."""
        values = np.concatenate([self.counters.reshape(-1), self.counts])
        item_bytes = _item_bytes(values)
        header: dict[str, object] = {
            "kind": self.kind,
            "shape": list(self.counters.shape),
            "item_bytes": item_bytes,
            "accounting": _ACCOUNTING[self.accounted],
        }
        if self.window is not None:
            header["window"] = self.window
        body = _MAGIC + RELEASE_FORMAT.to_bytes(2, "big")
        for part in (canonical.encode(header), self.plan.to_bytes(), canonical.encode(self.guarantee.to_fields())):
            body += len(part).to_bytes(4, "big") + part
        packed = zstandard.ZstdCompressor(level=3).compress(values.astype(f"<i{item_bytes}").tobytes())
        body += len(packed).to_bytes(8, "big") + packed
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Release":
        """The release of the bytes of a ``.hush`` file.

        Raises:
            ReleaseError: Truncated, altered, or of a newer format.
        """
        try:
            return _parse(data)
        except (CanonicalError, PlanError, KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise ReleaseError(f"not a release that this version can read: {error}") from error

    def __repr__(self) -> str:
        promise = f"ε={self.guarantee.epsilon} per {self.guarantee.unit}"
        where = "" if self.window is None else f", window={self.window}"
        accounting = "" if self.accounted else ", unaccounted"
        return f"Release({self.plan.name!r}{where}, {promise}{accounting})"


def release(
    sketch: Sketch,
    *,
    ledger: Ledger | None = None,
    epsilon: object = None,
    delta: object = None,
    entropy: Entropy | None = None,
) -> Release:
    """The private release of a sketch that was built in this process.

    Args:
        sketch: Exact counters.
        ledger: Charged before anything is returned; without one the release says "unaccounted".
        epsilon: Another ε than the plan's; the release then carries a plan of its own.
        delta: Another δ than the plan's; only 0 is built yet.
        entropy: Where the noise comes from: the operating system, unless a test says otherwise.

    Raises:
        BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
        PlanError: The plan does not allow this ε or δ.
    """
    plan, counts, limits = sketch.plan, sketch.counts, sketch.plan.limits
    changes = {key: value for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    if changes:
        plan = _overridden(plan, changes)
        counts = counts // sketch.plan.privacy.mechanism.count_scale * plan.privacy.mechanism.count_scale
        sketch = Sketch.of_counters(plan, sketch.counters, counts)
    if ledger is not None:
        ledger.charge(spend_of(plan, kind=IN_PROCESS, window=None), limits)
    return draw(sketch, kind=IN_PROCESS, window=None, entropy=entropy or OsEntropy(), accounted=ledger is not None)


def draw(sketch: Sketch, *, kind: str, window: int | None, entropy: Entropy, accounted: bool) -> Release:
    """The release of a closed sum: discrete Laplace noise on every counter and count counter, once."""
    plan = sketch.plan
    noise = plan.privacy.mechanism.noise().sample(sketch.counters.size + sketch.counts.size, entropy)
    split = sketch.counters.size
    return Release(
        plan=plan,
        kind=kind,
        window=window,
        counters=sketch.counters + noise[:split].reshape(sketch.counters.shape),
        counts=sketch.counts + noise[split:],
        guarantee=plan.guarantee,
        accounted=accounted,
    )


def spend_of(plan: Plan, *, kind: str, window: int | None) -> Spend:
    """What one release of this plan spends."""
    return Spend(
        population=plan.privacy.population,
        plan_id=plan.hex_id,
        kind=kind,
        window=window,
        unit=plan.guarantee.unit,
        relation=plan.guarantee.relation,
        mode=plan.guarantee.mode,
        mechanism=plan.privacy.mechanism.name,
        epsilon=plan.privacy.epsilon,
        delta=plan.privacy.delta,
    )


def load(path: str | PathLike[str]) -> Release:
    """The release in a ``.hush`` file.

    Raises:
        ReleaseError: Truncated, altered, or of a newer format.
    """
    return Release.from_bytes(Path(path).read_bytes())


def _overridden(plan: Plan, changes: Mapping[str, object]) -> Plan:
    total = plan.privacy.total_epsilon
    epsilon = changes.get("epsilon")
    if epsilon is not None and canonical.real(epsilon) > total:
        changes = {**changes, "total_epsilon": epsilon}
    return plan.replace_privacy(**changes)


def _item_bytes(values: Counters) -> int:
    low, high = int(values.min()), int(values.max())
    return next(size for size in (2, 4, 8) if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))


def _parse(data: bytes) -> Release:
    if data[:4] != _MAGIC:
        raise ReleaseError("not a .hush file")
    version = int.from_bytes(data[4:6], "big")
    if version > RELEASE_FORMAT:
        raise ReleaseError(f"release format {version}: this version of Hushsum reads up to {RELEASE_FORMAT}")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if version != RELEASE_FORMAT or len(data) < 64 or hashlib.sha256(body).digest() != checksum:
        raise ReleaseError("the checksum does not match: the file is truncated or altered")
    at = 6
    header, at = _part(body, at, _HEADER_BYTES_MAX)
    plan_bytes, at = _part(body, at, _PLAN_BYTES_MAX)
    promise, at = _part(body, at, _HEADER_BYTES_MAX)
    plan = Plan.from_bytes(plan_bytes)
    fields = canonical.decode(header)
    guarantee = canonical.decode(promise)
    if not isinstance(fields, dict) or not isinstance(guarantee, dict):
        raise ReleaseError("the header is no table")
    if fields["shape"] != list(plan.counters_shape) or fields["item_bytes"] not in (2, 4, 8):
        raise ReleaseError(f"counters of shape {fields['shape']}, expected {list(plan.counters_shape)}")
    if Guarantee.from_fields(guarantee) != plan.guarantee:
        raise ReleaseError("the guarantee is not the one that the plan gives")
    values = _values(body[at:], prod(plan.counters_shape) + plan.counters_shape[0], fields["item_bytes"])
    split = prod(plan.counters_shape)
    return Release(
        plan=plan,
        kind=fields["kind"],
        window=fields.get("window"),
        counters=values[:split].reshape(plan.counters_shape),
        counts=values[split:],
        guarantee=plan.guarantee,
        accounted={text: known for known, text in _ACCOUNTING.items()}[fields["accounting"]],
    )


def _part(body: bytes, at: int, size_max: int) -> tuple[bytes, int]:
    size = int.from_bytes(body[at : at + 4], "big")
    end = at + 4 + size
    if size > size_max or end > len(body):
        raise ReleaseError(f"a part of {size} bytes, expected at most {size_max} and within the file")
    return body[at + 4 : end], end


def _values(rest: bytes, items: int, item_bytes: int) -> Counters:
    """The counters; the frame's declared size is checked before anything is allocated."""
    size, packed = int.from_bytes(rest[:8], "big"), rest[8:]
    if size != len(packed):
        raise ReleaseError(f"{len(packed)} bytes of counters, expected {size}")
    expected = items * item_bytes
    if zstandard.frame_content_size(packed) != expected:
        raise ReleaseError(f"counters that do not unpack to {expected} bytes")
    raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=expected)
    return np.frombuffer(raw, f"<i{item_bytes}").astype(np.int64)
