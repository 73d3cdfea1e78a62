"""The spool binds one presence a window, for ever, and takes records for windows in which it stands alone."""

from pathlib import Path

import numpy as np
import pytest

from edge_client.changes import Add, Attend, Bound, Remove, Unbound
from edge_client.errors import SpoolError
from edge_client.lanes import id_of, presence_number
from edge_client.spool import Spool
from edge_client.tallies import Sends, Tallies
from hushsum.delta import Delta, DeltaId, presence
from tests.edge_client.spools import opened
from tests.plans import small_plan

PLAN = small_plan(privacy={"participation": "public"})


def pack(window: int, id: DeltaId) -> bytes:
    return presence(PLAN, window=window, id=id).pack(PLAN)


def attend(*windows: int) -> Attend:
    return Attend(range(windows[0], windows[-1] + 1), pack)


def records(window: int, deltas: int = 1, records_max: int | None = None) -> Add:
    """Deltas of one record each, as far as a spool looks at them."""
    unbound = tuple(Unbound(1, lambda id: Delta(PLAN.id, window, id, ()).pack(PLAN)) for _ in range(deltas))
    return Add(window, unbound, 0, records_max, attended=True)


def numbers(results: list[object]) -> list[list[int]]:
    return [[bound.sequence for bound in result] if isinstance(result, tuple) else [] for result in results]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def public(path: Path, bytes_max: int = 2**30) -> Spool:
    spool = opened(path, bytes_max=bytes_max)
    spool.keep_presences()
    return spool


def commit(spool: Spool, *changes: Add | Attend | Remove) -> list[list[int]]:
    return numbers([*spool.commit(changes)])


def test_a_presence_is_bound_once_a_window_in_one_transaction_or_over_many_and_over_restarts(path: Path) -> None:
    spool = public(path)
    assert commit(spool, attend(3, 4), attend(4, 5)) == [[-1, -2], [-3]]
    assert commit(spool, attend(3, 5)) == [[]]
    commit(spool, Remove(-2, "acknowledged"))
    before = spool.load(-10, 10, 2**20)
    spool.close()
    again = public(path)
    assert commit(again, attend(3, 6)) == [[-4]]
    assert again.load(-10, 10, 2**20) == (Bound(-4, pack(6, id_of(-4, again.stream))), *before)
    assert again.unanswered() == (-4, -3, -1)
    assert Tallies.of(again.tallies, Sends()) == Tallies(deltas=4, presences=4, acknowledged=1)
    again.close()


def test_records_are_taken_for_a_window_with_a_presence_and_left_out_for_any_other(path: Path) -> None:
    spool = public(path)
    assert commit(spool, records(7), attend(7), records(7, 2), records(8)) == [[], [-1], [0, 1], []]
    commit(spool, Remove(-1, "acknowledged"), Remove(0, "acknowledged"))
    assert commit(spool, records(7), records(6)) == [[2], []]
    tallies = Tallies.of(spool.tallies, Sends())
    assert (tallies.records, tallies.records_absent, tallies.deltas, tallies.presences) == (3, 3, 4, 1)
    spool.close()


def test_what_is_left_out_uses_up_no_bound_of_records(path: Path) -> None:
    spool = public(path)
    assert commit(spool, records(7, records_max=1), attend(7), records(7, records_max=1)) == [[], [-1], [0]]
    spool.close()


@pytest.mark.parametrize("answer", ["late", "unknown", "refused:window_in_past", "refused:window_not_open"])
def test_with_a_presence_that_is_not_counted_go_the_records_of_its_window_alone(path: Path, answer: str) -> None:
    spool = public(path)
    commit(spool, attend(1, 2), records(1), records(2), records(1))
    assert commit(spool, Remove(-1, answer), records(1), records(2)) == [[0, 2], [], [3]]
    assert spool.unanswered() == (-2, 1, 3)
    assert commit(spool, attend(1, 2)) == [[]]
    tallies = Tallies.of(spool.tallies, Sends())
    assert (tallies.withdrawn, tallies.records_absent) == (2, 1)
    assert tallies.deltas == 6 == tallies.withdrawn + 1 + len(spool.unanswered())
    spool.close()


@pytest.mark.parametrize("answer", ["acknowledged", "counted"])
def test_with_a_presence_that_is_counted_goes_nothing(path: Path, answer: str) -> None:
    spool = public(path)
    commit(spool, attend(1), records(1))
    assert commit(spool, Remove(-1, answer), records(1)) == [[], [1]]
    assert commit(spool, attend(1)) == [[]]
    spool.close()


def test_a_presence_too_early_for_the_service_is_bound_anew_under_a_new_number(path: Path) -> None:
    spool = public(path)
    commit(spool, attend(1), records(1))
    assert commit(spool, Remove(-1, "refused:window_in_future"), records(1)) == [[0], []]
    spool.close()
    again = public(path)
    assert commit(again, attend(1), records(1)) == [[-2], [1]]
    assert commit(again, attend(1)) == [[]]
    again.close()


def test_a_spool_that_is_full_of_records_takes_a_presence_all_the_same(path: Path) -> None:
    spool = public(path, bytes_max=200)
    commit(spool, attend(1))
    while commit(spool, records(1)) != [[]]:
        pass
    assert commit(spool, attend(2, 9)) == [list(range(-2, -10, -1))]
    spool.close()


