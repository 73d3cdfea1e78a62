"""Whole rounds of cohorts from pools: what more corrupt clients cost in neighbours, time and noise."""

from math import sqrt

from benchmarks.report import Row
from benchmarks.secure.round_server import measured
from benchmarks.secure.round_setting import Setting
from hushsum.privacy.cohort_draw import corrupt_drawn

TITLE = (
    "Whole rounds of cohorts of N from a pool of P with c corrupt clients in the fleet, D counters, 10 % of the "
    "clients vanishing at their upload, one process for the server and two for the clients, on 2 cores: neighbours, "
    "CPU seconds of the server and of one client, and the noise beside that of a cohort of which nobody is corrupt"
)
#: N, D, P, c
SETTINGS = (
    (100, 1_000_000, 1000, 10),
    (100, 1_000_000, 1000, 50),
    (100, 1_000_000, 1000, 100),
    (100, 1_000_000, 10_000, 100),
    (100, 1_000_000, 10_000, 1000),
    (1000, 100_000, 10_000, 100),
    (1000, 100_000, 10_000, 500),
    (1000, 100_000, 10_000, 1000),
)
SETTINGS_QUICK = ((30, 10_000, 1000, 10),)


def measure(*, quick: bool) -> list[Row]:
    """One row for each N, D, P and c."""
    return [_measure(*setting) for setting in (SETTINGS_QUICK if quick else SETTINGS)]


def _measure(size: int, counters: int, pool: int, corrupt: int) -> Row:
    setting = Setting.new(size, counters, corrupt=corrupt_drawn(pool, corrupt, size))
    figures, cohort = measured(setting), setting.cohort
    return {
        "N": size,
        "D": counters,
        "P": pool,
        "c": corrupt,
        "corrupt of a cohort": setting.corrupt,
        "degree": cohort.degree,
        "threshold": cohort.threshold,
        "server CPU s": figures.server_seconds,
        "a client's CPU s": figures.clients_seconds / size,
        "seconds": figures.seconds,
        "noise/none corrupt": sqrt(cohort.survivors_min / cohort.honest_survivors),
    }
