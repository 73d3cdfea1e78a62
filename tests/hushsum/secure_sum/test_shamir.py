"""Shares of secrets over GF(256): what enough of them give, and what fewer do not."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import shamir

BYTES = np.arange(256, dtype=np.uint8)


class Written:
    """Entropy that a test has written down, and that must be read to its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int) -> bytes:
        assert size == len(self.data)
        return self.data


def times(a: int, b: int) -> int:
    """The product in GF(2)[z] / (z^8 + z^4 + z^3 + z^2 + 1), by hand."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11D if a & 0x80 else 0)
        b >>= 1
    return product


def value(coefficients: Sequence[int], x: int) -> int:
    """A polynomial's value, by Horner's rule."""
    total = 0
    for coefficient in reversed(coefficients):
        total = times(total, x) ^ coefficient
    return total


def test_a_share_is_the_value_of_the_polynomial_whose_coefficients_were_drawn(rng: np.random.Generator) -> None:
    secret, drawn = rng.bytes(19), rng.bytes(6 * 19)
    shares = shamir.split(secret, 7, 254, Written(drawn))
    polynomials = [[secret[at], *drawn[at::19]] for at in range(19)]
    assert shares.tolist() == [[value(polynomial, x) for polynomial in polynomials] for x in range(1, 255)]


@given(st.data())
def test_any_threshold_of_the_shares_give_the_secret(data: st.DataObject) -> None:
    secret = data.draw(st.binary(max_size=40))
    shares = data.draw(st.integers(1, 40))
    threshold = data.draw(st.integers(1, shares))
    order = data.draw(st.permutations(range(shares)))
    chosen = order[: data.draw(st.integers(threshold, shares))]
    made = shamir.split(secret, threshold, shares, ReplayableEntropy(secret))
    assert shamir.combine([i + 1 for i in chosen], [made[i].tobytes() for i in chosen], threshold) == secret


def test_the_most_shares_there_can_be_are_all_good(rng: np.random.Generator) -> None:
    secret = rng.bytes(16)
    shares = shamir.split(secret, 254, 254, OsEntropy())
    assert shamir.combine(range(1, 255), [share.tobytes() for share in shares], 254) == secret


def test_one_share_of_two_is_every_byte_equally_often_whatever_the_secret() -> None:
    """Exhaustive: each secret with each coefficient. The leading coefficient 0 is among them, or shares would tell."""
    secrets = np.repeat(BYTES, 256)
    shares = shamir.split(secrets[:, None], 2, 5, Written(bytes(BYTES) * 256))
    for share in shares.reshape(5, 256, 256):
        assert (np.sort(share, axis=1) == BYTES).all()


@pytest.mark.parametrize("secret", [0, 1, 0x53, 255])
def test_two_shares_of_three_are_every_pair_once_whatever_the_secret(secret: int) -> None:
    """Exhaustive over both coefficients: so every secret is equally likely, given any two shares."""
    pairs = np.array(list(itertools.product(BYTES, repeat=2)), np.uint8)
    secrets = np.full((65536, 1), secret, np.uint8)
    shares = shamir.split(secrets, 3, 4, Written(pairs.T.tobytes()))[..., 0].astype(np.int64)
    for one, other in itertools.combinations(shares, 2):
        assert len(np.unique(one << 8 | other)) == 65536


def test_many_secrets_are_put_together_as_one_by_one(rng: np.random.Generator) -> None:
    secrets = rng.integers(0, 256, (300, 21)).astype(np.uint8)
    shares = shamir.split(secrets, 9, 30, OsEntropy())
    indices = np.array([rng.permutation(30)[:12] + 1 for _ in secrets], np.uint8)
    held = np.stack([shares[row - 1, at] for at, row in enumerate(indices)])
    assert (shamir.combine_many(indices, held, 9) == secrets).all()
    for at in (0, 299):
        assert shamir.combine(indices[at].tolist(), [row.tobytes() for row in held[at]], 9) == secrets[at].tobytes()


def test_many_secrets_of_the_same_holders_are_put_together_at_once(rng: np.random.Generator) -> None:
    secrets = rng.integers(0, 256, (700, 16)).astype(np.uint8)
    shares = shamir.split(secrets, 20, 40, OsEntropy())
    indices = np.arange(5, 35, dtype=np.uint8)
    assert (shamir.combine_many(indices, shares[4:34].swapaxes(0, 1), 20) == secrets).all()
    assert shamir.combine_many(indices, np.zeros((0, 30, 16), np.uint8), 20).shape == (0, 16)


def test_fewer_shares_than_the_threshold_are_refused_even_of_a_secret_that_they_would_give() -> None:
    shares = [share.tobytes() for share in shamir.split(b"secret", 3, 5, OsEntropy())]
    with pytest.raises(SecureSumError, match="expected 3 shares"):
        shamir.combine([1, 2], shares[:2], 3)
    with pytest.raises(SecureSumError, match="expected 3 shares"):
        shamir.combine([], [], 3)


@pytest.mark.parametrize(
    ("indices", "match"),
    [
        ([1, 2, 2], "twice"),
        ([1, 2, 0], "from 1 to 254"),
        ([1, 2, 255], "from 1 to 254"),
        ([1, 2, 257], "from 1 to 254"),
    ],
)
def test_an_index_twice_or_out_of_range_is_refused(indices: list[int], match: str) -> None:
    """Share 0 would be the secret itself."""
    shares = [share.tobytes() for share in shamir.split(b"secret", 3, 3, OsEntropy())]
    with pytest.raises(SecureSumError, match=match):
        shamir.combine(indices, shares, 3)


def test_an_index_twice_is_refused_of_each_of_many_secrets_also_behind_those_that_are_used() -> None:
    shares = np.zeros((2, 4, 16), np.uint8)
    with pytest.raises(SecureSumError, match="twice"):
        shamir.combine_many(np.array([[1, 2, 3, 4], [1, 2, 3, 1]], np.uint8), shares, 3)


@pytest.mark.parametrize("shares", [[b"ab", b"abc"], [b"ab"], [b"ab", b"ab", b"ab"]])
def test_shares_of_other_lengths_or_numbers_are_refused(shares: list[bytes]) -> None:
    with pytest.raises(SecureSumError):
        shamir.combine([1, 2], shares, 2)
    with pytest.raises(SecureSumError):
        shamir.combine_many(np.ones((2, 3), np.uint8), np.zeros((2, 4, 16), np.uint8), 2)


def test_an_altered_share_gives_another_secret() -> None:
    """Which is why what comes out is checked."""
    shares = [share.tobytes() for share in shamir.split(bytes(16), 3, 3, OsEntropy())]
    shares[1] = bytes([shares[1][0] ^ 1]) + shares[1][1:]
    assert shamir.combine([1, 2, 3], shares, 3) != bytes(16)


@pytest.mark.parametrize(("threshold", "shares"), [(0, 3), (4, 3), (2, 255)])
def test_a_sharing_that_cannot_be_is_refused(threshold: int, shares: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        shamir.split(b"secret", threshold, shares, OsEntropy())


def test_secrets_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        shamir.split(np.zeros((2, 2), np.int64), 1, 1, OsEntropy())
