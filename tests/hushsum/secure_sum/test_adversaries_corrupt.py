"""Corrupt clients: wrong shares dealt or revealed, vectors of anything; and shares that a server alters."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushsum.secure_sum import key_agreement
from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.client_secrets import ClientSecrets
from hushsum.secure_sum.messages import SEALED_BYTES, Kind
from hushsum.secure_sum.server import Done, Failed
from tests.hushsum.secure_sum import planted
from tests.hushsum.secure_sum.fleets import Recorded, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Kill, Meddle, Network, Passing

VICTIM, CORRUPT = "device-04", "device-02"
HEAD = 74
#: Four shares open a seed, of seven.
SMALL = small_parameters(8, gone=2, corrupt=1, threshold=4)
_BEFORE_ITS_VECTOR = Kill(ClientStep.SENT, before=True)
Sealed = list[bytes]


def exact(network: Network, shift: int = 0) -> bool:
    """Whether the first counter of the sum is off by this much, modulo 2^ℓ, and all others are right."""
    assert isinstance(network.end, Done)
    words = network.fleet.parameters.words
    counters, counts = words.centred(network.end.sum.words)
    expected = network.fleet.sum_of(network.end.sum.survivors)
    expected[0][0] += shift
    shifted = words.centred(words.of(*expected))
    return bool((counters == shifted[0]).all() and (counts == shifted[1]).all())


def altered(sealed: Sealed) -> Sealed:
    return [bytes([sealed[0][0] ^ 1]) + sealed[0][1:], *sealed[1:]]


def tag_altered(sealed: Sealed) -> Sealed:
    return [*sealed[:-1], sealed[-1][:-1] + bytes([sealed[-1][-1] ^ 128])]


def truncated(sealed: Sealed) -> Sealed:
    return [*sealed[:-1], sealed[-1][:-1]]


def exchanged(sealed: Sealed) -> Sealed:
    return [sealed[1], sealed[0], *sealed[2:]]


def omitted(sealed: Sealed) -> Sealed:
    return sealed[1:]


def repeated(sealed: Sealed) -> Sealed:
    return [sealed[0], sealed[0], *sealed[2:]]


ALTERED = pytest.mark.parametrize("lie", [altered, tag_altered, truncated, exchanged, omitted, repeated])


def on_its_way(kind: Kind, of: str, lie: Callable[[Sealed], Sealed], *, to_server: bool, start: int = 0) -> Meddle:
    def meddle(each: Passing) -> list[Passing]:
        if (each.kind, each.client_id, each.to_server) != (kind, of, to_server):
            return [each]
        head, body = each.data[: HEAD + start], each.data[HEAD + start :]
        sealed = [body[at : at + SEALED_BYTES] for at in range(0, len(body), SEALED_BYTES)]
        return [replace(each, data=head + b"".join(lie(sealed)))]

    return meddle


@ALTERED
def test_shares_that_the_server_alters_are_refused_by_who_is_to_keep_them(
    lie: Callable[[Sealed], Sealed], rng: np.random.Generator
) -> None:
    """It drops out, unspent; the others' sum is exact."""
    network = Network(fleet(SMALL, rng), meddle=on_its_way(Kind.INBOX, VICTIM, lie, to_server=False))
    network.run()
    assert set(network.refused) == {VICTIM}
    assert VICTIM not in network.spent
    assert exact(network)


@ALTERED
def test_shares_that_their_owner_seals_badly_are_refused_before_anything_of_their_keepers_is_spent(
    lie: Callable[[Sealed], Sealed], rng: np.random.Generator
) -> None:
    meddle = on_its_way(Kind.SHARES, CORRUPT, lie, to_server=True, start=32)
    network = Network(fleet(SMALL, rng), meddle=meddle)
    network.run()
    assert (CORRUPT in network.dropped) if lie in (truncated, omitted) else network.refused
    assert not set(network.refused) & set(network.spent)
    if isinstance(network.end, Done):
        assert exact(network)


