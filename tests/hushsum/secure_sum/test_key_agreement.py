"""Keys of a round: known answers, what each is bound to, and sealed shares."""

import itertools

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from hushsum import labels
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import key_agreement
from hushsum.secure_sum.key_agreement import KeyPair, Occasion

SEED = bytes(range(16))
OCCASION = Occasion(bytes([1]) * 32, 7, bytes([2]) * 32, bytes([3]) * 32)
OTHER_OCCASIONS = {
    "another plan": Occasion(bytes([9]) * 32, 7, bytes([2]) * 32, bytes([3]) * 32),
    "another window": Occasion(bytes([1]) * 32, 8, bytes([2]) * 32, bytes([3]) * 32),
    "another round": Occasion(bytes([1]) * 32, 7, bytes([9]) * 32, bytes([3]) * 32),
    "another transcript": Occasion(bytes([1]) * 32, 7, bytes([2]) * 32, bytes([9]) * 32),
}
ANN, BOB = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))
# Every point of small order below 2^255 - 19, and 0 and 1 written as larger numbers (RFC 7748, 6.1; libsodium's list).
SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]
FROZEN = {
    "pair mask": "bb05fe2d12725828",
    "pair mask, another pair": "13d0ba4468c0c753",
    "share": "ff58825b63a068d3",
    "share, the other way": "8eb5bd4580ecd618",
    "self mask": "b99ed14d79fc8009",
    "self mask, another client": "793ce739a8f89aab",
    "check": "45c40fe68722596e",
    "mask key": "8edc0ee8bc270ccc",
    "mask key, another client": "b6da78b8309f030b",
}


def every_key(occasion: Occasion) -> dict[str, bytes]:
    """One of each kind that a round has."""
    return {
        "pair mask": key_agreement.pair_mask_key(ANN, BOB.public, occasion, "ann", "bob"),
        "pair mask, another pair": key_agreement.pair_mask_key(ANN, BOB.public, occasion, "ann", "cyd"),
        "share": key_agreement.share_key(ANN, BOB.public, occasion, "ann", "bob"),
        "share, the other way": key_agreement.share_key(ANN, BOB.public, occasion, "bob", "ann"),
        "self mask": key_agreement.self_mask_key(SEED, occasion, "ann"),
        "self mask, another client": key_agreement.self_mask_key(SEED, occasion, "bob"),
        "check": key_agreement.self_mask_check(SEED, occasion, "ann"),
        "mask key": key_agreement.mask_key_pair(SEED, occasion, "ann").public,
        "mask key, another client": key_agreement.mask_key_pair(SEED, occasion, "bob").public,
    }


@pytest.mark.parametrize(
    ("secret", "salt", "info", "size", "expected"),
    [
        (
            "0b" * 22,
            bytes(range(13)).hex(),
            bytes(range(0xF0, 0xFA)).hex(),
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)).hex(),
            bytes(range(0x60, 0xB0)).hex(),
            bytes(range(0xB0, 0x100)).hex(),
            82,
            (
                "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac78272"
                "71cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
            ),
        ),
        (
            "0b" * 22,
            "",
            "",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
    ids=["A.1", "A.2", "A.3"],
)
def test_hkdf_is_that_of_rfc_5869(secret: str, salt: str, info: str, size: int, expected: str) -> None:
    found = key_agreement.hkdf(bytes.fromhex(secret), bytes.fromhex(info), size, salt=bytes.fromhex(salt))
    assert found == bytes.fromhex(expected)


@given(st.binary(max_size=64), st.binary(max_size=200), st.integers(1, 200))
def test_hkdf_is_that_of_the_cryptography_package(secret: bytes, info: bytes, size: int) -> None:
    assert key_agreement.hkdf(secret, info, size) == HKDF(hashes.SHA256(), size, None, info).derive(secret)


def test_hkdf_refuses_sizes_that_it_cannot_give() -> None:
    for size in (0, 8161):
        with pytest.raises(ValueError, match="8160"):
            key_agreement.hkdf(b"secret", b"", size)


