"""Single cases, each with what must come of it: those that were asked for, and those that were found."""

from dataclasses import replace

import pytest

from tests.simulation.operations import Op, Schedule
from tests.simulation.world import World, run_world

SEEDS = (2, 3)  # one for each plan: single records, and clients with a bound


def adds(*times_s: float, device: str = "device-1", count: int = 4) -> tuple[Op, ...]:
    return tuple(Op(at_s, "add", device, float(count)) for at_s in times_s)


def everybody(*times_s: float) -> tuple[Op, ...]:
    return tuple(op for number in range(4) for op in adds(*times_s, device=f"device-{number}"))


def cluster(seed: int, *ops: Op, partitions: int = 2) -> Schedule:
    return Schedule(seed, cluster=True, partitions=partitions, ops=tuple(sorted(ops, key=lambda op: op.at_s)))


def clean(schedule: Schedule) -> World:
    """Runs it; nothing may be found, and whatever lay in wait for a call must have met one."""
    world = World(schedule)
    result = run_world(world)
    assert not result.failed, result
    assert result.counted, "nothing was counted"
    waiting = {op.who for op in schedule.ops if op.what in {"hold", "lose_reply", "move"}}
    assert waiting <= {*world.lines["store"].sprung}, "the call that was waited for never came"
    return world


def takings(world: World, *what: str) -> int:
    """How often these were taken, by whomever."""
    return sum(world.books.takings[each] for each in what)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at_s", [0.5, 3.9, 5.0])
def test_the_database_commits_a_checkpoint_and_the_reply_is_lost(seed: int, at_s: float) -> None:
    clean(cluster(seed, *everybody(0.4, 2.0, 3.8), *(Op(at_s, "lose_reply", "checkpoint") for _ in range(2))))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("call", ["reserve_outcome", "commit_outcome", "publish", "mark_closing", "acquire_lease"])
