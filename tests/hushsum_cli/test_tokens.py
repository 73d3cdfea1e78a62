"""`hushsum admin tokens`: what is shown once, what the file keeps, and who may make which."""

import json
import time
from pathlib import Path

import pytest

from aggregator.api import admission_control
from aggregator.auth import tokens as table_file
from aggregator.auth.tokens import LOOK_S, TokenTable, TokenTableError, read_table
from aggregator.model import Scope
from hushsum_cli import tokens as command
from tests.hushsum_cli.calling import Ended, Hushsum


class Tokens:
    """The subcommands, on one file."""

    def __init__(self, hushsum: Hushsum, file: Path) -> None:
        self._hushsum = hushsum
        self.file = file

    def __call__(self, name: str, *arguments: str) -> Ended:
        return self._hushsum("admin", "tokens", name, "--file", str(self.file), *arguments)

    def json(self, name: str, *arguments: str) -> object:
        ended = self(name, *arguments, "--json")
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    def added(self, name: str = "alice", *arguments: str) -> dict[str, str]:
        made = self.json("add", "--name", name, "--scope", "submit", *arguments)
        assert isinstance(made, dict)
        return made

    @property
    def table(self) -> TokenTable:
        return read_table(self.file)

    def whose(self, token: str, after_s: float = 0) -> str | None:
        """The name of who shows a token so long after now."""
        found = self.table.find(token.strip(), round((time.time() + after_s) * 1000))
        return None if found is None else found.name


@pytest.fixture
def tokens(hushsum: Hushsum, tmp_path: Path) -> Tokens:
    return Tokens(hushsum, tmp_path / "tokens.jsonl")


def test_who_revokes_is_told_when_that_is_known(tokens: Tokens) -> None:
    """The text is a promise of the two pauses; a change within a tick of the file's clock takes one more look."""
    made = tokens.added()
    assert tokens("revoke", "--expired").err == ""
    ended = tokens("revoke", made["id"])
    assert "services reload the token file within 2 s" in ended.err
    assert LOOK_S <= 1
    assert admission_control.RECHECK_S <= 1


