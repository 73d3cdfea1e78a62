"""Entries that are admitted together, and messages that are opened together: what each alone would be."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from aggregator.errors import LogError
from aggregator.fold.fold import Fold
from aggregator.log.entries import PlainMessages, SignedMessages, admit, admit_all
from aggregator.model import PositionedEntry
from aggregator.observability.metrics import Metrics
from hushsum.errors import Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, RefusedEntry, SealEntry
from hushsum_proto.many_entries import joined
from tests.aggregator.deltas import client_of, tally, tally_plan

PLAN = tally_plan(counters=200)
HOUR_MS = 3_600_000
W = 472_222
NOW_MS = W * HOUR_MS + HOUR_MS // 2
ALICE = client_of(0, 1)
KEY = SigningKey(bytes(32))
DELTAS = [entry_to_bytes(DeltaEntry(ALICE, tally(PLAN, n, W, 1, n), NOW_MS)) for n in range(40)]
OTHERS = (
    entry_to_bytes(SealEntry(PLAN.id, W, NOW_MS)),
    entry_to_bytes(CohortSumEntry(PLAN.id, W, bytes(32), 3, b"sum", NOW_MS)),
    entry_to_bytes(DeltaEntry("\u00e9", tally(PLAN, 1, W, 1, 1), NOW_MS)),
    entry_to_bytes(DeltaEntry(ALICE, tally(PLAN, 1, W + 5, 1, 1), NOW_MS)),
    entry_to_bytes(DeltaEntry(ALICE, b"no delta", NOW_MS)),
    DELTAS[0][:-1],
    b"",
)
NEWER = b"\x08\x63" + DELTAS[0][2:]


@pytest.fixture(params=("fast", "plain"), autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "fast":
        pytest.importorskip("numba")
    monkeypatch.setenv("HUSHSUM_KERNELS", request.param)


def stretch_of(rng: np.random.Generator, roles: Sequence[Role | None], unusual: float) -> list[PositionedEntry]:
    """Some entries by some signers, of which so large a part is no delta that this version writes, or none at all."""
    made: list[PositionedEntry] = []
    for place in range(rng.integers(1, 40)):
        role = roles[int(rng.integers(len(roles)))]
        if rng.random() < unusual / 3:
            made.append(PositionedEntry(3 * place, b"", role, NOW_MS, Reason.UNSIGNED))
            continue
        data = OTHERS[int(rng.integers(len(OTHERS)))] if rng.random() < unusual else DELTAS[place]
        made.append(PositionedEntry(3 * place, data, role, NOW_MS if rng.random() < 0.9 else None))
    return made


@pytest.mark.parametrize("roles", ((None,), (Role.GATEWAY, Role.RELEASER), tuple(Role), (None, Role.PRODUCER)))
@pytest.mark.parametrize("unusual", (0.0, 0.3))
def test_a_stretch_is_admitted_as_its_entries_are(
    roles: Sequence[Role | None], unusual: float, seed: int, rng: np.random.Generator
) -> None:
    for _ in range(60):
        entry_batch = stretch_of(rng, roles, unusual)
        expected = [(each.position, admit(PLAN, 0, each)) for each in entry_batch]
        assert list(admit_all(PLAN, 0, entry_batch)) == expected, f"seed {seed}"


def test_a_problem_is_told_whatever_bytes_stand_with_it() -> None:
    entry_batch = [PositionedEntry(place, data) for place, data in enumerate(DELTAS)]
    entry_batch[5] = entry_batch[5]._replace(problem=Reason.UNSIGNED)
    refused = dict(admit_all(PLAN, 0, entry_batch))[5]
    assert refused == admit(PLAN, 0, entry_batch[5])
    assert isinstance(refused, RefusedEntry)


@pytest.mark.parametrize("place", (0, 20, 39))
@pytest.mark.parametrize("signer", (None, Role.GATEWAY, Role.PRODUCER))
def test_an_entry_of_a_newer_format_stops_a_stretch_wherever_it_stands(signer: Role | None, place: int) -> None:
    entry_batch = [PositionedEntry(n, NEWER if n == place else data, signer, NOW_MS) for n, data in enumerate(DELTAS)]
    with pytest.raises(LogError, match=f"partition 3, entry {place}: "):
        admit_all(PLAN, 3, entry_batch)


def test_nothing_is_admitted_of_nothing() -> None:
    assert admit_all(PLAN, 0, ()) == []


def test_messages_are_opened_together_as_each_is_alone(seed: int, rng: np.random.Generator) -> None:
    messages = PlainMessages()
    some: tuple[Callable[[], bytes], ...] = (
        lambda: messages.write(0, DELTAS[:1], seals=False),
        lambda: messages.write(0, [rng.bytes(5)], seals=True),
        lambda: messages.write(0, DELTAS[: rng.integers(2, 9)], seals=False),
        lambda: messages.write(0, DELTAS[:1], seals=False)[:-1],
        lambda: b"",
    )
    together = 0
    for _ in range(300):
        kinds = rng.integers(0, rng.choice([2, 5]), rng.integers(0, 12))
        values = [some[kind]() for kind in kinds]
        data, spans = joined(values)
        found = messages.find(data, spans)
        if found is not None:
            held = [
                (number, place, each)
                for number, value in enumerate(values)
                for place, each in enumerate(messages.read(0, value).entries)
            ]
            assert [(n, place, data[first:last]) for n, place, first, last in found.tolist()] == held, f"seed {seed}"
            together += 1
    assert together == 0 or together > 50


def test_nothing_of_signed_messages_is_told_before_each_tag_is_checked() -> None:
    directory = Directory({"key": DirectoryKey("key", Role.GATEWAY, KEY.verify_key)})
    signed = SignedMessages(PLAN.id, directory, KEY)
    data, spans = joined([signed.write(0, DELTAS[:1], seals=False)] * 9)
    assert signed.find(data, spans) is None
    assert PlainMessages().find(data, spans) is None


def test_verdicts_are_counted_by_kind(rng: np.random.Generator) -> None:
    entries = list(admit_all(PLAN, 0, stretch_of(rng, (None,), 0.3)))
    entries += [(1000 + position, entry) for position, entry in entries]  # and every delta again
    verdicts, metrics = Fold(PLAN, 0, 1).apply(entries, 5000), Metrics()
    metrics.folded(2, 5000, verdicts)
    listed = Metrics()
    listed.folded(2, 5000, list(verdicts))
    for kind in {verdict.kind for verdict in verdicts}:
        labels = {"partition": "2", "verdict": kind.value}
        counted = metrics.registry.get_sample_value("hushsum_folded_total", labels)
        assert counted == sum(verdict.kind is kind for verdict in verdicts)
        assert counted == listed.registry.get_sample_value("hushsum_folded_total", labels)
