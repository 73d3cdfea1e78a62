"""Masks of keys on vectors of words."""

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hushsum.secure_sum import key_agreement

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SIZES = (0, 1, 3, 32_768, 32_769, 70_001)  # a block is 32,768 words of 4 bytes
WIDTHS = ("uint32", "uint64")


def stream(key: bytes, words: int, width: str) -> list[int]:
    """The cipher's stream in words, least significant byte first."""
    step = np.dtype(width).itemsize
    octets = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(step * words))
    return [int.from_bytes(octets[at : at + step], "little") for at in range(0, len(octets), step)]


def some_words(rng: np.random.Generator, size: int, width: str) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint64]:
    return rng.integers(0, np.iinfo(width).max, size, dtype=width, endpoint=True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", SIZES)
def test_a_mask_is_the_stream_of_aes_256_in_words(rng: np.random.Generator, size: int, width: str) -> None:
    before = some_words(rng, size, width)
    words = before.copy()
    key_agreement.apply(words, added=(KEY,))
    modulus = 1 << (8 * words.itemsize)
    expected = [(a + b) % modulus for a, b in zip(before.tolist(), stream(KEY, size, width), strict=True)]
    assert words.tolist() == expected


def test_the_first_words_are_the_known_answer_of_aes_256() -> None:
    """The block of zeros under the key of zeros (NIST's known answer tests)."""
    words = np.zeros(4, np.uint32)
    key_agreement.apply(words, added=(bytes(32),))
    assert words.tolist() == [0x78C095DC, 0x898940A2, 0x14A248AD, 0x87208492]


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_taken_off_was_what_was_added(rng: np.random.Generator, width: str) -> None:
    before = some_words(rng, 50_000, width)
    words = before.copy()
    key_agreement.apply(words, added=(KEY,))
    assert (words != before).mean() > 0.99
    key_agreement.apply(words, subtracted=(KEY,))
    assert (words == before).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_many_keys_at_once_are_the_same_as_one_after_the_other(rng: np.random.Generator, width: str) -> None:
    """More keys than there are streams open at once, and a part of a block at the end."""
    added, subtracted = [rng.bytes(32) for _ in range(70)], [rng.bytes(32) for _ in range(63)]
    together = some_words(rng, 40_001, width)
    one_by_one = together.copy()
    key_agreement.apply(together, added, subtracted)
    for key in added:
        key_agreement.apply(one_by_one, added=(key,))
    for key in subtracted:
        key_agreement.apply(one_by_one, subtracted=(key,))
    assert (together == one_by_one).all()


def test_the_masks_of_a_cohort_cancel_in_its_sum(rng: np.random.Generator) -> None:
    keys = {(i, j): rng.bytes(32) for i in range(5) for j in range(i + 1, 5)}
    inputs = rng.integers(0, 1000, (5, 1000)).astype(np.uint32)
    total = np.zeros(1000, np.uint32)
    for i, counters in enumerate(inputs):
        words = counters.copy()
        key_agreement.apply(words, [keys[i, j] for j in range(i + 1, 5)], [keys[j, i] for j in range(i)])
        assert (words != counters).any()
        total += words
    assert (total == inputs.sum(axis=0)).all()


def test_every_bit_of_the_key_matters() -> None:
    """A seed folded to 32 bits, as published code has it, would leave 224 of these without effect."""
    seen = set()
    for bit in range(-1, 256):
        words = np.zeros(4, np.uint64)
        key_agreement.apply(
            words, added=((int.from_bytes(KEY, "big") ^ (1 << bit if bit >= 0 else 0)).to_bytes(32, "big"),)
        )
        seen.add(words.tobytes())
    assert len(seen) == 257


@pytest.mark.parametrize("key", [b"", KEY[:16], KEY + b"\0"])
def test_a_key_of_another_length_is_refused_before_a_word_is_changed(key: bytes) -> None:
    """AES would take 16 bytes gladly."""
    words = np.zeros(8, np.uint32)
    with pytest.raises(ValueError, match="32 bytes"):
        key_agreement.apply(words, [OTHER, key])
    assert not words.any()


@pytest.mark.parametrize(
    "words",
    [np.zeros(8, np.int64), np.zeros((2, 4), np.uint32), np.zeros(8, np.uint32)[::2]],
    ids=["signed", "2d", "cut"],
)
def test_words_of_another_kind_are_refused(words: npt.NDArray[np.uint32]) -> None:
    with pytest.raises(ValueError, match="contiguous row"):
        key_agreement.apply(words, added=(KEY,))
