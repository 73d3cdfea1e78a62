"""Private randomness comes from the operating system, fresh at every read; the replayable source says what it is."""

import hashlib
import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from hushsum import entropy as module
from hushsum.entropy import Entropy, KeyedEntropy, OsEntropy, ReplayableEntropy
from hushsum.public_random import PublicSeed, PublicStream

KEY = bytes(range(32))


@pytest.mark.parametrize("size", (0, 1, 64, 65, 4096, 2**20 + 1, 3 * 2**20))
@pytest.mark.parametrize("source", (OsEntropy(), KeyedEntropy(KEY), ReplayableEntropy(b"k")), ids=repr)
def test_a_read_gives_exactly_what_was_asked_for(source: Entropy, size: int) -> None:
    assert len(source.read(size)) == size


@pytest.mark.parametrize("source", (OsEntropy(), KeyedEntropy(KEY), ReplayableEntropy(b"k")), ids=repr)
def test_a_negative_read_is_refused(source: Entropy) -> None:
    with pytest.raises(ValueError, match="-1"):
        source.read(-1)


@pytest.mark.parametrize("size", (32, 1000))
def test_no_two_reads_of_the_operating_system_are_alike(size: int) -> None:
    source = OsEntropy()
    assert len({source.read(size) for _ in range(50)}) == 50


def test_a_long_read_is_the_key_stream_of_one_fresh_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def recorded(size: int) -> bytes:
        asked.append(size)
        return bytes(range(size))

    monkeypatch.setattr(os, "urandom", recorded)
    expected = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16))).encryptor().update(bytes(3 * 2**20))
    assert OsEntropy().read(3 * 2**20) == expected
    assert OsEntropy().read(64) == bytes(range(64))
    assert asked == [32, 64]


def test_the_operating_systems_source_keeps_nothing() -> None:
    source = OsEntropy()
    source.read(1000)
    assert vars(source) == {}


@given(cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_a_keyed_stream_does_not_depend_on_how_reads_are_cut(cuts: list[int]) -> None:
    source = KeyedEntropy(KEY)
    assert b"".join(source.read(cut) for cut in cuts) == KeyedEntropy(KEY).read(sum(cuts))


def test_a_keyed_stream_is_aes_256_under_the_labelled_hash_of_its_key_alone() -> None:
    hashed = hashlib.sha256(b"hushsum/v1/keyed-entropy\0" + KEY).digest()
    stream = Cipher(algorithms.AES(hashed), modes.CTR(bytes(16))).encryptor().update(bytes(1000))
    assert KeyedEntropy(KEY).read(1000) == stream
    assert ReplayableEntropy(KEY).read(1000) != stream


def test_a_keyed_source_keeps_neither_its_key_nor_shows_it() -> None:
    source = KeyedEntropy(KEY)
    source.read(100)
    shown = f"{source!r} {source} {vars(source)}"
    assert KEY not in vars(source).values()
    assert not any(part in shown for part in (repr(KEY)[2:20], KEY.hex()[:12]))


@pytest.mark.parametrize(
    ("key", "error"),
    [(b"", ValueError), (KEY[1:], ValueError), (KEY + b"0", ValueError), ("a" * 32, TypeError), (7, TypeError)],
)
def test_what_is_no_key_of_32_bytes_is_refused_and_not_repeated(key: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^the key of a KeyedEntropy (is|has) (32 )?bytes, got (int|str|\d+)$"):
        KeyedEntropy(key)  # type: ignore[arg-type]  # of the wrong type on purpose


@given(key=st.binary(max_size=40), cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_a_replayable_stream_does_not_depend_on_how_reads_are_cut(key: bytes, cuts: list[int]) -> None:
    source = ReplayableEntropy(key)
    assert b"".join(source.read(cut) for cut in cuts) == ReplayableEntropy(key).read(sum(cuts))


def test_a_replayable_stream_is_the_same_for_ever() -> None:
    assert ReplayableEntropy(b"hushsum").read(16).hex() == "afa0542cfca8ac188d80f30c5b5a3b99"


def test_streams_of_different_keys_differ() -> None:
    assert ReplayableEntropy(b"a").read(32) != ReplayableEntropy(b"b").read(32)


def test_a_replayable_source_says_that_it_is_not_private_and_hides_its_key() -> None:
    text = repr(ReplayableEntropy(b"key material"))
    assert "NOT PRIVATE" in text
    assert "key material" not in text


@pytest.mark.parametrize("key", (7, "seed", None, PublicSeed(7)), ids=repr)
def test_a_seed_is_no_key(key: object) -> None:
    with pytest.raises(TypeError, match="bytes"):
        ReplayableEntropy(key)  # type: ignore[arg-type]  # of the wrong type on purpose


def test_public_and_private_randomness_cannot_be_exchanged() -> None:
    assert isinstance(OsEntropy(), Entropy)
    assert isinstance(KeyedEntropy(KEY), Entropy)
    assert not isinstance(PublicSeed(7), Entropy)
    assert not isinstance(PublicStream(PublicSeed(7), "purpose"), Entropy)
    for private in (OsEntropy(), ReplayableEntropy(b"k")):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            PublicStream(private, "purpose").words(1)  # type: ignore[arg-type]  # of the wrong type on purpose


def test_the_labelled_hash_separates_the_stream_from_other_uses_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ReplayableEntropy(b"k").read(16)
    monkeypatch.setattr(module, "REPLAYABLE_ENTROPY", b"another/label\0")
    assert ReplayableEntropy(b"k").read(16) != before
