"""Messages of a secure sum: each kind by itself, and what a client's machine makes of them."""

import re
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from hushsum.entropy import ReplayableEntropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import bitmap_bytes, bitmap_of, flags_of
from hushsum.secure_sum.client import ClientStep, ServerMessage
from hushsum.secure_sum.key_agreement import KEY_BYTES
from hushsum.secure_sum.messages import Kind, pack, pack_advertisement, round_of, unpack, unpack_advertisement
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import Roster
from hushsum.signing import SIGNATURE_BYTES
from tests.fuzz.pieces import Layout, Piece, mutator
from tests.fuzz.target import Kit, Target, Verdict, expect, judge, plainly
from tests.hushsum.secure_sum.fleets import fleet, small_parameters
from tests.hushsum.secure_sum.joined import Network
from tests.hushsum.secure_sum.stages import VICTIM, Stage

_HEAD: Final = 74
_HEAD_CUTS: Final = (0, 1, 2, 34, 42, 74)
_FIRST: Final = re.compile("format|another (plan|window|round)|unknown kind|expected at least")
_PART: Final = 32
_ERRORS: Final = (SecureSumError,)
assert KEY_BYTES == _PART


@cache
def rounds() -> tuple[Stage, ...]:
    """Honest rounds that came to their end: on a ring, and on a complete graph."""
    ring = small_parameters(10, gone=3, degree=4, threshold=3, window_survivors=1)
    return tuple(_round(parameters) for parameters in (ring, small_parameters(8, gone=2)))


def _round(parameters: RoundParameters) -> Stage:
    made = fleet(
        parameters,
        np.random.default_rng(7),
        entropy=lambda client_id: ReplayableEntropy(b"again" + client_id.encode()),
    )
    network = Network(made)
    network.run()
    return Stage(parameters, network)


def said() -> list[bytes]:
    """One message of each kind of each round."""
    found = []
    for stage in rounds():
        by_kind = {passing.kind: passing.data for passing in stage.network.passed if passing.kind is not None}
        expect(set(by_kind) | {Kind.INVITATION} == set(Kind), "a round in which each kind is said")
        found += [*by_kind.values(), pack(stage.parameters, Kind.INVITATION)]
    return found


def layout(data: bytes) -> list[Piece]:
    """A message: its head, seldom, and parts of 32 bytes; ids with their lengths."""
    pieces = [Piece(data[one:end], weight=0.1) for one, end in pairwise(_HEAD_CUTS)]
    body, at = data[_HEAD:], 0
    kind = data[1]
    if kind == Kind.ROSTER:
        pieces.append(Piece(body[:2]))
        at = 2
    if kind in {Kind.ROSTER, Kind.ADVERTISEMENT}:
        while at + 2 < len(body) and (size := int.from_bytes(body[at : at + 2], "big")) <= len(body) - at - 2:
            pieces.append(Piece(body[at + 2 : at + 2 + size], length=2, weight=2))
            at += 2 + size
            for _ in range(4):
                pieces.append(Piece(body[at : at + _PART]))
                at += _PART
            if kind == Kind.ADVERTISEMENT:
                break
    pieces += [Piece(body[place : place + _PART]) for place in range(at, len(body), _PART)]
    return pieces


_LAYOUT: Final[Layout] = layout


def _parameters_of(data: bytes) -> RoundParameters:
    """Of one round or the other: they share their ids, so that the length of a message decides."""
    return rounds()[len(data) % 2].parameters


def _sizes(kind: Kind, parameters: RoundParameters) -> tuple[tuple[int, int], ...] | None:
    """How many parts of which size each kind has, as both machines cut them; None of kinds with ids or bitmaps."""
    n, k = parameters.members_max, parameters.degree
    return {
        Kind.OPENING: ((1, messages.CONTRIBUTION_BYTES),),
        Kind.OPENINGS: ((n, messages.CONTRIBUTION_BYTES), (k, SIGNATURE_BYTES)),
        Kind.SHARES: ((1, messages.HASH_BYTES), (k, messages.SEALED_BYTES)),
        Kind.INBOX: ((k, messages.SEALED_BYTES),),
        Kind.GRANT: (),
        Kind.INVITATION: (),
        Kind.CONSENT: ((1, SIGNATURE_BYTES),),
        Kind.UNMASKING: ((k, messages.SHARE_BYTES),),
        Kind.QUORUM: ((1, bitmap_bytes(n)),),
    }.get(kind)