def test_what_is_agreed_on_is_that_of_rfc_7748() -> None:
    """Section 6.1."""
    alice = KeyPair(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    expected = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.shared(bob.public).hex() == bob.shared(alice.public).hex() == expected


@pytest.mark.parametrize("public", SMALL_ORDER)
def test_a_public_key_that_makes_the_secret_known_to_all_is_refused(public: str) -> None:
    with pytest.raises(SecureSumError, match="X25519"):
        ANN.shared(bytes.fromhex(public))


@pytest.mark.parametrize(
    "public", [b"", BOB.public[:31], BOB.public + b"\0", BOB.public[:31] + bytes([BOB.public[31] | 128])]
)
def test_bytes_that_are_no_public_key_or_another_writing_of_one_are_refused(public: bytes) -> None:
    with pytest.raises(SecureSumError, match="X25519"):
        ANN.shared(public)


def test_both_sides_of_a_pair_derive_the_same_keys() -> None:
    for one, other in (("ann", "bob"), ("bob", "ann")):
        mine = key_agreement.pair_mask_key(ANN, BOB.public, OCCASION, one, other)
        assert mine == key_agreement.pair_mask_key(BOB, ANN.public, OCCASION, other, one)
        mine = key_agreement.share_key(ANN, BOB.public, OCCASION, one, other)
        assert mine == key_agreement.share_key(BOB, ANN.public, OCCASION, one, other)


def test_both_keys_of_a_pair_at_once_are_those_of_either_direction() -> None:
    to_bob = key_agreement.share_key(ANN, BOB.public, OCCASION, "ann", "bob")
    to_ann = key_agreement.share_key(ANN, BOB.public, OCCASION, "bob", "ann")
    assert key_agreement.share_keys(ANN, BOB.public, OCCASION, "ann", "bob") == (to_bob, to_ann)
    assert key_agreement.share_keys(BOB, ANN.public, OCCASION, "bob", "ann") == (to_ann, to_bob)


def test_a_key_pair_is_made_again_from_its_seed() -> None:
    """By whoever put the seed of a client who dropped out together again."""
    pair = key_agreement.mask_key_pair(SEED, OCCASION, "ann")
    again = key_agreement.mask_key_pair(SEED, Occasion(OCCASION.plan_id, OCCASION.window, OCCASION.round_id), "ann")
    assert pair.public == again.public
    assert pair.shared(BOB.public) == again.shared(BOB.public)


def test_no_two_purposes_clients_or_directions_have_a_key_in_common() -> None:
    keys = every_key(OCCASION)
    assert len(set(keys.values())) == len(keys)


def test_the_keys_of_suite_1_stay_what_they_are() -> None:
    """Frozen: clients of every version must agree, and a label must not be taken for another."""
    assert {name: key[:8].hex() for name, key in every_key(OCCASION).items()} == FROZEN


@pytest.mark.parametrize("other", OTHER_OCCASIONS)
def test_every_key_is_another_in(other: str) -> None:
    """Were the round not in the derivation, one stream would mask two vectors, and their difference be in the open.

    The mask key alone is advertised before there is a transcript.
    """
    here, there = every_key(OCCASION), every_key(OTHER_OCCASIONS[other])
    same = {name for name in here if here[name] == there[name]}
    assert same == ({"mask key", "mask key, another client"} if other == "another transcript" else set())


def test_every_bit_of_a_seed_matters() -> None:
    whole = int.from_bytes(SEED, "big")
    seeds = [SEED, *((whole ^ 1 << bit).to_bytes(16, "big") for bit in range(128))]
    assert len({key_agreement.self_mask_key(seed, OCCASION, "ann") for seed in seeds}) == 129
    assert len({key_agreement.mask_key_pair(seed, OCCASION, "ann").public for seed in seeds}) == 129
    assert len({key_agreement.self_mask_check(seed, OCCASION, "ann") for seed in seeds}) == 129


def test_every_bit_of_what_is_agreed_on_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folding to 32 bits is a mistake of published code."""
    derived = set()
    for bit in range(256):
        shared = (1 << bit).to_bytes(32, "big")
        monkeypatch.setattr(KeyPair, "shared", lambda _self, _public, shared=shared: shared)
        derived.add(key_agreement.pair_mask_key(ANN, BOB.public, OCCASION, "ann", "bob"))
    assert len(derived) == 256


def test_keys_of_neighbours_are_not_made_before_the_graph_is_drawn() -> None:
    before = Occasion(OCCASION.plan_id, OCCASION.window, OCCASION.round_id)
    assert before.drawn(OCCASION.transcript) == OCCASION
    with pytest.raises(AssertionError, match="transcript"):
        key_agreement.self_mask_key(SEED, before, "ann")


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_a_seed_of_another_length_is_refused(size: int) -> None:
    for derive in (key_agreement.self_mask_key, key_agreement.self_mask_check, key_agreement.mask_key_pair):
        with pytest.raises(SecureSumError, match="16 bytes"):
            derive(bytes(size), OCCASION, "ann")


def test_ids_and_transcripts_of_another_length_are_refused() -> None:
    for plan, round_id, transcript in ((0, 32, 32), (32, 31, 32), (32, 32, 16), (33, 32, 0)):
        with pytest.raises(ValueError, match="32 bytes"):
            Occasion(bytes(plan), 7, bytes(round_id), bytes(transcript))


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_two_lists_of_parts_are_framed_alike(one: list[bytes], other: list[bytes]) -> None:
    same = key_agreement.framed(labels.PAIR_MASK, *one) == key_agreement.framed(labels.PAIR_MASK, *other)
    assert same == (one == other)


def test_the_sealed_shares_of_one_are_read_by_the_other() -> None:
    key = key_agreement.share_key(ANN, BOB.public, OCCASION, "ann", "bob")
    sealed = key_agreement.seal(key, b"shares", b"for bob")
    assert len(sealed) == 6 + key_agreement.TAG_BYTES
    assert key_agreement.unseal(key, sealed, b"for bob") == b"shares"


def test_sealed_shares_that_were_altered_cut_or_meant_for_another_are_refused() -> None:
    """Without the tag an altered share would be kept, and open a mask that is another's."""
    key = key_agreement.share_key(ANN, BOB.public, OCCASION, "ann", "bob")
    sealed = key_agreement.seal(key, bytes(32), b"for bob")
    altered = [bytes([*sealed[:at], sealed[at] ^ 1, *sealed[at + 1 :]]) for at in range(len(sealed))]
    for wrong in [*altered, *(sealed[:size] for size in range(len(sealed))), sealed + b"\0"]:
        with pytest.raises(SecureSumError, match="altered"):
            key_agreement.unseal(key, wrong, b"for bob")
    keys = [key_agreement.share_key(BOB, ANN.public, OCCASION, "bob", "ann"), bytes(32)]
    for other, associated in [*itertools.product(keys, [b"for bob"]), (key, b"for cyd"), (key, b"")]:
        with pytest.raises(SecureSumError, match="altered"):
            key_agreement.unseal(other, sealed, associated)


def test_a_new_pair_takes_its_private_half_from_the_entropy_alone_and_does_not_show_it() -> None:
    assert KeyPair.generate(ReplayableEntropy(b"a")).public == KeyPair.generate(ReplayableEntropy(b"a")).public
    assert KeyPair.generate(OsEntropy()).public != KeyPair.generate(OsEntropy()).public
    assert repr(ANN) == f"KeyPair(of {ANN.public.hex()})"
