"""Ed25519 over labelled parts, and the files of private keys."""

import os
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st

from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.errors import DirectoryError, KeyFileError
from hushsum.labels import DIRECTORY, LOG_MESSAGE
from hushsum.signing import SigningKey, VerifyKey

KEY = SigningKey(bytes(range(32)))
OTHER = SigningKey(bytes(32))
P = 2**255 - 19
parts = st.lists(st.binary(max_size=8), max_size=4).map(tuple)


def pem_of(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def test_the_public_key_is_that_of_rfc_8032() -> None:
    """Section 7.1, test 1."""
    key = SigningKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.verify_key.hex == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@given(parts, parts)
def test_a_signature_is_of_these_parts_alone(signed: tuple[bytes, ...], other: tuple[bytes, ...]) -> None:
    """However the bytes are cut into parts, no two lists are alike: a moved border is another list."""
    signature = KEY.sign(LOG_MESSAGE, *signed)
    assert KEY.verify_key.verifies(signature, LOG_MESSAGE, *signed)
    assert KEY.verify_key.verifies(signature, LOG_MESSAGE, *other) == (signed == other)


def test_a_part_cannot_stand_for_two() -> None:
    whole = b"a" + (1).to_bytes(4, "big") + b"b"
    assert not KEY.verify_key.verifies(KEY.sign(LOG_MESSAGE, b"a", b"b"), LOG_MESSAGE, whole)


def test_a_signature_under_another_label_by_another_key_or_changed_is_none() -> None:
    signature = KEY.sign(LOG_MESSAGE, b"part")
    assert not KEY.verify_key.verifies(signature, DIRECTORY, b"part")
    assert not OTHER.verify_key.verifies(signature, LOG_MESSAGE, b"part")
    for changed in (b"", signature[:-1], signature + b"\0", bytes([signature[0] ^ 1]) + signature[1:]):
        assert not KEY.verify_key.verifies(changed, LOG_MESSAGE, b"part")


def test_a_generated_key_takes_its_seed_from_the_entropy_alone() -> None:
    same = [SigningKey.generate(ReplayableEntropy(b"seed")).verify_key for _ in range(2)]
    assert same[0] == same[1]
    assert SigningKey.generate(OsEntropy()).verify_key != SigningKey.generate(OsEntropy()).verify_key


def test_a_public_key_is_read_from_hexadecimal_digits_and_from_pem() -> None:
    pem = ed25519.Ed25519PublicKey.from_public_bytes(KEY.verify_key.raw).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    texts = (KEY.verify_key.hex, KEY.verify_key.hex.upper(), f" {KEY.verify_key.hex}\n", pem.decode())
    for text in texts:
        assert VerifyKey.from_text(text) == KEY.verify_key
    assert len({VerifyKey.from_text(text) for text in texts}) == 1


def test_text_that_is_no_public_key_is_refused() -> None:
    foreign = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = foreign.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(DirectoryError, match="got PEM of something else"):
        VerifyKey.from_text(pem.decode())
    for text in ("", "ab" * 31, "zz" * 32, KEY.verify_key.hex + "00"):
        with pytest.raises(DirectoryError, match="64 hexadecimal digits or as PEM, got"):
            VerifyKey.from_text(text)
    with pytest.raises(DirectoryError, match="32 bytes, got 31"):
        VerifyKey(bytes(31))


@pytest.mark.parametrize(
    "y",
    (
        0,  # of order 4
        1,  # of order 1
        P - 1,  # of order 2
        P,  # 0, not in its canonical bytes
        P + 1,  # 1, as little
        2,  # of no point
    ),
)
@pytest.mark.parametrize("sign", (0, 1))
def test_a_public_key_under_which_anybody_can_sign_is_refused(y: int, sign: int) -> None:
    with pytest.raises(DirectoryError, match="an invalid point"):
        VerifyKey((y | sign << 255).to_bytes(32, "little"))


@pytest.mark.parametrize(
    "text",
    (
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    ),
)
@pytest.mark.parametrize("sign", (0, 0x80))
def test_a_public_key_of_order_8_is_refused(text: str, sign: int) -> None:
    raw = bytearray.fromhex(text)
    raw[31] |= sign
    with pytest.raises(DirectoryError, match="an invalid point"):
        VerifyKey(bytes(raw))


def test_every_generated_key_is_sound(seed: int) -> None:
    for number in range(20):
        raw = SigningKey((seed + number).to_bytes(32, "big")).verify_key.raw
        assert VerifyKey(raw).raw == raw


def test_a_saved_key_is_closed_to_others_and_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    old = os.umask(0)
    try:
        KEY.save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path).verify_key == KEY.verify_key


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    KEY.save(path)
    with pytest.raises(KeyFileError, match="already exists: keys are not overwritten"):
        OTHER.save(path)
    assert SigningKey.load(path).verify_key == KEY.verify_key


@pytest.mark.parametrize("mode", (0o640, 0o604, 0o620, 0o601, 0o644))
def test_a_key_that_others_may_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    KEY.save(path)
    path.chmod(mode)
    with pytest.raises(
        KeyFileError, match=rf"mode {mode:o}, the private key is accessible to other users: chmod 600 .*key\.pem"
    ):
        SigningKey.load(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("owner", "mode", "is_read"),
    ((0, 0o440, True), (0, 0o640, True), (0, 0o444, False), (0, 0o460, False), (9, 0o440, False)),
)
def test_a_key_of_root_that_the_users_group_may_read_is_used(owner: int, mode: int, is_read: bool) -> None:
    """As an orchestrator mounts a secret: an ordinary user owns no file there."""
    with tempfile.TemporaryDirectory() as folder:  # one that another user reaches
        Path(folder).chmod(0o755)
        path = Path(folder) / "key.pem"
        KEY.save(path)
        os.chown(path, owner, 12345)
        path.chmod(mode)
        os.setegid(12345)
        os.seteuid(12345)
        try:
            if is_read:
                assert SigningKey.load(path).verify_key == KEY.verify_key
            else:
                with pytest.raises(KeyFileError, match="accessible to other users"):
                    SigningKey.load(path)
        finally:
            os.seteuid(0)
            os.setegid(0)


def test_a_file_that_holds_no_such_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(KeyFileError, match=r"key\.pem: No such file"):
        SigningKey.load(path)
    foreign = pem_of(ec.generate_private_key(ec.SECP256R1()))
    for data in (b"", b"junk", foreign, KEY.to_pem()[:-40]):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match=r"key\.pem: expected an Ed25519 private key in PEM \(PKCS #8\)"):
            SigningKey.load(path)
    path.write_bytes(pem_of(ed25519.Ed25519PrivateKey.generate(), b"password"))
    with pytest.raises(KeyFileError, match="without a password, got an encrypted"):
        SigningKey.load(path)
    with pytest.raises(KeyFileError, match="32 bytes, got 31"):
        SigningKey(bytes(31))


def test_no_private_key_is_shown() -> None:
    shown = repr(KEY) + str(KEY) + f"{KEY}"
    assert bytes(range(32)).hex() not in shown
    assert KEY.verify_key.hex in shown
