"""Whole rounds, with real clients: what they take, beside their masks at the raw cipher's speed and their shares."""

import os
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.report import Row
from benchmarks.secure.round_server import measured
from benchmarks.secure.round_setting import Setting
from benchmarks.stopwatch import Rounds
from hushsum.entropy import OsEntropy
from hushsum.secure_sum import shamir
from hushsum.secure_sum.parameters import RoundParameters

TITLE = (
    "Whole rounds, 10 % of the clients vanishing at their upload, one process for the server and two for the clients, "
    "on 2 cores (floor: one core's time for all masks at the raw speed of AES-256-CTR and all of Shamir's shares)"
)
ROUNDS = ((100, 1_000_000), (1000, 100_000))
QUICK = ((30, 10_000),)
_PIECE = 1 << 17


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of clients."""
    cases = QUICK if quick else ROUNDS
    return [_measure(Setting.new(clients, counters, corrupt=clients // 10)) for clients, counters in cases]


def _measure(setting: Setting) -> Row:
    parameters, words = setting.parameters, setting.parameters.words
    floor, figures = _floor(setting), measured(setting)
    vector = words.length * words.dtype.itemsize
    return {
        "clients": setting.clients,
        "counters": setting.counters,
        "bits": words.bits,
        "degree": parameters.neighbours(setting.clients),
        "threshold": parameters.threshold,
        "in the sum": figures.submissions,
        "seconds": figures.seconds,
        "server CPU s": figures.server_seconds,
        "clients' CPU s": figures.clients_seconds,
        "floor s": floor,
        "seconds/floor": figures.seconds / floor,
        "CPU/floor": (figures.server_seconds + figures.clients_seconds) / floor,
        "server's peak MB": figures.server_bytes / 1e6,
        "in vectors": figures.server_bytes / vector,
        "upload a client, bytes": figures.upload_bytes,
        "upload/(D·bits/8)": figures.upload_bytes / (words.size * words.bits / 8),
    }


def _floor(setting: Setting) -> float:
    """Seconds of the masks and shares alone."""
    parameters, words = setting.parameters, setting.parameters.words
    degree = parameters.neighbours(setting.clients)
    survivors = setting.clients - setting.vanishing
    keys = setting.clients * (degree + 1) + survivors + setting.vanishing * degree
    split, combine = _shares(parameters, degree, setting.clients)
    cases = {"masks": _masks(words.length * words.dtype.itemsize), "split": split, "combine": combine}
    rounds = Rounds(cases, repeats=9)
    return keys * rounds.seconds("masks") + setting.clients * rounds.seconds("split") + rounds.seconds("combine")


def _masks(size: int) -> Callable[[], None]:
    """One key's mask, at the raw speed."""
    zeros, out = memoryview(bytes(_PIECE)), bytearray(_PIECE + 15)

    def run() -> None:
        stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        for at in range(0, size, _PIECE):
            stream.update_into(zeros[: size - at], out)

    return run


def _shares(
    parameters: RoundParameters, degree: int, clients: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """What each client splits, and what the server puts together for all."""
    entropy, rng = OsEntropy(), np.random.default_rng(1)
    orders = np.argsort(rng.random((clients, degree)), axis=1)[:, : parameters.threshold]
    indices = orders.astype(np.uint8) + np.uint8(1)
    shares = rng.integers(0, 256, (clients, parameters.threshold, 16)).astype(np.uint8)
    return (
        lambda: shamir.split(bytes(32), parameters.threshold, degree, entropy),
        lambda: shamir.combine_many(indices, shares, parameters.threshold),
    )
