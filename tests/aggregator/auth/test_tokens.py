"""The table of tokens: what is found in it, what is refused, and what its file never holds."""

import hmac
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from aggregator import data_dir
from aggregator.auth.tokens import (
    IssuedToken,
    TokenFile,
    TokenMetrics,
    TokenTable,
    TokenTableError,
    change_table,
    issue,
    read_table,
    write_private,
)
from aggregator.errors import ConfigError
from aggregator.model import Scope
from hushsum.entropy import OsEntropy
from tests.doubles import ManualRuntime

NOW_MS = 1_700_000_000_000


def token(name: str = "alice", *scopes: Scope, expires_ms: int | None = None) -> IssuedToken:
    return issue(OsEntropy(), name, scopes or (Scope.SUBMIT,), now_ms=NOW_MS, expires_ms=expires_ms)


def table_of(*issued: IssuedToken) -> TokenTable:
    return TokenTable(each.entry for each in issued)


def with_other_secret(issued: IssuedToken) -> str:
    last = issued.text[-1]
    return issued.text[:-1] + ("A" if last != "A" else "B")


# ------------------------------------------------------------------------------------------------------------- finding


def test_a_token_is_found_with_its_name_and_its_scopes() -> None:
    alice, bob = token(), token("Bob № 7", Scope.READ, Scope.ADMIN)
    table = TokenTable.from_bytes(table_of(alice, bob).to_bytes())

    assert table.find(alice.text, NOW_MS) == alice.entry
    found = table.find(bob.text, NOW_MS)
    assert found is not None
    assert (found.name, found.scopes) == ("Bob № 7", frozenset({Scope.READ, Scope.ADMIN}))


def test_a_token_reads_as_stated() -> None:
    assert re.fullmatch(r"hushsum_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", token().text)
    assert len({token().text for _ in range(100)}) == 100


def wrong_tokens(issued: IssuedToken, other: IssuedToken) -> dict[str, str]:
    """Texts that are not good where only ``issued`` is in the table."""
    id, secret = issued.entry.id, issued.text[-43:]
    return {
        "nothing": "",
        "no token": "hunter2",
        "unknown": other.text,
        "wrong secret": with_other_secret(issued),
        "secret of another": f"hushsum_{id}_{other.text[-43:]}",
        "id of another": f"hushsum_{other.entry.id}_{secret}",
        "cut": issued.text[:-1],
        "longer": issued.text + "A",
        "in capitals": issued.text.upper(),
        "a line more": issued.text + "\n",
        "its hash": f"hushsum_{id}_{issued.entry.digest.hex()[:43]}",
        "very long": "hushsum_" + "0" * 8000,
        "not ASCII": f"hushsum_{id}_" + "é" * 43,
        "half a character": f"hushsum_{id}_" + "\udc80" * 43,
    }


WRONG = tuple(wrong_tokens(token(), token()))


@pytest.mark.parametrize("what", WRONG)
def test_nothing_else_is(what: str) -> None:
    issued = token()
    assert table_of(issued).find(wrong_tokens(issued, token())[what], NOW_MS) is None


