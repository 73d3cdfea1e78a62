"""What fails where nobody waits for it is a line of the journal, and no stack trace for what passes by itself."""

import asyncio
import io

import pytest

from aggregator.app import _log_unawaited
from aggregator.errors import LogUnavailableError
from aggregator.logs import write_journal


@pytest.mark.parametrize(
    "error", (ConnectionResetError("reset by peer"), asyncio.IncompleteReadError(b"", 4), LogUnavailableError("away"))
)
async def test_a_connection_that_was_given_up_is_no_news(error: Exception) -> None:
    written = io.StringIO()
    write_journal("info", "console", written)
    _log_unawaited(asyncio.get_running_loop(), {"message": "Future exception was never retrieved", "exception": error})

    assert written.getvalue() == ""


async def test_a_mistake_of_ours_is_told_whole() -> None:
    written = io.StringIO()
    write_journal("info", "json", written)
    try:
        raise ValueError("nobody thought of this")
    except ValueError as error:
        _log_unawaited(
            asyncio.get_running_loop(), {"message": "Task exception was never retrieved", "exception": error}
        )

    assert '"level": "error"' in written.getvalue()
    assert "nobody thought of this" in written.getvalue()
