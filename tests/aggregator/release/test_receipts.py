import json
import os
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from aggregator.errors import ReceiptsError
from aggregator.logs import write_journal
from aggregator.model import StoredOutcome
from aggregator.release.receipts import Receipt, ReceiptsFile, read_line
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.privacy.events import TUMBLING, ClaimedEvent, Spend
from hushsum.releases import spend_of
from tests.doubles import ManualRuntime
from tests.plans import small_plan

PLAN = small_plan()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipts.jsonl"


async def opened(path: Path) -> ReceiptsFile:
    return await ReceiptsFile.open(path, ManualRuntime(), ReplayableEntropy(b"receipts"))


def content(path: Path) -> bytes:
    return path.read_bytes()


def plant(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def release(window: int, mark: int = 0) -> StoredOutcome:
    return StoredOutcome(PLAN.id, TUMBLING, window, b"", bytes([window, mark]) * 16)


def spend(window: int) -> Spend:
    return spend_of(PLAN, kind=TUMBLING, window=window)


async def written(path: Path, *windows: int) -> ReceiptsFile:
    receipts = await opened(path)
    await receipts.begin()
    for window in windows:
        await receipts.write(release(window), spend(window))
    return receipts


def rows(*windows: int) -> list[tuple[bytes, str, int, bytes, Spend]]:
    return [(PLAN.id, TUMBLING, window, release(window).sha256, spend(window)) for window in windows]


async def test_what_is_written_is_read_back_after_reopening(path: Path) -> None:
    assert await (await written(path, 1, 2, 3)).read() == rows(1, 2, 3)
    assert await (await opened(path)).read() == rows(1, 2, 3)


async def test_a_line_that_another_process_has_written_is_not_cut_off(path: Path) -> None:
    """As where two machines share a copy of the receipts on a volume without locks."""
    one, two = await written(path, 1), await opened(path)
    await one.write(release(2), spend(2))
    before = content(path)
    with pytest.raises(ReceiptsError, match="another process has written to it"):
        await two.write(release(2, mark=1), spend(2))
    assert content(path) == before
    await two.write(release(2), spend(2))
    assert content(path) == before, "the same line, as after a write whose fsync failed"
    assert await (await opened(path)).read() == rows(1, 2)


def mode(path: Path) -> int | None:
    return path.stat().st_mode & 0o777 if path.exists() else None


async def test_a_file_is_made_by_its_beginning_alone_which_gives_it_a_random_id_once(path: Path) -> None:
    await opened(path)
    assert mode(path) is None
    other = await ReceiptsFile.open(path.with_name("other.jsonl"), ManualRuntime(), OsEntropy())
    marks = [await (await opened(path)).begin() for _ in range(2)] + [await other.begin()]
    assert marks[0] == marks[1]
    assert {len(mark.id) for mark in marks} == {16}
    assert marks[0].id != marks[2].id
    assert content(path).count(b"\n") == 1
    assert mode(path) == 0o600


async def test_a_header_that_was_torn_is_written_again(path: Path) -> None:
    await written(path)
    whole = content(path)
    for size in range(len(whole) - 1):
        plant(path, whole[:size])
        await (await opened(path)).begin()
        assert content(path) == whole


async def test_a_mark_is_the_same_for_who_writes_and_for_who_reads_the_lines(path: Path) -> None:
    receipts = await written(path)
    for window in range(3):
        mark = await receipts.write(release(window), spend(window))
        assert mark == await receipts.write(release(window), spend(window))
        assert mark == await (await opened(path)).begin()
        assert mark.lines == window + 2
        await (await opened(path)).check(mark)


async def test_two_receipts_of_one_window_for_different_outcomes_are_refused(path: Path) -> None:
    await written(path, 1)
    _, checksum = read_line(content(path).splitlines()[0])
    _, checksum = read_line(content(path).splitlines()[1], checksum)
    other = Receipt(PLAN.id, TUMBLING, 1, bytes(32), spend(1))
    plant(path, content(path) + other.to_line(checksum)[0] + b"\n")
    with pytest.raises(ReceiptsError, match="window 1 has a receipt for another outcome"):
        await opened(path)


async def test_writing_the_same_outcome_again_changes_nothing(path: Path) -> None:
    receipts = await written(path, 1, 2)
    before = content(path)
    await receipts.write(release(1), spend(1))
    await (await opened(path)).write(release(2), spend(2))
    assert content(path) == before


async def test_a_receipt_for_another_release_of_the_same_window_is_refused(path: Path) -> None:
    receipts = await written(path, 1)
    with pytest.raises(ReceiptsError, match="window 1 has a receipt for another outcome"):
        await receipts.write(release(1, mark=9), spend(1))


async def test_wherever_the_last_write_was_torn_the_lines_before_it_stand_and_it_can_be_repeated(path: Path) -> None:
    await written(path, 1, 2)
    whole = content(path)
    await written(path, 3)
    full = content(path)
    for size in [*range(len(whole), len(full), 9), len(full) - 2, len(full) - 1]:
        plant(path, full[:size])
        receipts = await opened(path)
        known = [1, 2, 3] if size == len(full) - 1 else [1, 2]  # only the line break was missing
        assert await receipts.read() == rows(*known)
        await receipts.write(release(3), spend(3))
        assert content(path) == full


async def test_a_torn_tail_is_cut_off_and_a_copy_is_kept_and_told(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_journal("warning", "json", sys.stdout)
    await written(path, 1)
    whole = content(path)
    for tail in (b'{"checksum":"0', bytes(200)):
        plant(path, whole + tail)
        assert await (await opened(path)).read() == rows(1)
        assert content(path) == whole
    assert content(path.with_name("receipts.jsonl.torn")) == b'{"checksum":"0\n' + bytes(200) + b"\n"
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["line"], line["size_bytes"]) for line in told] == [
        ("incomplete receipt truncated", 3, size) for size in (14, 200)
    ]


