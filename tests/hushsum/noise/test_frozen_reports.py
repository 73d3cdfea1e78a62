"""What a key draws is frozen for randomisers too: a simulation that is run again gives the same reports."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.noise import RANDOMISERS, OneBit

KEY = bytes(range(32))
FROZEN = {
    ("k-rr", "54.5981", 256, None): "e027c8ed001e52e4ef89a6c2fab1de57",
    ("k-rr", "1.00001", 3, None): "3ea14d5c1c321cd595e42f17ff95ce64",
    ("projective", "54.5981", 256, 37): "54d16e57ceaea50e6c1d1d95d73a6364",
    ("projective", "2.71828", 1024, 3): "d660b1256a0ee241f1725973a8e76486",
    ("one-bit", "7.38905", 4095, None): "4afb3eb4028b55ce71ebcd1c84ad7695",
}


def digest_of(name: str, ratio: str, size: int, field: int | None) -> str:
    entropy, drawn = ReplayableEntropy(KEY), []
    for n in (1, 20_000):
        values = np.arange(n) % (size + 1) - 1
        if name == "one-bit":
            drawn.append(OneBit(Fraction(ratio), size).randomise(values, entropy, values < 0))
        else:
            drawn.append(RANDOMISERS[name](Fraction(ratio), size, field).randomise(values, entropy))
    return hashlib.sha256(b"".join(each.astype("<i8").tobytes() for each in drawn)).hexdigest()[:32]


@pytest.mark.parametrize(("name", "ratio", "size", "field"), FROZEN)
def test_a_key_draws_what_it_always_drew(name: str, ratio: str, size: int, field: int | None) -> None:
    assert digest_of(name, ratio, size, field) == FROZEN[name, ratio, size, field]