def test_were_tags_dropped_exchanged_shares_would_be_kept_and_revealed(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.tags_dropped(monkeypatch)
    network = Network(fleet(SMALL, rng), meddle=on_its_way(Kind.INBOX, VICTIM, exchanged, to_server=False))
    network.run()
    assert network.said(VICTIM, Kind.UNMASKING)


def dealing(own: ClientSecrets, altered: Callable[[int, bytes], bytes]) -> None:
    """A corrupt client deals other shares than those of its seeds, well sealed: by the neighbour's place, from 0."""
    honest = own.sealed_shares

    def sealed_shares() -> list[bytes]:
        check, *sealed = honest()
        dealt = []
        for place, ((neighbour_id, keys), message) in enumerate(zip(own._near(), sealed, strict=True)):
            key = key_agreement.share_key(own._exchange, keys.exchange, own._occasion, own._client_id, neighbour_id)
            dealt.append(key_agreement.seal(key, altered(place, key_agreement.unseal(key, message))))
        return [check, *dealt]

    own.sealed_shares = sealed_shares  # type: ignore[method-assign]  # this one client is corrupt


@pytest.mark.parametrize("wrong", [1, 2, 3])
@pytest.mark.parametrize("gone", [False, True], ids=["survives", "drops"])
def test_wrong_shares_dealt_by_a_corrupt_client_cost_nothing_while_enough_are_right(
    wrong: int, gone: bool, rng: np.random.Generator
) -> None:
    """Well sealed, so that no keeper sees it; the server tries others, whether it needs one seed or the other."""
    made = fleet(SMALL, rng, share=Recorded)
    dealing(made.clients[CORRUPT]._secrets, lambda place, pair: bytes(32) if place < wrong else pair)
    network = Network(made, kills={CORRUPT: _BEFORE_ITS_VECTOR} if gone else {})
    network.run()
    assert exact(network)
    assert isinstance(network.end, Done)
    assert (CORRUPT in network.end.sum.survivors) is not gone


def test_of_wrong_shares_alone_nothing_comes_and_the_round_fails_cleanly(rng: np.random.Generator) -> None:
    made = fleet(SMALL, rng)
    dealing(made.clients[CORRUPT]._secrets, lambda place, _: bytes([place]) * 32)
    network = Network(made)
    end = network.run()
    assert end == Failed("too few right shares were revealed", spent=8, again=False, suspects=(CORRUPT,))


@pytest.mark.parametrize("gone", [0, 4])
@pytest.mark.parametrize("framed", range(8))
def test_a_dealer_of_wrong_shares_names_nobody_who_holds_them(framed: int, gone: int, rng: np.random.Generator) -> None:
    """Of the 15 or 19 who reveal, 12 open a secret: its own comes out unless too many are framed: it is named."""
    dealer = "device-19"
    made = fleet(small_parameters(20, gone=4, corrupt=4), rng, share=Recorded)
    dealing(made.clients[dealer]._secrets, lambda place, pair: bytes(32) if place < framed else pair)
    kills = {f"device-{number:02}": Kill(ClientStep.CONSENTED, before=False) for number in range(10, 10 + gone)}
    network = Network(made, kills=kills)
    network.run()
    if isinstance(network.end, Done):
        assert exact(network)
        assert network.end.sum.liars == ()
    else:
        assert network.end == Failed("too few right shares were revealed", 20, again=False, suspects=(dealer,))


def test_dealers_of_wrong_shares_cost_no_other_secret_its_shares(rng: np.random.Generator) -> None:
    """Of 15 who reveal 12 must be right: were the 6 who hold a wrong share believed no more, nothing would come out."""
    made = fleet(small_parameters(20, gone=4, corrupt=4), rng, share=Recorded)
    for dealer, framed in (("device-18", range(3)), ("device-19", range(3, 6))):
        secrets = made.clients[dealer]._secrets
        dealing(secrets, lambda place, pair, framed=framed: bytes(32) if place in framed else pair)  # type: ignore[misc]  # a default has no type there
    kills = {f"device-{number}": Kill(ClientStep.CONSENTED, before=False) for number in range(10, 14)}
    network = Network(made, kills=kills)
    network.run()
    assert exact(network)
    assert isinstance(network.end, Done)
    assert network.end.sum.liars == ()


def test_who_contradicts_more_dealers_than_may_be_corrupt_is_named_and_nobody_else(rng: np.random.Generator) -> None:
    """Two corrupt dealers cannot make an honest holder look so, but a liar does."""
    made = fleet(small_parameters(9, gone=2, corrupt=2, threshold=4), rng, share=Recorded)
    for dealer in ("device-07", "device-08"):
        secrets = made.clients[dealer]._secrets
        dealing(secrets, lambda place, pair: bytes(32) if place == 0 else pair)  # of device-00
    network = Network(made, meddle=revealing({"device-01": lambda body: bytes(len(body))}))
    network.run()
    assert exact(network)
    assert isinstance(network.end, Done)
    assert network.end.sum.liars == ("device-01",)


def revealing(lies: dict[str, Callable[[bytes], bytes]]) -> Meddle:
    """These clients reveal something else."""

    def meddle(each: Passing) -> list[Passing]:
        if not each.to_server or each.kind is not Kind.UNMASKING or each.client_id not in lies:
            return [each]
        return [replace(each, data=each.data[:HEAD] + lies[each.client_id](each.data[HEAD:]))]

    return meddle


@pytest.mark.parametrize(
    "liars", [("device-00",), ("device-07",), ("device-00", "device-01"), ("device-02", "device-05")]
)
def test_wrong_shares_of_a_few_are_found_out_and_the_sum_is_exact(
    liars: tuple[str, ...], rng: np.random.Generator
) -> None:
    network = Network(fleet(SMALL, rng), meddle=revealing(dict.fromkeys(liars, lambda body: bytes(len(body)))))
    network.run()
    assert exact(network)
    assert isinstance(network.end, Done)
    assert set(network.end.sum.liars) <= set(liars)


@pytest.mark.parametrize("liars", [5, 8])
def test_wrong_shares_of_too_many_end_in_no_sum(liars: int, rng: np.random.Generator) -> None:
    lies: dict[str, Callable[[bytes], bytes]] = {
        f"device-{number:02}": lambda body, number=number: bytes([number + 1]) * len(body)  # type: ignore[misc]  # a lambda's default has no type
        for number in range(liars)
    }
    network = Network(fleet(SMALL, rng), meddle=revealing(lies))
    end = network.run()
    assert isinstance(end, Failed)
    assert (end.spent, end.again) == (8, False)


@pytest.mark.parametrize("shift", [1, -1, 2**17 - 1, 2**17, 12345])
def test_a_vector_outside_the_plans_range_shifts_the_sum_by_itself_and_does_nothing_else(
    shift: int, rng: np.random.Generator
) -> None:
    """Any shift that there is modulo 2^18: as poisoned records could, but in one counter at will."""
    words = SMALL.words

    def meddle(each: Passing) -> list[Passing]:
        if not each.to_server or each.kind is not None or each.client_id != CORRUPT:
            return [each]
        vector = words.unpack(each.data)
        vector[:1] += np.array([shift], np.int64).view(np.uint64).astype(words.dtype)
        return [replace(each, data=words.pack(vector))]

    made = fleet(SMALL, rng, share=Recorded)
    network = Network(made, meddle=meddle, kills={VICTIM: _BEFORE_ITS_VECTOR})
    network.run()
    assert exact(network, shift)
    assert not network.refused
    assert not network.dropped


@pytest.mark.parametrize("size", [-1, 1])
def test_a_vector_of_another_length_costs_its_sender_its_place(size: int, rng: np.random.Generator) -> None:
    def meddle(each: Passing) -> list[Passing]:
        if not each.to_server or each.kind is not None or each.client_id != CORRUPT:
            return [each]
        return [replace(each, data=each.data[:size] if size < 0 else each.data + bytes(size))]

    network = Network(fleet(SMALL, rng), meddle=meddle)
    network.run()
    assert CORRUPT in network.dropped
    assert exact(network)


def test_a_contribution_that_was_not_committed_to_costs_the_round_but_nobody_anything(rng: np.random.Generator) -> None:
    meddle = on_its_way(Kind.OPENING, CORRUPT, lambda body: [bytes(32) for _ in body], to_server=True)
    network = Network(fleet(SMALL, rng), meddle=meddle)
    end = network.run()
    assert network.dropped == {CORRUPT: "a contribution that its client has not committed to"}
    assert end == Failed("a client was lost before all had answered: open", spent=0, again=True)
    assert not network.spent
