"""What a key draws is frozen: an outcome that was charged by one version may be drawn by a later one.

A service stores a key with the charge of an outcome (:class:`hushsum.entropy.KeyedEntropy`); whatever fails before the
outcome is stored, the next try must draw the same. Where a sampler must change, the label of the key changes with it.
"""

import hashlib
from fractions import Fraction

import pytest

from hushsum.entropy import KeyedEntropy
from hushsum.noise import SAMPLERS

KEY = bytes(range(32))
FROZEN = {
    ("discrete-laplace", "1/3"): "eee7a9ba4cffa237e1d83c5db84079cc",
    ("discrete-laplace", "1053"): "79b05df55837dc31c205571213545e08",
    ("discrete-gaussian", "1/2"): "4ab65cee73d9af3d6d8e6fc1e3e20e89",
    ("discrete-gaussian", "21842.8"): "eb71c601268def75d461466c1ef036e7",
    ("discrete-gaussian", "1e17"): "ce71a1f33971709609a2e920e1250a33",
}


@pytest.mark.parametrize(("name", "scale"), FROZEN)
def test_a_key_draws_what_it_always_drew(name: str, scale: str) -> None:
    entropy = KeyedEntropy(KEY)
    draws = [SAMPLERS[name](Fraction(scale)).sample(size, entropy) for size in (1, 5000)]
    digest = hashlib.sha256(b"".join(each.astype("<i8").tobytes() for each in draws)).hexdigest()
    assert digest[:32] == FROZEN[name, scale]
