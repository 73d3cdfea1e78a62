"""The bytes of a ``.hush`` file.

``HUSH``, format version (2 bytes), then header, plan and guarantee (canonical bytes, each after its length in 4), the
counters and count counters as one zstandard frame of little-endian integers (after its length in 8), and SHA-256 over
all that stands before. All lengths are big-endian. Sizes are checked before anything is allocated.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import canonical, zstd_frame
from hushsum.errors import CanonicalError, PlanError, ReleaseError
from hushsum.plan import BUNDLE_BYTES_MAX, Plan
from hushsum.privacy.events import CUMULATIVE, IN_PROCESS, TUMBLING
from hushsum.privacy.guarantee import Guarantee
from hushsum.schema import Table

Counters = npt.NDArray[np.int64]
RELEASE_FORMAT: Final = 1
#: Counters that are unpacked unless a caller allows more: 1 GiB of memory.
COUNTERS_MAX: Final = 2**27
_MAGIC: Final = b"HUSH"
_START: Final = len(_MAGIC) + 2
_HEADER_BYTES_MAX: Final = 1 << 16
_CHECKSUM_BYTES: Final = 32
_ITEM_BYTES: Final = (2, 4, 8)
_SECURE: Final = ("submissions", "cohorts")
_SHUFFLED: Final = "shuffled"  # 1 where it stands
_ACCOUNTING: Final = {True: "ledger", False: "unaccounted"}


@dataclass(frozen=True)
class Header:
    """What a file says of itself beside its plan and its guarantee.

    Attributes:
        kind: ``tumbling``, ``cumulative`` or ``in-process``.
        window: Of a tumbling release; of a cumulative one the last window; None otherwise.
        shape: Of the counters: (classes, shape of the family...).
        accounted: Whether a ledger was charged.
        submissions: How many clients are in it, where each drew noise, or a share of it; None for others and reports.
        cohorts: Of how many cohorts it is; None but in mode ``secure``.
        shuffled: Whether all its reports came through a shuffler.
        step: Of a cumulative release: its number in the sequence, from 1 on; None otherwise.
        first_window: Of a cumulative release: the first window of the sequence; None otherwise.
    """

    kind: str
    window: int | None
    shape: tuple[int, ...]
    accounted: bool
    submissions: int | None = None
    cohorts: int | None = None
    shuffled: bool = False
    step: int | None = None
    first_window: int | None = None


def encode(plan: Plan, header: Header, values: Counters) -> bytes:
    """The file of a release.

    Args:
        plan: Its plan.
        header: What it says of itself.
        values: (counters + count counters,) int64: the noised counters, flat, then the noised count counters, if any.
    """
    item_bytes = _item_bytes(values)
    fields: dict[str, object] = {
        "kind": header.kind,
        "shape": list(header.shape),
        "item_bytes": item_bytes,
        "accounting": _ACCOUNTING[header.accounted],
    }
    for key in ("window", "step", "first_window"):
        if (number := getattr(header, key)) is not None:
            fields[key] = number
    for key in _SECURE:
        if (number := getattr(header, key)) is not None:
            fields[key] = number
    if header.shuffled:
        fields[_SHUFFLED] = 1
    body = _MAGIC + RELEASE_FORMAT.to_bytes(2, "big")
    for part in (canonical.encode(fields), plan.bundle, canonical.encode(plan.guarantee.to_fields())):
        body += len(part).to_bytes(4, "big") + part
    packed = zstd_frame.compress(values.astype(f"<i{item_bytes}").tobytes())
    body += len(packed).to_bytes(8, "big") + packed
    return body + hashlib.sha256(body).digest()


def decode(data: bytes, counters_max: int) -> tuple[Plan, Header, Counters]:
    """The plan, the header and the values of a file, as :func:`encode` got them.

    Raises:
        ReleaseError: Truncated, altered, of more counters than ``counters_max``, or of a newer format.
    """
    body = _checked_body(data)
    try:
        return _decode(body, counters_max)
    except (CanonicalError, PlanError) as error:
        raise ReleaseError(f"not readable by this version: {error}") from error


def _decode(body: bytes, counters_max: int) -> tuple[Plan, Header, Counters]:
    header_bytes, at = _part(body, _START, _HEADER_BYTES_MAX)
    plan_bytes, at = _part(body, at, BUNDLE_BYTES_MAX)
    guarantee_bytes, at = _part(body, at, _HEADER_BYTES_MAX)
    plan, expected = _plan_of(plan_bytes)
    size = prod(plan.counters_shape)
    if size > counters_max:
        raise ReleaseError(f"{size} counters, expected at most counters_max = {counters_max}")
    if guarantee_bytes != expected:
        Guarantee.from_fields(canonical.decode(guarantee_bytes))  # which says what is wrong with one that is none
        raise ReleaseError("the guarantee differs from the plan's")
    header, item_bytes = _header(Table(canonical.decode(header_bytes), "header"))
    if header.shape != plan.counters_shape:
        raise ReleaseError(f"counters of shape {header.shape}, expected {plan.counters_shape}")
    check_header(plan, header)
    return plan, header, _values(body[at:], size + plan.count_counters, item_bytes)


@lru_cache(4)  # a series repeats its plan in each release, and reading a plan takes longer than all the rest
def _plan_of(bundle: bytes) -> tuple[Plan, bytes]:
    """The plan of a bundle, and the bytes of its guarantee."""
    plan = Plan.from_bytes(bundle)
    return plan, canonical.encode(plan.guarantee.to_fields())


def _header(table: Table) -> tuple[Header, int]:
    kind = table.choice("kind", built=(TUMBLING, CUMULATIVE, IN_PROCESS))
    window = table.integer("window", low=-canonical.INTEGER_LIMIT) if kind != IN_PROCESS else None
    step, first_window = None, None
    if kind == CUMULATIVE:
        step = table.integer("step", low=1)
        first_window = table.integer("first_window", low=-canonical.INTEGER_LIMIT)
    shape = table.value("shape")
    if not isinstance(shape, list):
        raise PlanError("header.shape", shape, "a list of integers")
    item_bytes = table.integer("item_bytes", low=2, high=8)
    if item_bytes not in _ITEM_BYTES:
        raise PlanError("header.item_bytes", item_bytes, "2, 4 or 8")
    accounted = table.choice("accounting", built=tuple(_ACCOUNTING.values())) == _ACCOUNTING[True]
    submissions, cohorts = (table.integer(key, low=0) if table.has(key) else None for key in _SECURE)
    shuffled = table.has(_SHUFFLED) and table.integer(_SHUFFLED, low=1, high=1) == 1
    table.finish()
    about = (submissions, cohorts, shuffled, step, first_window)
    return Header(kind, window, tuple(shape), accounted, *about), item_bytes


def check_header(plan: Plan, header: Header) -> None:
    """Refuses numbers of submissions and cohorts, and a kind, that no release of the plan has.

    Raises:
        ReleaseError: With what came and what was expected.
    """
    if (header.window is None) != (header.kind == IN_PROCESS):
        raise ReleaseError(
            f"a {header.kind} release of window {header.window}: a window belongs to kind 'tumbling' or 'cumulative'"
        )
    _check_sequence(plan, header)
    if header.shuffled and not plan.privacy.shuffle_min:
        raise ReleaseError("a shuffled release of a plan without a shuffler")
    _check_numbers(plan, header)


def _check_sequence(plan: Plan, header: Header) -> None:
    horizon = plan.window.horizon
    if (header.kind == CUMULATIVE) != (horizon is not None):
        raise ReleaseError(f"a {header.kind} release of a plan with window.release {plan.window.kind!r}")
    step, first, last = header.step, header.first_window, header.window
    if horizon is None:
        if step is not None or first is not None:
            raise ReleaseError(f"step {step} from window {first} in a {header.kind} release, expected neither")
        return
    if step is None or first is None or last is None or not 1 <= step <= min(horizon, last - first + 1):
        raise ReleaseError(
            f"step {step} of windows {first} to {last}, expected at most one step a window and {horizon} in all"
        )


def _check_numbers(plan: Plan, header: Header) -> None:
    privacy, submissions, cohorts = plan.privacy, header.submissions, header.cohorts
    came = f"{submissions} submissions of {cohorts} cohorts in a {header.kind} release"
    if privacy.is_silo:
        if submissions is None or submissions < 0 or cohorts is not None or header.kind != TUMBLING:
            raise ReleaseError(
                f"{came} of noised submissions, expected a window with the number of submissions and without cohorts"
            )
        return
    if privacy.cohort is None:
        if submissions is not None or cohorts is not None:
            of = "of reports" if privacy.reports else "of mode 'central'"
            raise ReleaseError(f"{came} {of}, expected neither")
        return
    if submissions is None or cohorts is None or header.kind != TUMBLING:
        raise ReleaseError(f"{came} of mode 'secure', expected a window with both numbers")
    least, most = cohorts * privacy.cohort.survivors_min, cohorts * privacy.cohort.size
    if not 0 <= least <= submissions <= most:
        raise ReleaseError(f"{came}, expected {least} to {most}")


def check_reports(plan: Plan, header: Header, counters: Counters, counts: Counters) -> None:
    """Refuses counts that no reports of the plan give.

    Args:
        plan: Of reports.
        header: Of their release.
        counters: (1, R, outputs) int64.
        counts: (1,) int64.

    Raises:
        ReleaseError: One is negative, they do not add up, or no shuffler forwards so few.
    """
    reports = int(counts[0])
    if counters.min() < 0:
        raise ReleaseError(f"a report with count {int(counters.min())}, expected at least 0")
    # In halves, for a file may hold numbers whose sum wraps around to the one expected.
    came = (int((counters >> 32).sum()) << 32) + int((counters & 0xFFFF_FFFF).sum())
    if came != reports:
        raise ReleaseError(f"counters of {came} reports, expected {reports}, the number in the header")
    least = plan.privacy.shuffle_min if header.shuffled else 0
    if 0 < reports < least:
        raise ReleaseError(f"{reports} shuffled reports, expected none, or at least shuffle_min = {least}")


def _checked_body(data: bytes) -> bytes:
    """All that stands before the checksum, once magic, version and checksum are as they must be."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ReleaseError("not a .hush file")
    version = int.from_bytes(data[len(_MAGIC) : _START], "big")
    if version > RELEASE_FORMAT:
        raise ReleaseError(f"release format {version}, this version of Hushsum supports up to {RELEASE_FORMAT}")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if version != RELEASE_FORMAT or len(body) < _START or hashlib.sha256(body).digest() != checksum:
        raise ReleaseError("checksum mismatch: the file is truncated or altered")
    return body