def test_the_database_commits_a_step_of_a_release_and_the_reply_is_lost(seed: int, call: str) -> None:
    clean(cluster(seed, *everybody(0.5, 4.5), Op(0.0, "lose_reply", call)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("call", ["reserve_step", "commit_step", "publish"])
@pytest.mark.parametrize("what", ["lose_reply", "hold"])
def test_a_step_of_a_cumulative_sequence_is_drawn_once(seed: int, call: str, what: str) -> None:
    schedule = cluster(seed, *everybody(0.5, 4.5), Op(0.0, what, call, 7.0))
    world = clean(replace(schedule, cumulative=True))
    assert len(world.books.steps) >= 2
    assert world.books.drawn.keys() == world.books.steps.keys()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at_s", [0.5, 2.0, 5.0])
def test_a_worker_sleeps_through_its_session_and_goes_on_in_mid_checkpoint(seed: int, at_s: float) -> None:
    world = clean(cluster(seed, *everybody(0.4, 1.9, 3.0, 4.5), Op(at_s, "hold", "checkpoint", 5.0)))
    calm = clean(cluster(seed, *everybody(0.4, 1.9, 3.0, 4.5)))
    taken = [takings(each, "partition 0", "partition 1") for each in (world, calm)]
    assert taken[0] > taken[1], "nobody took its partition over"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("call", ["reserve_outcome", "commit_outcome", "publish", "mark_closing"])
def test_a_releaser_sleeps_through_its_lease_and_goes_on_after_another_has_released(seed: int, call: str) -> None:
    world = clean(cluster(seed, *everybody(0.5, 4.5), Op(0.0, "hold", call, 7.0)))
    assert takings(world, "the lease") > 1, "nobody took its lease over"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at_s", [0.6, 2.5, 5.0])
def test_partitions_move_between_a_read_and_its_checkpoint(seed: int, at_s: float) -> None:
    moves = [Op(at_s + 0.3 * number, "move", "checkpoint") for number in range(4)]
    clean(cluster(seed, *everybody(0.5, 2.4, 4.0), *moves, partitions=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_deltas_race_with_the_seal_of_their_window(seed: int) -> None:
    racing = [
        Op(4.8 + 0.05 * number, "add_before", f"device-{number % 4}", 2.0) for number in range(10)
    ]  # the seal is due at 5 s
    clean(cluster(seed, *everybody(3.9), *racing, Op(4.0, "slow_sync", "", 0.1), Op(4.9, "slow", "store", 0.3)))


@pytest.mark.parametrize("seed", SEEDS)
def test_idle_partitions_close_their_windows_too(seed: int) -> None:
    clean(cluster(seed, *adds(0.5), partitions=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_delta_comes_to_both_gateways(seed: int) -> None:
    copies = (Op(0.0, "copies", "", 1.0), Op(0.0, "breaks", "", 0.3))
    clean(cluster(seed, *copies, *everybody(0.5, 3.9, 4.4)))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_from_an_older_backup_releases_nothing_more(seed: int, alone: bool) -> None:
    ops = (*everybody(0.5, 4.5, 8.5), Op(8.0, "restore", "", 6.0))  # the first window was released at 5 s
    schedule = Schedule(seed, cluster=not alone, partitions=2, ops=tuple(sorted(ops, key=lambda op: op.at_s)))
    world = World(schedule)
    result = run_world(world)
    assert not result.failed, result
    assert world.books.frozen, "no receipt was missing: the store was not old enough"
    assert len(world.books.shown) == 1


def test_a_worker_that_slept_finds_its_entries_forgotten() -> None:
    """Found by schedule 1067: the log is whole, the sleeper alone is behind; nobody has anything to restore."""
    result = run_world(World(cluster(1067, Op(0.542, "hold", "checkpoint", 5.517), partitions=3)))
    assert not result.failed, result


@pytest.mark.parametrize("seed", SEEDS)
def test_a_service_that_stops_on_a_full_disk_counts_everything_at_its_next_start(seed: int) -> None:
    """Found by schedule 1726: what it could not store, its log still holds."""
    ops = (*everybody(0.5), *everybody(2.0), Op(2.4, "full", "store", 0.1), Op(2.42, "stop", "all-1"), *everybody(4.5))
    world = clean(Schedule(seed, cluster=False, partitions=2, ops=ops))
    assert takings(world, "the lease") > 1, "nobody started it again"


def test_a_store_that_is_restored_a_second_time_and_lacks_nothing_releases_again() -> None:
    """Found by schedule 6180: the first copy lacked an outcome that has a receipt, the second one holds it."""
    ops = (*everybody(0.5, 4.5), Op(8.746, "restore", "", 5.754), Op(11.187, "restore", "", 2.665))
    world = World(Schedule(6180, cluster=False, partitions=1, ops=ops))
    result = run_world(world)
    assert not result.failed, result
    assert not world.books.frozen
    assert len(world.books.shown) > 1, "nothing was released after it"


def test_what_was_on_its_way_to_a_store_does_not_come_to_its_older_copy() -> None:
    """Found by schedule 2799: a restored database knows no connection of a process that was killed."""
    ops = (Op(4.786, "hold", "checkpoint", 1.88), Op(5.707, "restore", "", 3.744))
    assert not run_world(World(Schedule(2799, cluster=True, partitions=2, ops=ops))).failed


# ------------------------------------------------------------------------------------- sinks of receipts, and restores


def restored(seed: int, who: str, *more: Op, is_cluster: bool) -> World:
    """A back-up of before the first release is restored after it: store and log, or all of it but one sink."""
    ops = sorted((*everybody(0.5, 4.5), Op(8.0, "restore", who, 5.0), *more), key=lambda op: op.at_s)
    return clean(Schedule(seed, cluster=is_cluster, partitions=2, ops=tuple(ops)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_cluster", [False, True])
@pytest.mark.parametrize("who", ["receipts", "copy"])
def test_a_back_up_is_restored_with_one_sink_and_the_other_one_keeps_every_window_from_being_drawn(
    seed: int, who: str, is_cluster: bool
) -> None:
    world = restored(seed, who, is_cluster=is_cluster)
    assert world.books.frozen
    assert world.books.shown.keys() <= {window for _, _, window in world.books.receipts}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_cluster", [False, True])
@pytest.mark.parametrize("who", ["receipts", "copy"])
def test_a_sink_is_lost_and_nothing_is_drawn(seed: int, who: str, is_cluster: bool) -> None:
    lost = Op(7.0, "lose_sink", who)
    world = clean(Schedule(seed, cluster=is_cluster, partitions=2, ops=(*everybody(0.5), lost, *everybody(8.0))))
    assert world.books.frozen
    assert len(world.books.drawn) == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_cluster", [False, True])
def test_lost_outcomes_are_marked_after_a_restore_and_releasing_goes_on(seed: int, is_cluster: bool) -> None:
    world = restored(seed, "log", Op(8.5, "mark_lost"), *everybody(9.0), is_cluster=is_cluster)
    assert world.books.marked
    assert not world.books.frozen
    assert len(world.books.shown) > world.books.marked
