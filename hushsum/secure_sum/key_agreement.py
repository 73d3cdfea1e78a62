"""The keys of a round: what two clients agree on, what one derives from a seed, and shares sealed from one to another.

X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869), AES-256-GCM. The info of every derivation is its label and, each with
its length, the plan's id, the window, the round, the transcript and the clients' ids: a key serves one purpose, one
round, and one pair in one direction.

**Masks.** A key adds the stream of AES-256 in counter mode to a vector of words, and takes it off again. A key makes
one stream (nonce 0), of 4 or 8 bytes a word, least significant byte first on every platform. Sums wrap around at the
word's width; reducing them to the plan's modulus is left to whoever packs them, and comes to the same.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError
from hushsum.labels import MASK_KEY, PAIR_MASK, SELF_MASK, SELF_MASK_CHECK, SHARE_KEY

SEED_BYTES: Final = 16  # of what is shared among neighbours: as hard to guess as X25519 is to break
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16  # that sealing adds
_HASH_BYTES: Final = 32
_PRIME: Final = 2**255 - 19


@dataclass(frozen=True, slots=True)
class Occasion:
    """What every key of a round is bound to.

    Args:
        plan_id: 32 bytes.
        window: The window's number, signed 64 bits.
        round_id: 32 bytes, new for each round.
        transcript: 32 bytes once the graph is drawn; empty before.
    """

    plan_id: bytes
    window: int
    round_id: bytes
    transcript: bytes = b""

    def __post_init__(self) -> None:
        if len(self.plan_id) != _HASH_BYTES or len(self.round_id) != _HASH_BYTES:
            raise ValueError("expected a plan id and a round id of 32 bytes")
        if len(self.transcript) not in (0, _HASH_BYTES):
            raise ValueError(f"expected a transcript of 32 bytes, got {len(self.transcript)}")

    def drawn(self, transcript: bytes) -> Self:
        """The same round with its transcript."""
        return replace(self, transcript=transcript)

    @property
    def parts(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Plan id, window (8 bytes, signed, big-endian), round id, transcript: in this order in what is hashed."""
        return self.plan_id, struct.pack(">q", self.window), self.round_id, self.transcript

    @property
    def complete(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The parts, of a round whose graph is drawn."""
        assert self.transcript, "keys of neighbours need the transcript"
        return self.parts


class KeyPair:
    """An X25519 key pair for one round.

    Args:
        private: 32 bytes that nobody else knows.
    """

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """A new pair."""
        return cls(entropy.read(KEY_BYTES))

    def shared(self, public: bytes) -> bytes:
        """What the owners of two pairs know and nobody else: 32 bytes, not uniform, to be derived from.

        Raises:
            SecureSumError: The other's key is none, or one that makes the secret known to all (RFC 7748, 6.1).
        """
        if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _PRIME:
            raise SecureSumError("expected an X25519 public key, 32 bytes of a number below 2^255 - 19")
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # all zeros came out
            raise SecureSumError("expected an X25519 public key, got a point of small order") from error

    def __repr__(self) -> str:
        return f"KeyPair(of {self.public.hex()})"


def hkdf(secret: bytes, info: bytes, size: int = KEY_BYTES, *, salt: bytes = b"") -> bytes:
    """HKDF with SHA-256 (RFC 5869): ``size`` bytes, at most 8,160."""
    if not 0 < size <= 255 * _HASH_BYTES:
        raise ValueError(f"expected a size from 1 to {255 * _HASH_BYTES}, got {size}")
    key = hmac.digest(salt or bytes(_HASH_BYTES), secret, "sha256")
    block, out = b"", b""
    for counter in range(1, -(-size // _HASH_BYTES) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        out += block
    return out[:size]


def mask_key_pair(seed: bytes, occasion: Occasion, client_id: str) -> KeyPair:
    """The pair that a client's pairwise masks come from; whoever has the seed's shares can make it again.

    The pair is advertised before there is a transcript, so it is bound to none.
    """
    return KeyPair(hkdf(_seed(seed), framed(MASK_KEY, *occasion.parts[:3], client_id.encode())))


def pair_mask_key(pair: KeyPair, public: bytes, occasion: Occasion, one: str, other: str) -> bytes:
    """The key of the mask that one client adds and the other takes off: the same from both sides.

    Args:
        pair: The mask key pair of either.
        public: The mask key of the other.
        occasion: With its transcript.
        one: Id of either client.
        other: Id of the other.

    Raises:
        SecureSumError: A public key that is none.
    """
    low, high = sorted((one.encode(), other.encode()))
    return hkdf(pair.shared(public), framed(PAIR_MASK, *occasion.complete, low, high))


def self_mask_key(seed: bytes, occasion: Occasion, client_id: str) -> bytes:
    """The key of the mask that a client adds for itself."""
    return hkdf(_seed(seed), framed(SELF_MASK, *occasion.complete, client_id.encode()))


def self_mask_check(seed: bytes, occasion: Occasion, client_id: str) -> bytes:
    """What a seed put together again is compared with: 32 bytes that do not tell it."""
    return hashlib.sha256(framed(SELF_MASK_CHECK, *occasion.complete, client_id.encode(), _seed(seed))).digest()


def share_key(pair: KeyPair, public: bytes, occasion: Occasion, sender: str, receiver: str) -> bytes:
    """The key that one client seals its shares for another with: once, and in this direction alone.

    Args:
        pair: The exchange key pair of either.
        public: The exchange key of the other.
        occasion: With its transcript.
        sender: Id of the client whose shares they are.
        receiver: Id of the client who keeps them.

    Raises:
        SecureSumError: A public key that is none.
    """
    return _share_key(pair.shared(public), occasion, sender, receiver)


def share_keys(pair: KeyPair, public: bytes, occasion: Occasion, mine: str, theirs: str) -> tuple[bytes, bytes]:
    """Both keys of :func:`share_key` between two clients, at the price of one: to send with, and to receive with.

    Args:
        pair: A client's exchange key pair.
        public: The exchange key of the other.
        occasion: With its transcript.
        mine: Id of the first.
        theirs: Id of the other.

    Raises:
        SecureSumError: A public key that is none.
    """
    shared = pair.shared(public)
    return _share_key(shared, occasion, mine, theirs), _share_key(shared, occasion, theirs, mine)


def seal(key: bytes, message: bytes, associated: bytes = b"") -> bytes:
    """The message so that only the key's owners can read it, or make another: 16 bytes longer.

    A key of :func:`share_key` seals one message: the nonce is 0.
    """
    return AESGCM(key).encrypt(bytes(12), message, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes = b"") -> bytes:
    """The message that was sealed.

    Raises:
        SecureSumError: It was altered or cut, or sealed with another key or for another purpose.
    """
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, associated)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("sealed shares were altered, truncated, or addressed to another client") from error


def framed(label: bytes, *parts: bytes) -> bytes:
    """The label, the number of parts, each one's length (4 bytes, big-endian), the parts: no two lists alike."""
    assert label.endswith(b"\0"), "a label of labels.py"
    return b"".join((label, struct.pack(f">{len(parts) + 1}I", len(parts), *map(len, parts)), *parts))


def _share_key(shared: bytes, occasion: Occasion, sender: str, receiver: str) -> bytes:
    return hkdf(shared, framed(SHARE_KEY, *occasion.complete, sender.encode(), receiver.encode()))


def _seed(seed: bytes) -> bytes:
    if len(seed) != SEED_BYTES:
        raise SecureSumError(f"expected a seed of {SEED_BYTES} bytes, got {len(seed)}")
    return seed


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
