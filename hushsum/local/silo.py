"""A silo: one client's own noised sum of a window, its bytes, and what an aggregator reads of them.

Packed: format version (1 byte), plan id (32), stream (8, big-endian), sequence and window (varints, the window zigzag),
as a delta begins; then the words of all counters of all classes and of all count counters
(:class:`hushsum.privacy.modular_words.Words`), each with the plan's own noise, drawn whole. There is no number of
records and no run: nothing but noised counters, and as many bytes for a client without records as for any other.
"""

from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId, opened, pack_header
from hushsum.entropy import Entropy
from hushsum.errors import DeltaError, GuaranteeError, Reason, SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.modular_words import Words

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SiloDelta:
    """What one client submitted for one window: private by itself, and added as it is.

    Attributes:
        plan_id: 32 bytes.
        window: Its index.
        id: Of the submission; a client has one a window.
        counters: Of :attr:`hushsum.Plan.counters_shape`, of any sign.
        counts: (classes,), each c times the records of a class, and noise; (0,) where the plan has no count counters.
    """

    plan_id: bytes
    window: int
    id: DeltaId
    counters: Int64 = field(repr=False)
    counts: Int64 = field(repr=False)

    def add_to(self, counters: Int64, counts: Int64) -> None:
        """Adds it to counters and counts of the same shapes, in place."""
        counters += self.counters
        counts += self.counts


def submission(plan: Plan, counters: Int64, counts: Int64, *, window: int, id: DeltaId, entropy: Entropy) -> bytes:
    """Noise on every counter and every count counter, and the bytes of it all; drawn once, and kept before it is sent.

    What a word cannot hold is cut off at its ends after the noise was added, which takes nothing from the guarantee.

    Args:
        plan: Of form ``silo``.
        counters: Of :attr:`hushsum.Plan.counters_shape`: the client's own sum; all 0 without records.
        counts: (classes,): c times the records of each class; (0,) where the plan has no count counters.
        window: Its index.
        id: The one id of this client's submission for the window.
        entropy: Private randomness.

    Returns:
        As many bytes whatever was counted.

    Raises:
        GuaranteeError: The plan's clients send no noised sums.
        ValueError: A shape or a type is another.
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    words = _words(plan)
    expected = plan.counters_shape, (words.classes,)
    if (counters.shape, counts.shape) != expected or {counters.dtype, counts.dtype} != {np.dtype(np.int64)}:
        came = f"{counters.dtype} {counters.shape} and {counts.dtype} {counts.shape}"
        raise ValueError(f"counters and counts {came}, expected int64 {expected[0]} and {expected[1]}")
    noised = plan.privacy.mechanism.noise().sample(words.length, entropy)
    noised[: words.size] += counters.reshape(-1)
    noised[words.size :] += counts
    ours, numbers = noised[: words.size], noised[words.size :]
    _cut(ours, words.bits)
    _cut(numbers, words.count_bits)
    return pack_header(plan.id, id, window) + words.pack(words.of(ours, numbers))


def unpack(data: bytes, plan: Plan) -> SiloDelta:
    """What :func:`submission` packed, with every check that needs only the plan.

    Raises:
        DeltaError: ``too_large``, ``newer_format``, ``wrong_plan`` or ``malformed``; nothing is allocated before its
            size was checked.
        GuaranteeError: The plan's clients send no noised sums.
    """
    words = _words(plan)
    if len(data) > plan.upload_bytes_max:
        raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {plan.upload_bytes_max}")
    _, header = opened(data, plan)
    start = len(pack_header(header.plan_id, header.id, header.window))  # numbers have one encoding
    if len(data) != start + words.bytes:
        raise DeltaError(Reason.MALFORMED, f"{len(data) - start} bytes of words, expected {words.bytes}")
    try:
        counters, counts = words.centred(words.unpack(memoryview(data)[start:]))
    except SecureSumError as error:
        raise DeltaError(Reason.MALFORMED, str(error)) from error
    return SiloDelta(header.plan_id, header.window, header.id, counters.reshape(plan.counters_shape), counts)


def _words(plan: Plan) -> Words:
    local = plan.privacy.local
    if local is None or local.reports:
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode {plan.privacy.mode!r}, or of form 'report': no noised sums"
        )
    words = plan.words
    assert prod(plan.counters_shape) == words.size, "a word for each counter of each class"
    return words


def _cut(values: Int64, bits: int) -> None:
    limit = 1 << (bits - 1)
    np.clip(values, -limit, limit - 1, out=values)
