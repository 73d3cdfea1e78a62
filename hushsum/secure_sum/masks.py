"""What a key adds to a vector of words, and takes off again: the stream of AES-256 in counter mode, as words.

A key of :mod:`hushsum.secure_sum.agreement` makes one stream (nonce 0), of 4 or 8 bytes a word, least significant byte
first on every platform. Sums wrap around at the word's width; reducing them to the plan's modulus is left to whoever
packs them, and comes to the same.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

KEY_BYTES: Final = 32
_BLOCK: Final = 1 << 17  # bytes of one key before the next: words, stream and zeros stay in the core's cache
_KEYS: Final = 64  # streams that are open at once
_ZEROS: Final = bytes(_BLOCK)  # what the cipher encrypts, so that its output is its stream
_TAIL: Final = 16  # bytes more than it writes that the cipher asks for

WordArray = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


def apply(words: WordArray, added: Sequence[bytes] = (), subtracted: Sequence[bytes] = ()) -> None:
    """Adds the masks of some keys and takes off those of others, in place, modulo 2^32 or 2^64.

    Args:
        words: uint32 or uint64 of shape (n,), contiguous.
        added: Keys of 32 bytes. A key that is here and there leaves the words as they were.
        subtracted: The same.

    Raises:
        ValueError: A key of another length, or words of another kind.
    """
    if words.ndim != 1 or words.dtype not in (np.uint32, np.uint64) or not words.flags.c_contiguous:
        raise ValueError(f"expected a contiguous row of uint32 or uint64, got {words.dtype} of shape {words.shape}")
    if any(len(key) != KEY_BYTES for key in (*added, *subtracted)):
        raise ValueError(f"expected keys of {KEY_BYTES} bytes")
    buffer = bytearray(min(_BLOCK, words.nbytes) + _TAIL)
    signed = iter([(np.add, key) for key in added] + [(np.subtract, key) for key in subtracted])
    while batch := [(ufunc, _stream(key)) for ufunc, key in islice(signed, _KEYS)]:
        for block in _blocks(words):
            masks = np.frombuffer(buffer, words.dtype.newbyteorder("<"), len(block))
            for ufunc, stream in batch:
                stream.update_into(memoryview(_ZEROS)[: block.nbytes], buffer)
                ufunc(block, masks, out=block)


def _blocks(words: WordArray) -> Iterator[WordArray]:
    step = _BLOCK // words.itemsize
    for start in range(0, len(words), step):
        yield words[start : start + step]


def _stream(key: bytes) -> CipherContext:
    # A zero nonce is right: the label, round and ids in a key's derivation make it one stream's alone.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