@pytest.mark.parametrize("what", ("the disk", "Ctrl-C"))
def test_the_file_of_a_token_is_kept_where_the_table_has_it_and_else_not(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails(_: Path) -> None:
        raise OSError(5, "Input/output error") if what == "the disk" else KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(table_file, "sync_folder", fails)
        first = tokens("add", "--name", "alice", "--scope", "read", "--out", str(tmp_path / "a"))
    assert first.status != 0
    assert ("changed, but the change may be lost in a power failure" in first.err) == (what == "the disk")
    assert tokens.whose((tmp_path / "a").read_text()) == "alice"

    def broken(*_: object) -> None:
        raise TokenTableError("before the change") if what == "the disk" else KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        second = tokens("add", "--name", "bob", "--scope", "read", "--out", str(tmp_path / "b"))
    assert second.status != 0
    assert [entry.name for entry in tokens.table] == ["alice"]
    assert not (tmp_path / "b").exists()


def test_a_table_that_its_services_could_not_read_any_more_is_not_changed(tokens: Tokens) -> None:
    made = tokens.added()
    before = tokens.file.read_bytes()
    tokens.file.chmod(0o644)
    ended = tokens("revoke", made["id"])
    assert ended.status == 1
    assert "mode 644, the token file is readable by other users; nothing was changed" in ended.err
    assert (tokens.file.read_bytes(), tokens.file.stat().st_mode & 0o777) == (before, 0o644)
    tokens.file.chmod(0o600)
    assert tokens("revoke", made["id"]).status == 0
    assert tokens.file.stat().st_mode & 0o777 == 0o600


def test_the_scopes_on_offer_are_the_services() -> None:
    assert list(command._SCOPES) == [scope.value for scope in Scope]


def test_a_token_is_shown_once_and_its_file_holds_a_hash(tokens: Tokens) -> None:
    ended = tokens("add", "--name", "till 7", "--scope", "read", "--scope", "submit")
    text = ended.out.strip()

    assert (ended.status, tokens.whose(text)) == (0, "till 7")
    assert text not in ended.err
    assert text[-43:] not in tokens.file.read_text() + tokens("list").out + tokens("list", "--json").out
    assert tokens.file.stat().st_mode & 0o777 == 0o600
    assert tokens.json("list") == [
        {
            "id": text.split("_")[1],
            "name": "till 7",
            "scopes": ["submit", "read"],
            "made": json.loads(tokens.file.read_text())["made"],
            "expires": None,
            "expired": False,
        }
    ]


def test_a_token_lasts_as_long_as_was_asked_for(tokens: Tokens) -> None:
    text = tokens.added("alice", "--expires", "90d")["token"]
    assert tokens.whose(text, 90 * 86_400 - 60) == "alice"
    assert tokens.whose(text, 90 * 86_400 + 60) is None


@pytest.mark.parametrize("span", ("90", "d", "-1d", "1.5h", "1w", "999999999999d", "36501d"))
def test_what_is_no_span_is_refused(tokens: Tokens, span: str) -> None:
    ended = tokens("add", "--name", "alice", "--scope", "submit", "--expires", span)
    assert ended.status == 2
    assert "days (d)" in ended.err
    assert not tokens.file.exists()


def test_a_fleet_gets_its_tokens_in_a_file_of_their_own(tokens: Tokens, tmp_path: Path) -> None:
    out = tmp_path / "clients.json"
    fleet = ("--count", "12", "--name-prefix", "edge-", "--scope", "submit", "--out", str(out))
    ended = tokens("add", *fleet)

    texts = json.loads(out.read_text())
    assert ended.status == 0, ended.err
    assert out.stat().st_mode & 0o777 == 0o600
    assert list(texts) == [f"edge-{number:02d}" for number in range(1, 13)]
    assert {tokens.whose(text) for text in texts.values()} == set(texts)
    assert not [text for text in texts.values() if text in ended.out + ended.err]
    again = tokens("add", *fleet)
    assert again.status == 1  # neither is overwritten
    assert json.loads(out.read_text()) == texts
    assert len(tokens.table) == 12


def test_one_token_in_a_file_is_what_a_client_reads(tokens: Tokens, tmp_path: Path) -> None:
    out = tmp_path / "token"
    made = tokens.added("alice", "--out", str(out))
    assert "token" not in made
    assert tokens.whose(out.read_text()) == "alice"


def test_a_name_gets_no_second_token_and_no_file_of_one_is_left(tokens: Tokens, tmp_path: Path) -> None:
    tokens.added("alice")
    before, out = tokens.file.read_bytes(), tmp_path / "token"
    ended = tokens("add", "--name", "alice", "--scope", "read", "--out", str(out))
    assert ended.status == 1
    assert "alice already has a token: rotate it" in ended.err
    assert tokens.file.read_bytes() == before
    assert not out.exists()


def test_a_token_is_rotated_with_a_grace(tokens: Tokens) -> None:
    old = tokens.added("alice", "--expires", "90d")
    new = tokens.json("rotate", old["id"], "--grace", "1h")
    assert isinstance(new, dict)
    assert new["scopes"] == old["scopes"]
    assert [tokens.whose(old["token"]), tokens.whose(old["token"], 3660)] == ["alice", None]
    assert [tokens.whose(new["token"], 3660), tokens.whose(new["token"], 89 * 86_400)] == ["alice", "alice"]
    assert tokens.whose(new["token"], 91 * 86_400) is None  # as long as the old one was


def test_a_grace_makes_no_token_last_longer(tokens: Tokens) -> None:
    old = tokens.added("alice", "--expires", "1h")
    tokens.json("rotate", old["id"], "--grace", "5d")
    assert tokens.whose(old["token"], 3660) is None


def test_without_a_grace_the_old_token_is_gone_at_once(tokens: Tokens) -> None:
    old = tokens.added()
    new = tokens("rotate", old["id"], "--grace", "0s").out
    assert [tokens.whose(old["token"]), tokens.whose(new)] == [None, "alice"]
    assert len(tokens.table) == 1


def test_tokens_are_revoked_by_id_by_name_and_once_expired(tokens: Tokens) -> None:
    made = {name: tokens.added(name) for name in ("alice", "bob", "carol")}
    tokens.added("dave", "--expires", "0s")
    new = tokens("rotate", made["bob"]["id"]).out

    assert f"{made['alice']['id']} (alice) revoked" in tokens("revoke", made["alice"]["id"]).out
    assert len(json.loads(tokens("revoke", "--name", "bob", "--json").out)) == 2
    assert tokens.whose(new) is None
    assert "expired" in tokens("list").out
    assert tokens("revoke", "--expired").status == 0
    assert [entry.name for entry in tokens.table] == ["carol"]


def test_what_is_not_there_is_refused_and_what_came_is_not_shown(tokens: Tokens) -> None:
    text = tokens.added()["token"]
    before = tokens.file.read_bytes()
    for arguments in (("revoke", text), ("rotate", text), ("revoke", "--name", text)):
        ended = tokens(*arguments)
        assert ended.status == 1
        assert "no token with this" in ended.err
        assert text not in ended.err + ended.out
    assert tokens("revoke").status == 2
    assert tokens.file.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    (
        ("--scope", "submit"),
        ("--scope", "submit", "--name", "a", "--count", "2", "--name-prefix", "b"),
        ("--scope", "submit", "--count", "2"),
        ("--scope", "submit", "--name", "a", "--name-prefix", "b"),
        ("--name", "a"),
        ("--name", "a", "--scope", "root"),
    ),
    ids=range(6),
)
def test_who_and_for_what_is_said_once(tokens: Tokens, arguments: tuple[str, ...]) -> None:
    assert tokens("add", *arguments).status == 2
    assert not tokens.file.exists()


def test_a_spoilt_file_is_not_written_over(tokens: Tokens) -> None:
    tokens.file.write_text("hunter2\n")
    for arguments in (("add", "--name", "a", "--scope", "read"), ("list",), ("revoke", "--expired")):
        ended = tokens(*arguments)
        assert ended.status == 1
        assert "tokens.jsonl: line 1: expected one JSON object" in ended.err
        assert "hunter2" not in ended.err
    assert tokens.file.read_text() == "hunter2\n"


def test_a_list_of_no_file_is_refused(tokens: Tokens) -> None:
    ended = tokens("list")
    assert ended.status == 1
    assert "no such file" in ended.err
