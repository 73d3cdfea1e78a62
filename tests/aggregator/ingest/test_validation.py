import random

import pytest

from aggregator.errors import RefusedError
from aggregator.ingest.validation import ExactDeltas, id_in
from hushsum.delta import Delta, DeltaId, read_header
from hushsum.errors import DeltaError, Reason
from tests.plans import small_plan
from tests.services import Contributor

PLAN = small_plan(sketch={"rows": 5, "buckets": 16})
OTHER = small_plan(sketch={"rows": 6, "buckets": 16})


def damaged(data: bytes, choice: random.Random) -> bytes:
    kind = choice.randrange(4)
    if kind == 0:
        return data
    if kind == 1:
        return data[: choice.randrange(len(data))]
    if kind == 2:
        return data + bytes(choice.randrange(1, 3))
    place = choice.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << choice.randrange(8)]) + data[place + 1 :]


def unpacked(data: bytes) -> Delta | Reason:
    try:
        return Delta.unpack(data, PLAN)
    except DeltaError as error:
        return error.reason


def test_what_is_seen_of_many_deltas_is_what_unpacking_says_of_each(seed: int) -> None:
    choice = random.Random(seed)
    contributor = Contributor(PLAN, 2**63 + 5)
    deltas = [damaged(contributor.delta(choice.randrange(1, 9))[1], choice) for _ in range(400)]
    policy, good = ExactDeltas(PLAN), 0
    for data in deltas:  # learns the sizes of runs
        try:
            policy.records(data)
        except DeltaError:
            continue

    for data, seen in zip(deltas, policy.parse_many(deltas), strict=True):
        expected = unpacked(data)
        if isinstance(expected, Reason):
            assert seen is None
            with pytest.raises(DeltaError) as raised:
                policy.records(data)
            assert raised.value.reason is expected
        else:
            good += 1
            assert seen == (expected.id, expected.window, expected.records)
    assert 0 < good < len(deltas)


def test_without_compiled_loops_every_delta_is_to_be_asked_about() -> None:
    plain = ExactDeltas(PLAN)
    plain._reader = None
    data = Contributor(PLAN, 1).delta(3)[1]
    assert plain.parse_many([data, b""]) == [None, None]
    assert plain.records(data) == 3


def test_a_first_look_names_the_size_the_plan_and_the_header() -> None:
    id, data = Contributor(PLAN, 3).delta()
    policy = ExactDeltas(PLAN)
    assert policy.parse(PLAN.id, data, None) == (id, read_header(data).window, None)
    with pytest.raises(RefusedError, match="plan"):
        policy.parse(OTHER.id, data, None)
    with pytest.raises(RefusedError, match="plan"):
        policy.parse(PLAN.id, Contributor(OTHER, 3).delta()[1], None)
    with pytest.raises(DeltaError) as raised:
        policy.parse(PLAN.id, bytes(PLAN.delta_bytes_max + 1), None)
    assert raised.value.reason is Reason.TOO_LARGE


def test_an_id_is_read_where_the_header_is_whole() -> None:
    id, data = Contributor(PLAN, 7).delta()
    assert id_in(data) == id == DeltaId(7, 0)
    assert id_in(data[:20]) is None
