"""Masks: our words beside the raw ciphers' bytes, and beside Flower's."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.report import Row
from benchmarks.secure.flower import Flower, flower
from benchmarks.stopwatch import Rounds
from hushsum.secure_sum import key_agreement

TITLE = (
    "Masks added to words of 32 or 64 bits, milliseconds a key on one core (ciphers: the same bytes alone, into one "
    "buffer; Flower: MT19937 from a seed folded to "
    "32 bits; quantize: what its clients do once before they mask)"
)
WORDS, WORDS_QUICK = 1_000_000, 20_000
PIECE = 1 << 17  # bytes that a bare cipher writes at once


def measure(*, quick: bool) -> list[Row]:
    """One row for one key, and one for a client's many, of each width of words."""
    with flower() as peer:
        return [
            _measure(width, keys, peer, quick=quick) for width, keys in (("uint32", 1), ("uint32", 42), ("uint64", 42))
        ]


def _measure(width: str, keys: int, peer: Flower | None, *, quick: bool) -> Row:
    size = WORDS_QUICK if quick else WORDS
    words, secrets = np.zeros(size, width), [os.urandom(32) for _ in range(keys)]
    half = keys // 2
    cases: dict[str, Callable[[], Any]] = {
        "ours": lambda: key_agreement.apply(words, secrets[half:], secrets[:half]),
        "AES-256-CTR": _cipher(lambda: Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))), words.nbytes),
        "AES-128-CTR": _cipher(lambda: Cipher(algorithms.AES(os.urandom(16)), modes.CTR(bytes(16))), words.nbytes),
        "ChaCha20": _cipher(lambda: Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None), words.nbytes),
    }
    if peer is not None:
        cases |= {"Flower": peer.case("mask", size), "Flower quantize": peer.case("quantize", size)}
    rounds = Rounds(cases, repeats=2 if quick else 21)
    row: Row = {"words": size, "width": width, "keys": keys, "ours ms": 1e3 * rounds.seconds("ours") / keys}
    row |= {f"{name} ms": 1e3 * rounds.seconds(name) for name in cases if name != "ours"}
    row |= {"ours/AES-256-CTR": rounds.ratio(["ours"], ["AES-256-CTR"]) / keys}
    row |= {"ours/ChaCha20": rounds.ratio(["ours"], ["ChaCha20"]) / keys}
    if peer is not None:
        row |= {"Flower/ours": rounds.ratio(["Flower"], ["ours"]) * keys}
    return row


def _cipher(start: "Callable[[], Cipher[Any]]", total: int) -> Callable[[], None]:
    zeros, out = memoryview(bytes(PIECE)), bytearray(PIECE + 15)

    def run() -> None:
        stream = start().encryptor()
        for at in range(0, total, PIECE):
            stream.update_into(zeros[: total - at], out)

    return run
