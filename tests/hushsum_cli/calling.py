"""Calls the command line as a shell would, without a process."""

import sys
import warnings
from typing import NamedTuple

import pytest

from hushsum import HushsumWarning
from hushsum_cli.main import main


class Ended(NamedTuple):
    """What a command has left behind."""

    status: int
    out: str
    err: str


class Hushsum:
    """The command line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["hushsum", *arguments])
        self._capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("always", HushsumWarning)  # a line on standard error, as in a shell
            with pytest.raises(SystemExit) as ended:
                main()
        captured = self._capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return Ended(status, captured.out, captured.err)
