"""The journal: one JSON object a line for machines, and nothing of what clients sent."""

import io
import json
import logging
from pathlib import Path

import pytest

from aggregator.logs import CALM_S, FailureLog, journal, write_journal
from tests.plans import small_plan
from tests.services import Contributor, RawClient, config_of, service_of

PLAN = small_plan()


@pytest.fixture
def lines() -> io.StringIO:
    return io.StringIO()


def test_a_line_is_a_json_object_with_its_time_level_and_part(lines: io.StringIO) -> None:
    write_journal("info", "json", lines)

    journal("gateway").info("listening", port=7443)
    journal("gateway").debug("not this")

    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {"event": "listening", "level": "info", "part": "gateway", "port": 7443}


def test_people_get_plain_lines(lines: io.StringIO) -> None:
    write_journal("warning", "console", lines)

    journal("gateway").warning("slow", seconds=2)

    assert "slow" in lines.getvalue()
    assert "seconds=2" in lines.getvalue()
    assert "\x1b" not in lines.getvalue(), "no colours where nobody sees them"


async def test_no_line_names_a_client_or_what_it_sent(lines: io.StringIO, tmp_path: Path) -> None:
    write_journal("debug", "json", lines)
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc, "carol") as client:
        _, delta = Contributor(PLAN, 0xABCDEF).delta()
        await client.submit(PLAN.id, [delta, delta[:-1]])
        await client.seal()
        await client.release()

    said = {each["event"]: each for each in map(json.loads, lines.getvalue().splitlines())}
    assert {"listening", "released", "stopping", "stopped"} <= said.keys()
    assert said["released"]["plan"] == said["listening"]["plan"] == PLAN.hex_id[:12]
    for secret in ("carol", "abcdef", str(0xABCDEF)):
        assert secret not in lines.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_error_is_written_as_its_kind_and_its_places_without_its_words_or_a_local_variable(
    lines: io.StringIO, form: str
) -> None:
    write_journal("info", form, lines)
    secret = "of a" + " client"

    def fail(held: str) -> None:
        try:
            dict[str, int]()[held.upper()]
        except KeyError as error:
            raise ValueError(held) from error

    try:
        fail(secret)
    except ValueError as error:
        journal("grpc").error("call failed", exc_info=error)
        journal("grpc").exception("call failed")
        FailureLog(journal("commits")).failed(0.0, "log appends fail", error)

    for shown in ("ValueError", "KeyError", "in fail", "log appends fail"):
        assert shown in lines.getvalue()
    for hidden in (secret, secret.upper()):
        assert hidden not in lines.getvalue()


def test_what_a_library_below_says_is_written_without_what_it_put_into_it(
    lines: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    write_journal("debug", "json", lines)
    try:
        raise KeyError("alice")
    except KeyError:
        logging.getLogger("grpc._cython.cygrpc").exception("Unexpected [%s] from [%s]", "alice", "ipv4:127.0.0.1:5")
        logging.getLogger("asyncio").warning("Task of alice was destroyed")

    first, second = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (first["event"], first["kind"]) == ("Unexpected [%s] from [%s]", "KeyError")
    assert second["part"] == "asyncio"
    captured = capfd.readouterr()
    for hidden in ("alice", "127.0.0.1"):
        assert hidden not in lines.getvalue() + captured.out + captured.err


def levels(lines: io.StringIO) -> list[str]:
    return [json.loads(line)["level"] for line in lines.getvalue().splitlines()]


def test_trouble_that_lasts_is_a_line_at_its_beginning_and_one_at_its_end(lines: io.StringIO) -> None:
    write_journal("info", "json", lines)
    spell = FailureLog(journal("commits"))
    spell.worked(0.0, "works again")
    for second in range(100):
        spell.failed(float(second), "fails", TimeoutError("no answer"), passes=True)
        spell.worked(second + 0.5, "works again")  # of another's, between two that failed
    assert levels(lines) == ["warning"]
    spell.worked(99.0 + CALM_S, "works again")
    spell.worked(100.0 + CALM_S, "works again")
    assert levels(lines) == ["warning", "info"]
    spell.failed(300.0, "fails", TimeoutError("no answer"), passes=True)
    assert levels(lines) == ["warning", "info", "warning"]


def test_another_kind_of_trouble_is_told_too_and_what_does_not_pass_is_an_error(lines: io.StringIO) -> None:
    write_journal("info", "json", lines)
    spell = FailureLog(journal("commits"))
    for _ in range(9):
        spell.failed(1.0, "fails", TimeoutError(), passes=True)
        spell.failed(1.0, "fails", OSError("disk full"))
    assert levels(lines) == ["warning", "error"]
    assert "disk full" in lines.getvalue()