def _part(body: bytes, at: int, size_max: int) -> tuple[bytes, int]:
    size = int.from_bytes(body[at : at + 4], "big")
    end = at + 4 + size
    if size > size_max or end > len(body):
        raise ReleaseError(f"a part of {size} bytes, expected at most {size_max} and within the file")
    return body[at + 4 : end], end


def _values(rest: bytes, items: int, item_bytes: int) -> Counters:
    size, packed = int.from_bytes(rest[:8], "big"), rest[8:]
    if size != len(packed):
        raise ReleaseError(f"{len(packed)} bytes of counters, expected {size}")
    raw = zstd_frame.decompress(packed, items * item_bytes)
    values = np.frombuffer(raw, f"<i{item_bytes}").astype(np.int64)
    if _item_bytes(values) != item_bytes:
        raise ReleaseError(f"counters of {item_bytes} bytes each, expected the fewest bytes that suffice")
    return values


def _item_bytes(values: Counters) -> int:
    """The fewest bytes that hold every value, signed."""
    low, high = int(values.min()), int(values.max())
    return next(size for size in _ITEM_BYTES if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))


def file_name(plan_name: str, window: int) -> str:
    """The name of a file with a plan's release of a window, such as ``taxi-498691.hush``."""
    return f"{safe_name(plan_name)}-{window}.hush"


def safe_name(plan_name: str) -> str:
    """A plan's name as the name of a file or folder, without what has a meaning there."""
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in plan_name).lstrip(".") or "release"
