"""`hushsum view`: prints where to look, serves files to whoever has that address, and refuses what is no release."""

import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from hushsum_simulator.testbed.process import free_port
from tests.hushsum_cli.calling import Hushsum


def test_files_are_viewed_by_whoever_has_the_address(release_file: Path, sources_on_path: None) -> None:
    command = [sys.executable, "-m", "hushsum_cli", "view", str(release_file), "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[-1]
            base = address.partition("/sign-in")[0]
            reader = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            reader.open(address, timeout=60).close()
            with reader.open(f"{base}/", timeout=60) as page:
                assert "today.hush" in page.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="403"):  # the token is used up
                urllib.request.urlopen(address, timeout=60)
        finally:
            process.terminate()


def test_the_browser_is_led_by_a_file_that_others_cannot_read(
    release_file: Path, hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int, str]] = []

    def note(address: str) -> None:
        path = Path(address.removeprefix("file://"))
        opened.append((path.read_text(encoding="utf-8"), path.parent.stat().st_mode & 0o777, address))

    monkeypatch.setattr("webbrowser.open", note)
    monkeypatch.setattr("hushsum_page.server.PageServer.run", lambda server: server._listener.close())
    ended = hushsum("view", str(release_file), "--open")
    ((text, mode, address),) = opened
    assert ended.out.split()[1] in text
    assert mode == 0o700
    assert "token" not in address
    assert not Path(address.removeprefix("file://")).exists()


def test_no_browser_is_opened_unless_asked(
    release_file: Path, hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("opened"))
    monkeypatch.setattr("hushsum_page.server.PageServer.run", lambda server: server._listener.close())
    assert hushsum("view", str(release_file)).status == 0


def test_a_file_that_is_no_release_is_refused_by_its_name(release_file: Path, hushsum: Hushsum, tmp_path: Path) -> None:
    (tmp_path / "other.hush").write_bytes(b"PK")
    ended = hushsum("view", str(release_file), str(tmp_path / "other.hush"))
    assert (ended.status, ended.err.startswith(f"hushsum: {tmp_path / 'other.hush'}: ")) == (1, True)


def test_a_port_that_is_in_use_is_named(release_file: Path, hushsum: Hushsum) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = hushsum("view", str(release_file), "--port", str(port))
    assert (ended.status, "in use" in ended.err, f"127.0.0.1:{port}" in ended.err) == (1, True, True)
