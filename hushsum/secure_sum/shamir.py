"""Shamir's sharing of secrets (1979), byte by byte over GF(256), for all secrets of a cohort at once.

A secret is the value at 0 of a random polynomial of degree below the threshold; share ``x`` is its value at x. Fewer
shares than the threshold are independent of the secret, and uniform.

The field is GF(2)[z] / (z^8 + z^4 + z^3 + z^2 + 1), in which z generates every non-zero element. Whatever is multiplied
here is a secret byte by a number that everybody knows (a power of x, a Lagrange coefficient), so a product is the sum
of the secret's bits, each times a known byte: eight bytes at a time, without a branch or a table that a secret indexes.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError

SHARES_MAX: Final = 254
_POLYNOMIAL: Final = 0x11D
_ORDER: Final = 255  # of the field's multiplicative group
_LANE: Final = 8  # bytes of secrets in one word
_ONES: Final = np.uint64(0x0101010101010101)  # the lowest bit of each byte of a lane
_PRODUCTS_MAX: Final = 1 << 17  # words of products held at once: 1 MiB

Octets = npt.NDArray[np.uint8]


def _powers() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """z^0 to z^254; and for each byte its exponent, 0 for 0 which has none."""
    power, exponents, value = np.zeros(_ORDER, np.uint64), np.zeros(256, np.int64), 1
    for exponent in range(_ORDER):
        power[exponent], exponents[value] = value, exponent
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return power, exponents


_POWER, _EXPONENT = _powers()
_BITS: Final = np.arange(8, dtype=np.uint64)
# [a, b]: the exponent of a + b, and 0 on the diagonal. Sums of 254 of these are exact in float32.
_EXPONENT_OF_SUM: Final = _EXPONENT[np.arange(256)[:, None] ^ np.arange(256)].astype(np.float32)


def split(secrets: bytes | Octets, threshold: int, shares: int, entropy: Entropy) -> Octets:
    """The shares of some secrets.

    Args:
        secrets: Bytes (m,), or uint8 of shape (s, m) for s secrets of m bytes.
        threshold: Shares that are needed, and enough; at least 1.
        shares: Number of shares, from the threshold to 254. Share i of the result is that of x = i + 1.
        entropy: Private randomness: (threshold − 1) bytes for each byte of the secrets.

    Returns:
        uint8 of shape (shares, m), or (shares, s, m).

    Raises:
        ValueError: A number out of its range.
    """
    if not 1 <= threshold <= shares <= SHARES_MAX:
        raise ValueError(f"expected 1 <= threshold <= shares <= {SHARES_MAX}, got {threshold} of {shares}")
    constant = np.frombuffer(secrets, np.uint8) if isinstance(secrets, bytes) else secrets
    if constant.dtype != np.uint8:
        raise ValueError(f"expected secrets of bytes, got {constant.dtype}")
    drawn = np.frombuffer(entropy.read((threshold - 1) * constant.size), np.uint8)
    coefficients = _lanes(np.concatenate([constant.reshape(1, -1), drawn.reshape(threshold - 1, constant.size)]))
    xs = _EXPONENT[np.arange(1, shares + 1)]
    values = np.zeros((coefficients.shape[1], shares), np.uint64)
    step = max(1, _PRODUCTS_MAX // (8 * max(1, values.size)))
    for start in range(0, threshold, step):
        known = np.arange(start, min(start + step, threshold))[:, None] * xs  # exponents of x^j
        times = _POWER[(known[:, None] + np.arange(8)[:, None]) % _ORDER]  # (j, bit, share)
        products = _planes(coefficients[start : start + step])[..., None] * times[:, :, None]
        values ^= np.bitwise_xor.reduce(products, axis=(0, 1))
    octets = np.ascontiguousarray(values.T).view(np.uint8)[:, : constant.size]
    return octets.reshape(shares, *constant.shape)


def combine(indices: Sequence[int], shares: Sequence[bytes], threshold: int) -> bytes:
    """One secret, from the first ``threshold`` of its shares.

    Shares that are no values of one polynomial give another secret, unnoticed: check what comes out.

    Args:
        indices: The x of each share: distinct, 1 to 254.
        shares: As many, of equal length.
        threshold: As in :func:`split`.

    Raises:
        SecureSumError: Fewer shares than the threshold, an index twice or out of range, or shares of unequal length.
    """
    if len(indices) != len(shares):
        raise SecureSumError(f"expected a share for each of {len(indices)} indices, got {len(shares)}")
    if len({len(share) for share in shares}) > 1:
        raise SecureSumError("expected shares of equal length")
    if not all(1 <= index <= SHARES_MAX for index in indices):
        raise SecureSumError(f"expected indices of shares from 1 to {SHARES_MAX}")
    joined = np.frombuffer(b"".join(shares), np.uint8).reshape(1, len(shares), len(shares[0]) if shares else 0)
    return bytes(combine_many(np.array(indices, np.uint8), joined, threshold)[0])


def combine_many(indices: Octets, shares: Octets, threshold: int) -> Octets:
    """Many secrets, each from the first ``threshold`` of its shares.

    Args:
        indices: uint8 of shape (s, r): the x of each share of each secret; or (r,) where all secrets share them.
        shares: uint8 of shape (s, r, m).
        threshold: As in :func:`split`.

    Returns:
        uint8 of shape (s, m).

    Raises:
        SecureSumError: Fewer shares than the threshold, an index of one secret twice or out of range, or shapes that
            do not fit.
    """
    if shares.ndim != 3 or indices.shape not in {shares.shape[:2], shares.shape[1:2]}:
        raise SecureSumError(f"expected shares (s, r, m) with an index each, got {shares.shape} and {indices.shape}")
    if not 1 <= threshold <= shares.shape[1]:
        raise SecureSumError(f"expected {threshold} shares of a secret, got {shares.shape[1]}")
    _refuse_indices(np.atleast_2d(indices))
    chosen = np.atleast_2d(indices)[:, :threshold]
    factors = _lagrange_exponents(chosen)
    lanes = _lanes(shares[:, :threshold])
    secrets = np.zeros((shares.shape[0], lanes.shape[2]), np.uint64)
    step = max(1, _PRODUCTS_MAX // (8 * threshold * max(1, lanes.shape[2])))
    for start in range(0, len(secrets), step):
        piece = slice(start, start + step)
        known = factors[piece] if len(factors) > 1 else factors
        times = _POWER[(known[..., None] + np.arange(8)) % _ORDER]  # (secret, share, bit)
        products = _planes(lanes[piece]) * times[..., None]
        secrets[piece] = np.bitwise_xor.reduce(products, axis=(1, 2))
    return np.ascontiguousarray(secrets.view(np.uint8)[:, : shares.shape[2]])


def _refuse_indices(indices: Octets) -> None:
    if not np.all((indices >= 1) & (indices <= SHARES_MAX)):
        raise SecureSumError(f"expected indices of shares from 1 to {SHARES_MAX}")
    ordered = np.sort(indices, axis=1)
    if np.any(ordered[:, 1:] == ordered[:, :-1]):
        raise SecureSumError("expected distinct indices of shares, got one twice")


def _lagrange_exponents(indices: Octets) -> npt.NDArray[np.int64]:
    """Exponents of λ_i = Π_{j ≠ i} x_j / (x_j − x_i), of shape (s, t): the secret is Σ λ_i · share_i."""
    present = np.zeros((len(indices), 256), np.float32)
    np.put_along_axis(present, indices.astype(np.int64), 1, axis=1)
    # Whole numbers below 2^24 in float32: the product is exact, whoever computes it in whatever order.
    below = np.take_along_axis(present @ _EXPONENT_OF_SUM, indices.astype(np.int64), axis=1).astype(np.int64)
    own = _EXPONENT[indices]
    return np.asarray((own.sum(axis=1, keepdims=True) - own - below) % _ORDER)


def _lanes(octets: Octets) -> npt.NDArray[np.uint64]:
    """The last axis in words of eight bytes, zeros behind."""
    size = octets.shape[-1]
    padded = np.zeros((*octets.shape[:-1], -(-size // _LANE) * _LANE), np.uint8)
    padded[..., :size] = octets
    return padded.view(np.uint64)


def _planes(lanes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """(..., 8, words): bit b of every byte, as a byte of 0 or 1, which times a byte stays one."""
    return np.asarray(lanes[..., None, :] >> _BITS[:, None] & _ONES)