@pytest.mark.parametrize("table", ["deltas", "presences"])
def test_a_presence_and_that_it_is_bound_are_written_together_or_not_at_all(path: Path, table: str) -> None:
    spool = public(path)
    commit(spool, attend(1))
    spool._database.execute(f"CREATE TRIGGER torn BEFORE INSERT ON {table} BEGIN SELECT raise(ABORT, 'torn'); END")
    with pytest.raises(SpoolError, match="torn"):
        spool.commit([attend(2)])
    spool._database.execute("DROP TRIGGER torn")
    assert spool.unanswered() == (-1,)
    assert commit(spool, attend(1, 2)) == [[-2]]
    spool.close()


def test_a_spool_of_a_protected_plan_has_no_room_for_presences(path: Path) -> None:
    spool = opened(path)
    with pytest.raises(SpoolError, match="no such table"):
        spool.commit([attend(1)])
    spool.close()


def steps(spool: Spool, *changes: Add | Attend | Remove) -> int:
    """How many steps of SQLite's virtual machine a transaction takes."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    spool._database.set_progress_handler(step, 1)
    commit(spool, *changes)
    spool._database.set_progress_handler(None, 1)
    return count


def test_no_presence_takes_longer_in_a_spool_that_is_full_of_records(path: Path) -> None:
    taken = []
    for index, full in enumerate((0, 1500)):
        spool = public(path.with_suffix(f".{index}"))
        commit(spool, attend(1, 5), records(5))
        commit(spool, *[records(4, 50) for _ in range(full // 50)])
        taken.append([steps(spool, *map(Remove, (-1, -2), ("late", "acknowledged"))), steps(spool, attend(6, 7))])
        spool.close()
    assert taken[0] == taken[1]


@pytest.mark.parametrize("reopened", [False, True])
def test_the_records_of_a_window_are_found_wherever_they_are_among_those_of_others(
    path: Path, rng: np.random.Generator, reopened: bool
) -> None:
    spool = public(path)
    commit(spool, attend(0, 9))
    windows = [int(window) for window in rng.integers(0, 10, 300)]
    for start in range(0, 300, 30):
        commit(spool, *map(records, windows[start : start + 30]))
    answered = {int(number) for number in rng.choice(300, 100, replace=False)}
    commit(spool, *(Remove(number, "acknowledged") for number in answered))
    if reopened:
        spool.close()
        spool = public(path)
    held = spool._level.bytes
    gone = 0
    for window in range(10):
        expected = [number for number in range(300) if windows[number] == window and number not in answered]
        gone += len(expected)
        assert commit(spool, Remove(presence_number(window), "late")) == [expected]
    assert gone == 200
    assert spool.is_empty
    assert held > 0
    spool.close()


def test_a_transaction_that_fails_leaves_no_trace_of_where_its_records_are(path: Path) -> None:
    spool = public(path)
    commit(spool, attend(1, 2))
    spool._database.execute("CREATE TRIGGER torn BEFORE INSERT ON deltas BEGIN SELECT raise(ABORT, 'torn'); END")
    with pytest.raises(SpoolError, match="torn"):
        spool.commit([records(1)])
    spool._database.execute("DROP TRIGGER torn")
    assert commit(spool, records(2)) == [[0]]  # the number that the other would have had
    assert commit(spool, Remove(-1, "late")) == [[]]
    assert spool.unanswered() == (-2, 0)
    spool.close()


def test_what_was_answered_long_ago_is_forgotten_and_no_number_is_given_twice(path: Path) -> None:
    spool = public(path)
    assert commit(spool, attend(0, 4), records(1), records(2)) == [list(range(-1, -6, -1)), [0], [1]]
    commit(spool, Remove(-2, "acknowledged"), Remove(-3, "late"), Remove(-4, "refused:window_in_past"))
    commit(spool, Remove(-5, "acknowledged"))
    count = "SELECT count(*), max(sequence) FROM presences"
    assert commit(spool, attend(1027, 1027)) == [[-6]]
    assert spool._database.execute(count).fetchone() == (4, 5)  # of those below 3, window 0 alone has no answer
    commit(spool, Remove(-6, "acknowledged"))
    assert commit(spool, attend(10_000, 10_000)) == [[-7]]
    assert spool._database.execute("SELECT window FROM presences ORDER BY window").fetchall() == [(0,), (10_000,)]
    assert commit(spool, attend(10_000, 10_000), records(1)) == [[], []]
    assert commit(spool, Remove(-7, "acknowledged"), Remove(-1, "acknowledged")) == [[], []]
    spool.close()
    again = public(path)
    assert commit(again, attend(30_000, 30_000)) == [[-8]]
    assert again._database.execute(count).fetchone() == (1, 7)
    assert again.unanswered() == (-8, 0)
    again.close()


def test_the_records_of_a_presence_without_an_answer_are_found_however_old_it_is(path: Path) -> None:
    spool = public(path)
    commit(spool, attend(0, 1), records(0), records(1))
    commit(spool, Remove(-2, "acknowledged"))
    commit(spool, attend(5_000, 5_000))
    assert commit(spool, Remove(-1, "late")) == [[0]]
    assert spool.unanswered() == (-3, 1)
    spool.close()
