"""A log on a real broker, what is put into it, and how it is read to its end."""

import asyncio
from collections.abc import Callable, Sequence

from aggregator.errors import LogUnavailableError
from aggregator.kafka.log import KafkaLog
from aggregator.kafka.settings import KafkaSettings
from aggregator.log_messages import PlainMessages
from aggregator.ports import Appended, SystemRuntime
from aggregator.records import Logged
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from tests.doubles import RecordingObserver
from tests.plans import small_plan

PLAN = small_plan()
WAIT_S = 15.0
STEP = 1 << 16  # between the positions of one message and the next


async def opened_log(settings: KafkaSettings, observer: RecordingObserver | None = None) -> KafkaLog:
    watching = observer or RecordingObserver()
    return await KafkaLog.open(settings, PLAN, 2, PlainMessages(), SystemRuntime(threads=1), watching)


def delta(text: str, repeat: int = 1) -> bytes:
    return entry_to_bytes(DeltaEntry("client", text.encode() * repeat, 5))


def to_zero(*entries: bytes) -> list[Appended]:
    return [Appended(0, 5, data) for data in entries]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)


async def until_appended(log: KafkaLog, entries: Sequence[Appended]) -> None:
    """As a gateway's client does: an append whose fate is open is repeated."""
    while True:
        try:
            await log.append(entries)
        except LogUnavailableError:
            await asyncio.sleep(0.05)
        else:
            return


async def everything(log: KafkaLog) -> list[Logged]:
    position, found = 0, list[Logged]()
    while position < await log.end(0):
        stretch = await log.read(0, position, 100, WAIT_S)
        found += stretch.entries
        position = stretch.end
    return found
