"""Releases: ``.hush`` files, by which anybody may be handed anything."""

import hashlib
import re
from typing import Any, Final

import numpy as np

from hushsum import Plan, canonical
from hushsum.errors import ReleaseError
from hushsum.privacy.events import IN_PROCESS, TUMBLING
from hushsum.release_format import Header, encode
from hushsum.releases.released import Release
from hushsum.zstd_frame import zstd
from tests.fuzz import layouts, worlds
from tests.fuzz.tables import canonical_text
from tests.fuzz.tables import read as read_json
from tests.fuzz.target import MIB, Kit, Target, expect, plainly

_COUNTERS_MAX: Final = 1 << 20
_START: Final = 6


def _parts_of(data: bytes) -> list[bytes]:
    """Header, plan, guarantee and packed counters of a file, by their lengths alone."""
    parts, at = [], _START
    for size in (4, 4, 4, 8):
        length = int.from_bytes(data[at : at + size], "big")
        parts.append(data[at + size : at + size + length])
        at += size + length
    return parts


def _file(*parts: bytes) -> bytes:
    body = b"HUSH\0\1"
    for size, part in zip((4, 4, 4, 8), parts, strict=True):
        body += len(part).to_bytes(size, "big") + part
    return body + hashlib.sha256(body).digest()


def _of(plan: Plan, kind: str = TUMBLING, **numbers: Any) -> bytes:
    """An empty release with these numbers, right or wrong: what writes a file does not look at them."""
    window = None if kind == IN_PROCESS else 3
    values = np.zeros(int(np.prod(plan.counters_shape)) + plan.count_counters, np.int64)
    return encode(plan, Header(kind, window, plan.counters_shape, accounted=True, **numbers), values)


def _bad(sample: bytes) -> dict[str, bytes]:
    plans = worlds.fresh_plans()
    header, plan, _, packed = _parts_of(sample)
    values = np.frombuffer(zstd.decompress(packed), f"<i{read_json(header)['item_bytes']}")
    wide = canonical_text({**read_json(header), "item_bytes": 8})
    others = canonical.encode(plans["gaussian"].guarantee.to_fields())
    guarantee = read_json(_parts_of(sample)[2])
    weaker = canonical_text({**guarantee, "epsilon": "0.000001"})
    assert len(values)
    assert plans["secure"].privacy.cohort is not None
    size, least = plans["secure"].privacy.cohort.size, plans["secure"].privacy.cohort.survivors_min
    return {
        "the guarantee of another plan": _file(header, plan, others, packed),
        "a smaller epsilon": _file(header, plan, weaker, packed),
        "a guarantee in other bytes": _file(header, plan, _parts_of(sample)[2].replace(b",", b", ", 1), packed),
        "wider counters": _file(wide, plan, _parts_of(sample)[2], zstd.compress(values.astype("<i8").tobytes())),
        "a cohort of too many": _of(plans["secure"], submissions=size + 1, cohorts=1),
        "a cohort of too few": _of(plans["secure"], submissions=least - 1, cohorts=1),
        "submissions without a cohort": _of(plans["secure"], submissions=1, cohorts=0),
        "a cohort less than none": _of(plans["secure"], submissions=0, cohorts=-1),
        "no number of cohorts": _of(plans["secure"], submissions=least),
        "no number at all": _of(plans["secure"]),
        "a secure release without a window": _of(plans["secure"], IN_PROCESS, submissions=least, cohorts=1),
        "noised sums without their number": _of(plans["silo"]),
        "cohorts of noised sums": _of(plans["silo"], submissions=1, cohorts=1),
        "less than no noised sums": _of(plans["silo"], submissions=-1),
        "submissions of a central plan": _of(plans["central"], submissions=1),
        "reports with a number of submissions": _of(plans["reports"], submissions=0),
        "reports that no shuffler forwards": _of(plans["reports"], shuffled=True),
    }


def _numbers_fit(plan: Plan, submissions: int | None, cohorts: int | None) -> bool:
    """Whether a release of a plan may have these numbers, written down a second time."""
    if plan.privacy.is_silo:
        return submissions is not None and submissions >= 0 and cohorts is None
    if plan.privacy.mode != "secure":
        return submissions is None and cohorts is None
    if submissions is None or cohorts is None or plan.privacy.cohort is None:
        return False
    cohort = plan.privacy.cohort
    return cohorts >= 0 and cohorts * cohort.survivors_min <= submissions <= cohorts * cohort.size


def _least_bytes(values: Any) -> int:
    """Of two's complement, by the largest number of bits: a negative number -n takes as many as n - 1."""
    bits = max((int(value) if value >= 0 else ~int(value)).bit_length() for value in (values.min(), values.max()))
    return next(size for size in (2, 4, 8) if bits < 8 * size)


def _releases() -> Kit:
    names = ("families/families.json", "local/local.json")
    held = [*worlds.first_files().values(), *(each for name in names for each in worlds.frozen(name).values())]
    samples = [bytes.fromhex(each["release"]) for each in held]
    bad, secure = _bad(samples[0]), worlds.fresh_plans()["secure"]
    assert secure.privacy.cohort is not None
    samples += [_of(secure, submissions=2 * secure.privacy.cohort.survivors_min, cohorts=2)]
    samples += [_of(worlds.fresh_plans()["silo"], submissions=2)]

    def read(data: bytes) -> Release:
        return Release.from_bytes(data, counters_max=_COUNTERS_MAX)

    def check(data: bytes, release: Release) -> None:
        header, plan, guarantee, _ = _parts_of(data)
        told = read_json(header)
        expect(plan == release.plan.bundle, "the release of another plan")
        expect(guarantee == canonical.encode(release.plan.guarantee.to_fields()), "another guarantee than the plan's")
        values = np.concatenate([release.counters.reshape(-1), release.counts])
        expect(told["item_bytes"] == _least_bytes(values), "counters of another width than they need")
        expect(_numbers_fit(release.plan, told.get("submissions"), told.get("cohorts")), "impossible submissions")
        again = read(release.to_bytes())
        same = (again.counters == release.counters).all() and (again.counts == release.counts).all()
        expect(same and again.to_bytes() == release.to_bytes(), "a release that is not read back")
        expect(release.statement() and repr(release), "a release that says nothing")

    first = re.compile(r"not a \.hush file|release format|checksum does not match")
    attempt = plainly(read, ReleaseError, check=check)
    return Kit(samples, attempt, layouts.change_hush, 96 * MIB, first, bad)


TARGETS: Final = (
    Target("release", ("hushsum.release_format.decode", "hushsum.releases.released.Release.from_bytes"), _releases, 2),
)
