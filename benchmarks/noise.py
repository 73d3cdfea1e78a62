"""The noise of a release: nanoseconds a draw, beside OpenDP's exact samplers and the bare cipher."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from hushsum.compiled import VARIABLE
from hushsum.entropy import OsEntropy
from hushsum.noise import SAMPLERS, Sampler, warm_up

TITLE = (
    "Exact noise, nanoseconds a draw on one core (cipher: AES-256 in counter mode alone, into one buffer, as many "
    "bytes as our draws read; OpenDP: its exact vector samplers on integers)"
)
DRAWS, DRAWS_QUICK = 1_000_000, 50_000
OPENDP_SHARE = 50  # it gets as many times fewer draws
PIECE = 1 << 16  # bytes that the bare cipher writes at once
SCALES = {
    "discrete-laplace": [Fraction(s) for s in (1, 40, 1053, 10**5)],
    "discrete-gaussian": [Fraction(sigma) ** 2 for sigma in (1, 40, 1000, 10**5)],
}


def measure(*, quick: bool) -> list[Row]:
    """One row for each scale of each sampler."""
    warm_up()
    return [_measure(name, scale, quick=quick) for name, scales in SCALES.items() for scale in scales]


def _measure(name: str, scale: Fraction, *, quick: bool) -> Row:
    draws, sampler = DRAWS_QUICK if quick else DRAWS, SAMPLERS[name](scale)
    counted = _Counted()
    sampler.sample(draws, counted)
    cases = {
        "fast": lambda: _draw(sampler, draws, "auto"),
        "plain": lambda: _draw(sampler, draws, "plain"),
        "cipher": _cipher(counted.total),
        "OpenDP": _opendp(name, sampler, draws // OPENDP_SHARE),
    }
    rounds = Rounds(cases, repeats=1 if quick else 7)
    nanoseconds = {case: 1e9 * rounds.seconds(case) / draws for case in cases}
    return {
        "sampler": name,
        "std": sampler.std,
        "bytes a draw": counted.total / draws,
        "fast ns": nanoseconds["fast"],
        "plain ns": nanoseconds["plain"],
        "cipher ns": nanoseconds["cipher"],
        "OpenDP ns": nanoseconds["OpenDP"] * OPENDP_SHARE,
        "fast/cipher": rounds.ratio(["fast"], ["cipher"]),
        "plain/cipher": rounds.ratio(["plain"], ["cipher"]),
        "OpenDP/fast": rounds.ratio(["OpenDP"], ["fast"]) * OPENDP_SHARE,
        "OpenDP/plain": rounds.ratio(["OpenDP"], ["plain"]) * OPENDP_SHARE,
    }


class _Counted:
    """The operating system's entropy, and how much of it was read."""

    def __init__(self) -> None:
        self.total = 0
        self._entropy = OsEntropy()

    def read(self, size: int) -> bytes:
        self.total += size
        return self._entropy.read(size)


def _draw(sampler: Sampler, draws: int, kernels: str) -> None:
    with _kernels(kernels):
        sampler.sample(draws, OsEntropy())


@contextmanager
def _kernels(wanted: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = wanted
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _cipher(total: int) -> Callable[[], None]:
    zeros, out = bytes(PIECE), bytearray(PIECE + 15)
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()

    def run() -> None:
        for at in range(0, total, PIECE):
            stream.update_into(memoryview(zeros)[: total - at], out)

    return run


def _opendp(name: str, sampler: Sampler, draws: int) -> Callable[[], Any]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain, zeros = dp.vector_domain(dp.atom_domain(T="i64")), [0] * draws
    if name == "discrete-laplace":
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=float(sampler.scale))
    else:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), scale=math.sqrt(sampler.scale))
    return lambda: measurement(zeros)
