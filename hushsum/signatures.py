"""Ed25519 signatures (RFC 8032) over labelled, length-framed parts; and the files that private keys are kept in.

What is signed is the label, and the SHA-256 of: the label, the number of parts, the length of each (4 bytes each,
big-endian), the parts. No two lists of parts are framed alike, and a signature of one purpose is none of another. (The
inner hash is there for speed: Ed25519 alone reads a message twice to sign it, with the slower SHA-512.)
"""

import hashlib
import os
import re
import stat
import struct
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushsum.entropy import Entropy
from hushsum.errors import DirectoryError, KeyFileError

ED25519: Final = 1  # the number of this suite wherever a signature travels
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_FILE_BYTES_MAX: Final = 1 << 16
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P  # of the curve −x² + y² = 1 + d x² y² (RFC 8032, 5.1)


class VerifyKey:
    """A public key.

    Args:
        raw: Its 32 bytes (RFC 8032, 5.1.2).

    Raises:
        DirectoryError: They are none, or one of the few under which anybody can sign.
    """

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise DirectoryError(f"expected an Ed25519 public key of {KEY_BYTES} bytes, got {len(raw)}")
        if not _is_sound(raw):
            raise DirectoryError("expected an Ed25519 public key, got bytes that are no point of its main group")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The key of 64 hexadecimal digits, or of PEM.

        Raises:
            DirectoryError: It is neither.
        """
        text = text.strip()
        if _HEX.fullmatch(text):
            return cls(bytes.fromhex(text))
        try:
            key = serialization.load_pem_public_key(text.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            came = "PEM of something else" if "-----" in text else f"{len(text)} characters"
            raise DirectoryError(f"expected an Ed25519 public key as 64 hexadecimal digits or as PEM, got {came}")
        return cls(key.public_bytes_raw())

    @property
    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self.raw.hex()

    def verifies(self, signature: bytes, label: bytes, *parts: bytes) -> bool:
        """Whether the key's owner signed exactly these parts under this label."""
        try:
            self._key.verify(signature, _framed(label, parts))
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"VerifyKey({self.hex})"


class SigningKey:
    """A private key. Whoever learns it can sign as its owner.

    Args:
        seed: Its 32 bytes (RFC 8032, 5.1.5).

    Raises:
        KeyFileError: Another length.
    """

    __slots__ = ("_key", "verify_key")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise KeyFileError(f"expected an Ed25519 private key of {KEY_BYTES} bytes, got {len(seed)}")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verify_key = VerifyKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """A new key."""
        return cls(entropy.read(KEY_BYTES))

    @classmethod
    def from_pem(cls, data: bytes) -> Self:
        """The key of unencrypted PKCS #8 in PEM.

        Raises:
            KeyFileError: It is none.
        """
        try:
            key = serialization.load_pem_private_key(data, password=None)
        except TypeError as error:
            raise KeyFileError("expected an Ed25519 private key in PEM without a password, got an encrypted") from error
        except (ValueError, UnsupportedAlgorithm, InternalError):  # the last: what OpenSSL refuses in words of its own
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError("expected an Ed25519 private key in PEM (PKCS #8), got something else")
        return cls(key.private_bytes_raw())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The key of a PEM file that nobody but its owner may read.

        Raises:
            KeyFileError: The file cannot be read, others may, or it holds no such key.
        """
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = b"" if mode & (stat.S_IRWXG | stat.S_IRWXO) else file.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyFileError(f"{path}: mode {mode:03o}, others may use this private key: chmod 600 {path}")
        try:
            return cls.from_pem(data)
        except KeyFileError as error:
            raise KeyFileError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes a new PEM file that nobody else may read.

        Raises:
            KeyFileError: There is such a file already, or it cannot be written.
        """
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb") as opened:  # noqa: PTH123  a descriptor is opened, no path
                opened.write(self.to_pem())
                opened.flush()
                os.fsync(file)
        except FileExistsError as error:
            raise KeyFileError(f"{path}: is there already; a key is never overwritten") from error
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error

    def to_pem(self) -> bytes:
        """Unencrypted PKCS #8 in PEM."""
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, label: bytes, *parts: bytes) -> bytes:
        """The signature of these parts under this label: 64 bytes."""
        return self._key.sign(_framed(label, parts))

    def __repr__(self) -> str:
        return f"SigningKey(of {self.verify_key.hex})"


def _framed(label: bytes, parts: tuple[bytes, ...]) -> bytes:
    assert label.endswith(b"\0"), "a label of labels.py"
    head = struct.pack(f">{len(parts) + 1}I", len(parts), *map(len, parts))
    return label + hashlib.sha256(b"".join((label, head, *parts))).digest()


def _is_sound(raw: bytes) -> bool:
    """Whether the bytes are the canonical ones of a point whose order is not 1, 2, 4 or 8 (RFC 8032, 5.1.3)."""
    y = int.from_bytes(raw, "little") & ((1 << 255) - 1)
    sign = raw[31] >> 7
    x2 = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(x2, (_P + 3) // 8, _P)
    if x * x % _P != x2:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if y >= _P or x * x % _P != x2 or (x == 0 and sign):
        return False
    for _ in range(3):  # times 8; which of the two roots x is, does not matter here
        product = _D * x * x * y * y % _P
        x, y = 2 * x * y * pow(1 + product, -1, _P) % _P, (y * y + x * x) * pow(1 - product, -1, _P) % _P
    return (x, y) != (0, 1)
