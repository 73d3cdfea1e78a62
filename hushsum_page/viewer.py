"""`hushsum view`: the page over files, for the one person who started it."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from hushsum.entropy import Entropy
from hushsum_page.app import page_app
from hushsum_page.files import FilesSource
from hushsum_page.library import Library, warm_up
from hushsum_page.server import BoundedListener, PageServer
from hushsum_page.sessions import OneTimeToken, Sessions
from hushsum_page.settings import PageSettings
from hushsum_page.workers import Workers

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_HOST: Final = "127.0.0.1"


class Viewer:
    """The page over files, on this machine alone.

    Other users of the machine reach the port, too, so that the first request shows a token that only this process
    prints. It opens one session, which lasts as long as the process: who reads the token later can do nothing with it.

    Args:
        paths: Of ``.hush`` files.
        port: 0: any free one.
        entropy: For the token and for sessions.
        clock: Seconds that never go back.

    Attributes:
        address: What to open.
        source: What it shows.

    Raises:
        ReleaseError: A file is no release; the text names it.
        OSError: A file cannot be read, or the port cannot be used.
    """

    def __init__(self, paths: Iterable[Path], port: int, *, entropy: Entropy, clock: Callable[[], float]) -> None:
        self.source = source = FilesSource(paths)
        token = OneTimeToken(entropy)
        sessions = Sessions(token, entropy, clock, session_s_max=math.inf, idle_s_max=math.inf)
        listener = BoundedListener(_HOST, port, clock)
        settings = PageSettings(LOOPBACK_HOSTS, listener.port, is_secure=False)
        workers = Workers()
        workers.prepare(warm_up)
        app = page_app(Library(source, workers), sessions, settings, clock, signs_in_by_address=True)
        self.server = PageServer(listener, app, None)
        self.address = f"http://{_HOST}:{listener.port}/sign-in?token={token.text}"


def opening_page(address: str) -> str:
    """A file that leads a browser to an address."""
    from markupsafe import escape

    refresh = f'<meta http-equiv="refresh" content="0; url={escape(address)}">'
    return f'<!doctype html><meta charset="utf-8">{refresh}<title>Hushsum</title>\n'