def _read(data: bytes, parameters: RoundParameters, directory: Any) -> tuple[Kind, Any, bytes]:
    kind, body = unpack(parameters, data)
    if kind is Kind.ADVERTISEMENT:
        advertisement = unpack_advertisement(body)
        return kind, advertisement, pack_advertisement(parameters, advertisement)
    if kind is Kind.ROSTER:
        roster = Roster.unpack(body, directory)
        return kind, roster, pack(parameters, kind, Roster.of(list(zip(roster.ids, roster.keys, strict=True)), None)[1])
    if kind is Kind.SURVIVORS:
        flags = flags_of(body, parameters.members_max)
        chosen = np.flatnonzero(flags).tolist()
        return kind, None, pack(parameters, kind, bitmap_of(chosen, parameters.members_max))
    if kind is Kind.INVITATION:
        expect(round_of(data, parameters.plan_id, parameters.window) == parameters.round, "another round")
    sizes = _sizes(kind, parameters)
    parts = [] if sizes is None else messages.cut(body, kind, *sizes)
    return kind, None, pack(parameters, kind, *(part for found in parts for part in found))


def _kinds() -> Kit:
    """Samples are those that the parts of their round fit; of the signatures of a quorum a machine knows the number."""
    directory = rounds()[0].network.fleet.directory

    def attempt(data: bytes) -> Verdict:
        last: Verdict = None
        for stage in rounds():
            for book in (None, directory):
                verdict, value = judge(partial(_read, parameters=stage.parameters, directory=book), SecureSumError)(
                    data
                )
                if verdict is None:
                    expect(value[2] == data, f"a message {value[0].name} of other bytes")
                    return None
                last = verdict
        return last

    samples = [data for data in said() if attempt(data) is None]
    expect({data[1] for data in samples} >= set(Kind) - {Kind.QUORUM}, "a sample of each kind")
    return Kit(samples, attempt, mutator(_LAYOUT), first=_FIRST)


_STEPS: Final = {
    Kind.ROSTER: ClientStep.ADVERTISED,
    Kind.OPENINGS: ClientStep.OPENED,
    Kind.INBOX: ClientStep.SHARED,
    Kind.GRANT: ClientStep.READY,
    Kind.SURVIVORS: ClientStep.SENT,
    Kind.QUORUM: ClientStep.CONSENTED,
}


def _machine() -> Kit:
    """Each message to a client that waits for that kind: it goes on, or refuses for good."""
    stages = rounds()[1:]
    samples = [stage.told(kind) for stage in stages for kind in _STEPS]

    def attempt(data: bytes) -> Verdict:
        step = _STEPS.get(Kind(data[1]) if len(data) > 1 and data[1] in set(Kind) else Kind.ROSTER, ClientStep.OPENED)
        client = stages[len(data) % len(stages)].at(step)
        verdict, _ = judge(lambda data: client.handle(ServerMessage(data)), SecureSumError)(data)
        refused = client.step is ClientStep.REFUSED
        expect(refused == (verdict is not None), "a client that refuses and goes on, or the other way round")
        return verdict

    expect(all(attempt(sample) is None for sample in samples), f"messages that {VICTIM} takes")
    return Kit(samples, attempt, mutator(_LAYOUT), first=_FIRST)


def _invitations() -> Kit:
    parameters = rounds()[0].parameters

    def read(data: bytes) -> bytes:
        return round_of(data, parameters.plan_id, parameters.window)

    def check(data: bytes, _: bytes) -> None:
        expect(data[0] == 1 and data[1] == Kind.INVITATION and len(data) == _HEAD, "no invitation")

    return Kit([pack(parameters, Kind.INVITATION)], plainly(read, SecureSumError, check=check), mutator(_LAYOUT))


TARGETS: Final = (
    Target(
        "secure-message",
        (
            "hushsum.secure_sum.messages",
            "hushsum.secure_sum.roster.Roster.unpack",
            "hushsum.secure_sum.bitmaps.flags_of",
        ),
        _kinds,
        4,
    ),
    Target("secure-client", ("hushsum.secure_sum.client.ClientRound.handle",), _machine, 0),
    Target("secure-invitation", ("hushsum.secure_sum.messages.round_of",), _invitations, 1),
)
