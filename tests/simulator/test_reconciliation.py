"""Every delta by its id."""

from aggregator.fold.fold import Verdict, VerdictKind
from hushsum.delta import DeltaId
from simulator.reconciliation import Sent, reconcile

SENT = {Sent("a", DeltaId(1, 0)), Sent("a", DeltaId(1, 1)), Sent("b", DeltaId(2, 0))}


def verdicts(*seen: tuple[VerdictKind, str, DeltaId]) -> list[Verdict]:
    return [Verdict(kind, None, id, client, 5, position) for position, (kind, client, id) in enumerate(seen)]


COUNTED, DUPLICATE, LATE = VerdictKind.COUNTED, VerdictKind.DUPLICATE, VerdictKind.LATE
ALL = [(COUNTED, sent.client_id, sent.id) for sent in sorted(SENT)]


def test_what_was_sent_and_counted_once_is_in_order() -> None:
    result = reconcile(SENT, verdicts(*ALL, (DUPLICATE, "a", DeltaId(1, 0))))
    assert (result.counted, result.lost, result.double_counted, result.duplicates) == (3, 0, 0, 1)


def test_what_was_not_counted_is_lost_whatever_else_became_of_it() -> None:
    result = reconcile(SENT, verdicts(*ALL[1:], (LATE, *ALL[0][1:])))
    assert (result.counted, result.lost) == (2, 1)


def test_what_was_counted_twice_is_seen() -> None:
    result = reconcile(SENT, verdicts(*ALL, ALL[2]))
    assert (result.counted, result.double_counted) == (3, 1)


def test_the_same_id_of_another_client_is_another_delta() -> None:
    result = reconcile(SENT, verdicts(*ALL[1:], (COUNTED, "b", DeltaId(1, 0))))
    assert (result.counted, result.lost, result.double_counted) == (2, 1, 1)
