"""A source that repeats is caught; each mistake is planted in the process that draws, too."""

import sys

import pytest

from simulator.audits.sources import PROGRAM, source_checks
from tests.simulator.audits import planted

PLANTED = (
    "import pytest; from tests.simulator.audits import planted; from simulator.audits import sources; "
    "planted.{}(pytest.MonkeyPatch()); sources.main()"
)


def held(*program: str) -> list[bool]:
    return [check.holds for check in source_checks(program)]


@pytest.mark.usefixtures("sources_on_path")
def test_honest_noise_never_repeats() -> None:
    assert held(*PROGRAM) == [True, True, True]


@pytest.mark.usefixtures("sources_on_path")
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (planted.seed_by_a_constant, [False, False, False]),
        (planted.seed_once_a_process, [True, False, False]),
        (planted.stream_across_a_fork, [True, False, False]),
    ],
)
def test_a_seeded_source_is_caught(
    mistake: planted.Plant, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert held(sys.executable, "-c", PLANTED.format(mistake.__name__)) == expected
