"""Who holds which records."""

import numpy as np
import pytest

from simulator.shares import deal

VALUES = np.arange(60_000.0).reshape(30_000, 2)


def test_every_record_is_dealt_once_and_in_its_order() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None)
    assert np.array_equal(np.concatenate([batch for share in shares for batch in share.batches]), VALUES)
    assert len({share.client_id for share in shares}) == len(shares) == 200


def test_there_are_as_many_deltas_as_were_asked_for() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None)
    assert sum(len(share.batches) for share in shares) >= 5000


def test_shares_are_uneven() -> None:
    sizes = sorted(share.records for share in deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None))
    assert sizes[-1] > 20 * sizes[0]
    assert sizes[0] >= 1


def test_no_client_has_more_than_the_bound() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=5)
    assert max(share.records for share in shares) == 5
    assert sum(len(share.batches) for share in shares) == sum(share.records for share in shares)


@pytest.mark.parametrize("clients", (1, 3, 30))
def test_nobody_is_without_a_record(clients: int) -> None:
    shares = deal(VALUES[:3], clients=clients, deltas=5000, seed=3, records_per_client=None)
    assert [share.records for share in shares] == ([3] if clients == 1 else [1, 1, 1])


def test_the_seed_decides_who_has_much() -> None:
    first, again, other = (
        [share.records for share in deal(VALUES, clients=20, deltas=100, seed=seed, records_per_client=None)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("bound", (None, 5))
def test_labels_go_with_their_records(bound: int | None) -> None:
    labels = tuple(None if row % 7 == 0 else str(row) for row in VALUES[:, 0])
    shares = deal(VALUES, clients=20, deltas=100, seed=1, records_per_client=bound, labels=labels)
    assert all(share.labels is not None for share in shares)
    dealt = [label for share in shares for batch in share.labels or () for label in batch]
    records = np.concatenate([batch for share in shares for batch in share.batches])
    assert dealt == [None if row % 7 == 0 else str(row) for row in records[:, 0]]
    assert [tuple(map(len, share.labels or ())) for share in shares] == [
        tuple(map(len, share.batches)) for share in shares
    ]
    without = deal(VALUES, clients=20, deltas=100, seed=1, records_per_client=bound)
    assert all(share.labels is None for share in without)