@pytest.mark.parametrize("what", WRONG)
def test_one_hash_and_one_comparison_in_constant_time_whatever_is_wrong(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued, compared = token(), list[tuple[int, int]]()
    honest = hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return honest(left, right)

    monkeypatch.setattr("aggregator.auth.tokens.hmac.compare_digest", counted)
    table_of(issued).find(issued.text, NOW_MS)
    table_of(issued).find(wrong_tokens(issued, token())[what], NOW_MS)
    assert compared == [(32, 32), (32, 32)]


def test_a_token_is_good_until_the_moment_it_expires() -> None:
    issued = token(expires_ms=NOW_MS + 5000)
    table = TokenTable.from_bytes(table_of(issued).to_bytes())

    assert table.find(issued.text, NOW_MS + 4999) is not None
    assert table.find(issued.text, NOW_MS + 5000) is None


def test_a_fraction_of_a_second_is_cut_off_an_expiry() -> None:
    assert token(expires_ms=NOW_MS + 5999).entry.expires_ms == NOW_MS + 5000


def test_a_revoked_token_is_good_for_nothing() -> None:
    issued, other = token(), token("bob")
    table = table_of(issued, other).changed(without=[issued.entry.id])

    assert table.find(issued.text, NOW_MS) is None
    assert table.find(other.text, NOW_MS) is not None


def test_two_tokens_of_one_id_make_no_table() -> None:
    issued = token()
    with pytest.raises(TokenTableError, match="twice"):
        table_of(issued, issued)


# ------------------------------------------------------------------------------------------------------------- secrets


def test_what_is_kept_holds_nothing_of_the_secret() -> None:
    issued = token()
    secret = issued.text[-43:]
    table = table_of(issued)

    kept = (table.to_bytes().decode(), repr(table), repr(issued), repr(issued.entry), str(issued))
    assert not [text for text in kept if secret in text or secret[:12] in text]
    shown = (repr(table), repr(issued), repr(issued.entry))
    assert not [text for text in shown if issued.entry.digest.hex() in text or repr(issued.entry.digest) in text]


GOOD = json.loads(table_of(token(expires_ms=NOW_MS)).to_bytes())


@pytest.mark.parametrize(
    ("change", "told"),
    (
        ({"id": "hush-hush"}, "id: expected 16 hex digits"),
        ({"id": 7}, "id"),
        ({"name": ""}, "name: expected a client id"),
        ({"name": "a\nb"}, "name"),
        ({"name": None}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": "submit"}, "scopes"),
        ({"scopes": ["submit", "hush-hush"]}, "scopes: expected a list of submit, read, admin"),
        ({"scopes": [["submit"]]}, "scopes"),
        ({"sha256": "hush-hush"}, "sha256: expected 64 hex digits"),
        ({"sha256": "A" * 64}, "sha256"),
        ({"made": "hush-hush"}, "made: expected a time"),
        ({"made": None}, "made"),
        ({"expires": "2030-02-30T00:00:00Z"}, "expires: expected a time"),
        ({"expires": 7}, "expires"),
        ({"token": "hush-hush"}, "expected a JSON object of id, name"),
    ),
    ids=lambda value: None,
)
def test_a_line_that_is_none_is_refused_by_its_number_and_its_key_and_nothing_of_it(
    change: dict[str, object], told: str
) -> None:
    good, bad = json.dumps(GOOD), json.dumps({**GOOD, **change})
    with pytest.raises(TokenTableError, match=rf"^line 3: .*{re.escape(told)}") as caught:
        TokenTable.from_bytes(f"{good}\n\n{bad}\n".encode())
    assert "hush-hush" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("data", (b"hush-hush", b"\xff", b"[", b'"hush-hush"', b"[" * 100_000, b"{}"), ids=range(6))
def test_bytes_that_are_no_table_are_refused_and_not_shown(data: bytes) -> None:
    with pytest.raises(TokenTableError, match="line 1: expected") as caught:
        TokenTable.from_bytes(data)
    assert "hush-hush" not in str(caught.value)


def test_a_table_has_a_size_that_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator.auth.tokens.TABLE_BYTES_MAX", 100)
    with pytest.raises(TokenTableError, match="101 bytes, expected at most 100"):
        TokenTable.from_bytes(bytes(101))


def test_a_name_that_is_no_client_id_gets_no_token() -> None:
    with pytest.raises(TokenTableError, match="not printable"):
        token("a\nb")
    with pytest.raises(TokenTableError, match="scopes"):
        issue(OsEntropy(), "alice", (), now_ms=NOW_MS)


# ------------------------------------------------------------------------------------------------------------ the file


def test_the_file_is_closed_to_others_and_a_change_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    alice, bob = token(), token("bob")
    change_table(path, lambda table: table.changed(with_=[alice.entry]))
    change_table(path, lambda table: table.changed(with_=[bob.entry]))

    assert read_table(path) == table_of(alice, bob)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.jsonl", "tokens.jsonl.lock"]


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.jsonl"
    change_table(path, lambda _: table_of(token()))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        change_table(path, lambda table: table.changed(with_=[token("bob").entry]))
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.jsonl", "tokens.jsonl.lock"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "tokens.jsonl"
    write_private(real, b"")
    link.symlink_to(real)
    issued = token()
    change_table(link, lambda _: table_of(issued))

    assert link.is_symlink()
    assert read_table(real) == table_of(issued)


def test_changes_wait_for_each_other(tmp_path: Path) -> None:
    import threading

    path, inside, most = tmp_path / "tokens.jsonl", list[int](), list[int]()

    def add(number: int) -> None:
        def change(table: TokenTable) -> TokenTable:
            inside.append(number)
            most.append(len(inside))
            changed = table.changed(with_=[token(f"edge-{number}").entry])
            inside.remove(number)
            return changed

        change_table(path, change)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert {entry.name for entry in read_table(path)} == {f"edge-{number}" for number in range(8)}


# ------------------------------------------------------------------------------------------------------------ watching


class Watched:
    """A file of tokens that is watched, in manual time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runtime = ManualRuntime(NOW_MS)
        self.registry = CollectorRegistry()
        self.file: TokenFile

    async def open(self) -> TokenFile:
        self.file = await TokenFile.open(self.path, self.runtime, TokenMetrics(self.registry))
        return self.file

    def gauge(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)

    async def look(self, change: Callable[[], object]) -> list[str]:
        """The errors of the journal after a change."""
        change()
        with capture_logs() as lines:
            for _ in range(3):
                await self.file.look()
        return [str(line["error"]) for line in lines if line["log_level"] == "error"]


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    change_table(tmp_path / "tokens.jsonl", lambda _: table_of(token()))
    watched = Watched(tmp_path / "tokens.jsonl")
    await watched.open()
    return watched


async def test_the_file_is_read_again_within_two_seconds_of_a_change(watched: Watched) -> None:
    task = watched.runtime.spawn(watched.file.run(), "tokens")
    bob = token("bob")
    await watched.runtime.advance(1)
    change_table(watched.path, lambda table: table.changed(with_=[bob.entry]))
    await watched.runtime.advance(1)
    task.cancel()

    assert watched.file.table.find(bob.text, NOW_MS) is not None
    assert (watched.gauge("hushsum_tokens"), watched.gauge("hushsum_tokens_unreadable")) == (2, 0)


async def test_every_change_by_the_command_is_found_though_the_size_stays(watched: Watched) -> None:
    for _ in range(20):
        other = token()
        change_table(watched.path, lambda _, entry=other.entry: TokenTable([entry]))  # type: ignore[misc]  # a default binds it
        await watched.file.look()
        assert watched.file.table.find(other.text, NOW_MS) is not None


async def test_a_token_that_is_revoked_in_place_is_invalid_though_size_and_times_of_the_file_stay(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = data_dir._stamp

    def coarse(path: Path) -> data_dir._Stamp | None:
        found = stamp(path)
        return None if found is None else found._replace(modified_ns=0, changed_ns=0)

    monkeypatch.setattr(data_dir, "_stamp", coarse)
    revoked = token()
    for issued in (revoked, token()):
        watched.path.write_bytes(table_of(issued).to_bytes())
        await watched.file.look()
        assert watched.file.table == table_of(issued)
    assert watched.file.table.find(revoked.text, NOW_MS) is None


async def test_a_file_that_does_not_change_is_not_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    readings, honest = list[bytes](), TokenTable.from_bytes

    def counted(data: bytes) -> TokenTable:
        readings.append(data)
        return honest(data)

    monkeypatch.setattr(TokenTable, "from_bytes", counted)
    for bad in (False, True):
        if bad:
            watched.path.write_bytes(b"{}")
        for _ in range(10):
            await watched.file.look()
        assert len(readings) == bad, "a bad file is read once, too: a large one takes its time"


@pytest.mark.parametrize("what", ("no table", "half a line", "gone", "a folder"))
async def test_a_file_that_cannot_be_read_keeps_the_last_good_table_and_says_so_once(
    watched: Watched, what: str
) -> None:
    table, data = watched.file.table, watched.path.read_bytes()

    def spoil() -> None:
        watched.path.unlink()
        if what == "a folder":
            watched.path.mkdir()
        elif what != "gone":
            watched.path.write_bytes(b"hunter2" if what == "no table" else data[:-9])

    def mend() -> None:
        if what == "a folder":
            watched.path.rmdir()
        watched.path.write_bytes(data)

    errors = await watched.look(spoil)
    assert len(errors) == 1
    assert "hunter2" not in errors[0]
    assert watched.file.table == table
    assert watched.gauge("hushsum_tokens_unreadable") == 1
    assert await watched.look(mend) == []
    assert watched.file.table == table
    assert watched.gauge("hushsum_tokens_unreadable") == 0


async def test_nothing_of_a_token_is_in_the_journal(watched: Watched) -> None:
    bob = token("bob")
    with capture_logs() as lines:
        await watched.look(lambda: change_table(watched.path, lambda table: table.changed(with_=[bob.entry])))
    told = repr(lines)
    assert not [part for part in ("bob", "alice", bob.entry.id, bob.text[-43:], "sha") if part in told]


@pytest.mark.parametrize("mode", (0o620, 0o602, 0o666, 0o660), ids=oct)
async def test_a_table_that_others_may_write_is_not_taken(watched: Watched, mode: int) -> None:
    table, bob = watched.file.table, token("bob")
    change_table(watched.path, lambda _: table_of(bob))

    assert await watched.look(lambda: watched.path.chmod(mode)) == [
        f"mode {mode:03o}, the token file is writable by other users: chmod go-w {watched.path}"
    ]
    assert watched.file.table == table
    assert watched.gauge("hushsum_tokens_unreadable") == 1
    with pytest.raises(ConfigError, match=r"tokens: .*the token file is writable by other users: chmod go-w"):
        await Watched(watched.path).open()
    assert await watched.look(lambda: watched.path.chmod(0o640)) == []
    assert watched.file.table == table_of(bob)
    assert watched.gauge("hushsum_tokens_unreadable") == 0


async def test_a_table_that_became_open_and_nothing_else_is_told_too(watched: Watched) -> None:
    assert await watched.look(lambda: None) == []
    assert len(await watched.look(lambda: watched.path.chmod(0o660))) == 1
    assert watched.gauge("hushsum_tokens_unreadable") == 1


@pytest.mark.parametrize(("data", "told"), ((None, "cannot be read"), (b"{}", "line 1: expected a JSON object")))
async def test_a_service_does_not_start_without_a_table(tmp_path: Path, data: bytes | None, told: str) -> None:
    path = tmp_path / "tokens.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"tokens: .*{told}"):
        await Watched(path).open()
