"""Where private randomness comes from: the operating system, a key of its, or a replayable source in tests.

An :class:`Entropy` is no :class:`hushsum.public_random.PublicSeed`: the one must never be known and the other is known
to all. Neither has what the other offers, so neither is accepted where the other is asked for.
"""

import hashlib
import os
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from hushsum.labels import KEYED_ENTROPY, REPLAYABLE_ENTROPY

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES: Final = 32  # of a KeyedEntropy
_SMALL_READ: Final = 64  # bytes; below it the key set-up costs more than the system call
_ZEROS: Final = bytes(1 << 20)  # what the cipher encrypts, so that its output is its key stream


@runtime_checkable
class Entropy(Protocol):
    """A source of independent uniform bytes that nobody else can know."""

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, exactly; ``size`` is at least 0."""
        ...


class OsEntropy:
    """The operating system's generator; long reads are expanded from a fresh key of it with AES-256 in counter mode.

    It keeps nothing between two reads: there is no state to fork, to pickle or to leak, and threads may share it. What
    is drawn from it is as unpredictable as ``os.urandom`` and AES-256 are.
    """

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises:
            ValueError: ``size`` is negative.
        """
        _refuse_negative(size)
        if size <= _SMALL_READ:
            return os.urandom(size)
        return _key_stream(_aes_ctr(os.urandom(32)), size)

    def __repr__(self) -> str:
        return "OsEntropy()"


class _KeyStream:
    """AES-256 in counter mode under a key's labelled SHA-256: the same bytes however the reads are cut.

    It is one stream: it is not for sharing between threads or across a fork.
    """

    def __init__(self, label: bytes, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise TypeError(f"the key of a {type(self).__name__} is bytes, got {type(key).__name__}")
        self._stream = _aes_ctr(hashlib.sha256(label + key).digest())

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes of the stream.

        Raises:
            ValueError: ``size`` is negative.
        """
        _refuse_negative(size)
        return _key_stream(self._stream, size)


class KeyedEntropy(_KeyStream):
    """The private stream of one outcome, which its key decides: so that an outcome is drawn again and is the same.

    **Whoever learns the key learns the noise.** It comes from :class:`OsEntropy`, is kept as the exact counters are
    until the outcome is stored, and is erased then; it serves one outcome. The stream is as unpredictable as the key
    and AES-256 are.

    Args:
        key: 32 bytes of the operating system's generator.

    Raises:
        TypeError: The key is not bytes.
        ValueError: It has another length.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(KEYED_ENTROPY, key)
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key of a KeyedEntropy has {KEY_BYTES} bytes, got {len(key)}")

    def __repr__(self) -> str:
        return "KeyedEntropy()"


class ReplayableEntropy(_KeyStream):
    """A stream that its key decides, for tests and simulation alone: **noise drawn from it protects nobody**.

    Args:
        key: Any bytes.

    Raises:
        TypeError: The key is not bytes.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(REPLAYABLE_ENTROPY, key)

    def __repr__(self) -> str:
        return "ReplayableEntropy(NOT PRIVATE: for tests and simulation)"


def _refuse_negative(size: int) -> None:
    if size < 0:
        raise ValueError(f"cannot read {size} bytes")


def _aes_ctr(key: bytes) -> "CipherContext":
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # A zero nonce is right where a key is used for one stream only.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _key_stream(stream: "CipherContext", size: int) -> bytes:
    if size <= len(_ZEROS):
        return stream.update(memoryview(_ZEROS)[:size])
    return b"".join(stream.update(memoryview(_ZEROS)[: size - at]) for at in range(0, size, len(_ZEROS)))