async def test_a_last_line_of_garbage_with_its_break_is_damage_and_left_alone(path: Path) -> None:
    await written(path, 1, 2)
    full = content(path)
    last = full.index(b"\n", full.index(b"\n") + 1) + 1
    for damaged in (full[:last] + bytes(200) + b"\n", full[:-3] + b"x" + full[-2:], full + b"\n"):
        plant(path, damaged)
        with pytest.raises(ReceiptsError, match=r"line [34]: .* until it is restored"):
            await opened(path)
        assert content(path) == damaged
        assert not path.with_name("receipts.jsonl.torn").exists()


async def test_a_file_that_lost_lines_while_it_was_in_use_is_not_written_to(path: Path) -> None:
    receipts = await written(path, 1, 2)
    plant(path, content(path)[:50])
    with pytest.raises(ReceiptsError, match="it has 50 of"):
        await receipts.write(release(3), spend(3))
    assert len(content(path)) == 50


async def test_damage_before_the_last_line_is_refused_and_left_alone(path: Path) -> None:
    await written(path, 1, 2, 3)
    full = content(path)
    first = full.index(b"\n")
    for at in range(0, first, 7):
        damaged = full[:at] + bytes([full[at] ^ 1]) + full[at + 1 :]
        plant(path, damaged)
        with pytest.raises(ReceiptsError, match=r"line [12]: .* until it is restored"):
            await opened(path)
        assert content(path) == damaged


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_line_that_is_missing_before_the_last_is_found(path: Path, lost: int) -> None:
    await written(path, 1, 2, 3, 4)
    lines = content(path).splitlines(keepends=True)
    plant(path, b"".join(lines[:lost] + lines[lost + 1 :]))
    with pytest.raises(ReceiptsError, match="the checksum does not match"):
        await opened(path)


async def test_a_receipt_that_an_older_version_wrote_in_its_words_stands_for_the_same_outcome(path: Path) -> None:
    old = replace(spend(1), events=(ClaimedEvent("discrete-laplace", Fraction(1), Fraction(0)),))
    await (await written(path)).write(release(1), old)
    before = content(path)
    again = await opened(path)
    await again.write(release(1), spend(1))
    assert content(path) == before
    assert [each[4] for each in await again.read()] == [old]


async def test_a_newer_format_is_refused_and_not_taken_for_a_torn_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.release.receipts.RECEIPTS_FORMAT", 4)
    await written(path, 1)
    before = content(path)
    monkeypatch.undo()
    with pytest.raises(ReceiptsError, match="format 4; this version reads up to 3"):
        await opened(path)
    assert content(path) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is synced")
async def test_every_write_and_the_folder_reach_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    receipts = await opened(path)
    await receipts.begin()
    assert synced == [path.parent, path]
    await receipts.write(release(1), spend(1))
    assert synced == [path.parent, path, path]
    await opened(path)
    assert synced == [path.parent, path, path, path, path.parent], "what another process made must last, too"


async def test_a_file_that_appears_after_the_start_is_not_begun_anew(path: Path) -> None:
    receipts = await opened(path)  # its volume was not there yet
    plant(path, b"what another process has proved\n")
    with pytest.raises(ReceiptsError, match="it was created by another process after the start"):
        await receipts.begin()
    assert content(path) == b"what another process has proved\n"


async def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    plant(path, b'{"name":"a plan"}')
    with pytest.raises(ReceiptsError, match="not a receipts file"):
        await opened(path)
    assert content(path) == b'{"name":"a plan"}'


async def test_a_write_that_failed_leaves_nothing_that_a_later_one_trips_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await written(path, 1)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ReceiptsError, match="No space left"):
        await receipts.write(release(2), spend(2))
    monkeypatch.undo()
    assert await receipts.read() == rows(1)
    await receipts.write(release(3), spend(3))
    assert await (await opened(path)).read() == rows(1, 3)


async def test_a_line_of_a_write_that_failed_is_known_although_a_later_one_failed_before_it_wrote(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await written(path, 1)
    for name, window in (("fsync", 2), ("pread", 3)):

        def broken(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, name, broken)
            with pytest.raises(ReceiptsError, match="Input/output error"):
                await receipts.write(release(window), spend(window))
    await receipts.write(release(4), spend(4))
    assert await (await opened(path)).read() == rows(1, 4)


async def test_lines_are_canonical_json_that_others_can_read(path: Path) -> None:
    await written(path, 1)
    header, fields = (json.loads(line) for line in content(path).splitlines())
    assert (sorted(header), len(header["id"])) == (["checksum", "format", "id"], 32)
    assert fields["plan_id"] == PLAN.hex_id
    assert [event["epsilon"] for event in fields["spend"]["events"]] == ["1"]
    assert sorted(fields) == ["checksum", "format", "kind", "plan_id", "sha256", "spend", "window"]
