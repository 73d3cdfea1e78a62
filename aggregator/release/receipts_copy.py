"""A second sink of receipts: a copy of their lines, elsewhere, that is as long as they are before an outcome is shown.

The copy has the lines that count, in the same order and with the same bytes: the same id, count and checksums. A
receipt is written to the first sink, then to the copy, and only then is its outcome published. So a kill leaves the
copy at most one receipt of each plan behind the first sink, that of an outcome that was never visible; the outcome's
publication, which the next start completes, writes it. The copy is never ahead, and never behind what the store knows.

Anything else means that a sink or the store was lost, or restored from an older state, and stops releasing. A store
that was set back together with one of the two is found out by the other one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aggregator.config import addresses_of, is_one_file
from aggregator.errors import ForeignReceiptsError, ReceiptsError
from aggregator.interfaces import Receipts
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import KeptLine, Receipt, ReceiptLines, plural
from hushsum.privacy.events import Spend

_BEGIN: Final = "`hushsum admin begin-receipts-copy`"
_OLDER: Final = (
    "an older copy; nothing is released until the newest one is restored and the service is started again. If there is "
    f"none, {_BEGIN} completes it; where the store is older than the receipts, use `hushsum admin mark-lost` without "
    "receipts_copy first"
)


class ReceiptsSink(Receipts, Protocol):
    """Receipts whose lines can be copied, and that can be such a copy."""

    async def read(self) -> Sequence[Receipt]: ...

    async def catch_up(self) -> ReceiptLines:
        """All lines that any process has written up to now."""

    async def append(self, kept: KeptLine) -> None:
        """Appends a line of other receipts, which follow the same lines; durable when it returns."""


class CopiedReceipts:
    """See :class:`aggregator.interfaces.Receipts`: receipts, and a copy of them."""

    def __init__(self, first: ReceiptsSink, copy: ReceiptsSink) -> None:
        self._first, self._copy = first, copy

    async def begin(self) -> ReceiptsMark:
        """Creates both; a copy of receipts that exist already is made by an operator alone (:func:`begin_copy`)."""
        copy, first = await self._copy.catch_up(), await self._first.catch_up()
        check_prefix(copy, first)  # before anything is made: a new id beside an older copy would be of another store
        mark = await self._first.begin()
        first = await self._first.catch_up()
        if not copy.kept and len(first.kept) > 1:
            raise _no_copy(copy, first)
        await self._mirror()
        return replace(mark, copy=copy.where)

    async def check(self, bound: ReceiptsMark) -> str:
        """Compares the receipts with the mark, and the copy with both; where the copy is, as the store is to record it.

        A file stays as it is recorded: a link that leads to it now may lead elsewhere later. A topic's brokers change.

        Raises:
            ForeignReceiptsError: They are missing or another store's, the copy included.
            ReceiptsError: Either lacks what the store or the other one knows, or they differ; or the store knows the
                copy at another place.
        """
        # Others may write meanwhile: first the first sink, then the copy. What the copy has before the first sink is
        # read must be in that; what the first sink has must be in the copy as it is read after that.
        before = len((await self._copy.catch_up()).kept)
        await self._first.check(bound)
        first = await self._first.catch_up()
        copy = await self._copy.catch_up()
        if bound.copy and not is_same_place(bound.copy, copy.where):
            raise _moved(copy, bound.copy)
        if bound.id and not copy.kept:
            raise _no_copy(copy, first)
        _check_lines(copy, before, first)
        needed = first.kept_through(bound.lines)
        if len(copy.kept) < needed:
            raise ReceiptsError(
                f"{copy.where}: it has {len(copy.kept)} of the {plural(needed, 'line')} of {first.where} that this "
                f"store knows: {_OLDER}"
            )
        lacking = Counter(held.plan_id for _, held in first.kept[len(copy.kept) :] if isinstance(held, Receipt))
        if max(lacking.values(), default=0) > 1:
            raise ReceiptsError(
                f"{copy.where}: {sum(lacking.values())} receipts of {first.where} are missing at its end, where a kill "
                f"leaves one of a plan: {_OLDER}"
            )
        return copy.where if isinstance(place_of(copy.where), TopicPlace) else bound.copy or copy.where

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        mark = await self._first.write(outcome, spend)
        return replace(mark, copy=await self._mirror())

    async def read(self) -> Sequence[Receipt]:
        """The receipts of both: what either proves was charged."""
        first = await self._first.read()
        copy = await self._copy.catch_up()
        if copy.mark.id != (await self._first.catch_up()).mark.id:
            return first
        proved = {receipt.key for receipt in first}
        return [*first, *(receipt for receipt in copy.receipts if receipt.key not in proved)]

    async def _mirror(self) -> str:
        """Appends to the copy what it lacks; where that is.

        Processes that do so at once append the same lines, which count once.
        """
        copy, first = await self._copy.catch_up(), await self._first.catch_up()
        check_prefix(copy, first)
        for kept in first.kept[len(copy.kept) :]:
            await self._copy.append(kept)
        return copy.where


class TopicPlace(NamedTuple):
    """A topic, and the addresses of its brokers."""

    name: str
    bootstrap: str


def place_of(where: str) -> Path | TopicPlace | None:
    """What :attr:`ReceiptLines.where` names; None where it is in memory."""
    kind, _, place = where.partition(" ")
    if kind == "receipts":
        return Path(place)
    name, _, bootstrap = place.partition(" at ")
    return TopicPlace(name, bootstrap) if kind == "topic" else None


def is_same_place(one: str, other: str) -> bool:
    """Whether two texts of :attr:`ReceiptLines.where` name one file, by whatever paths, or one topic.

    Topics of one name are one where their brokers have an address in common: it leads to one cluster.
    """
    if one == other:
        return True
    here, there = place_of(one), place_of(other)
    if isinstance(here, TopicPlace) and isinstance(there, TopicPlace):
        return here.name == there.name and not addresses_of(here.bootstrap).isdisjoint(addresses_of(there.bootstrap))
    if isinstance(here, Path) and isinstance(there, Path):
        return is_one_file(here, there)
    return False


def check_prefix(copy: ReceiptLines, first: ReceiptLines) -> None:
    """Checks that the copy has the first lines of the receipts, and no others.

    Raises:
        ForeignReceiptsError: It is of other receipts.
        ReceiptsError: It has lines that the receipts lack, or others.
    """
    _check_lines(copy, len(copy.kept), first)


def _check_lines(copy: ReceiptLines, lines: int, first: ReceiptLines) -> None:
    """As :func:`check_prefix`; ``lines`` are those that the copy had before the receipts were read."""
    if copy.kept and first.kept and copy.mark.id != first.mark.id:
        raise ForeignReceiptsError(
            f"{copy.where}: receipts {copy.mark.id.hex()[:8] or 'without an id'}, but {first.where} has receipts "
            f"{first.mark.id.hex()[:8] or 'without an id'}: they are of two stores; nothing is released. Put "
            "the file or topic that is not this store's away, and name this store's: where one of the two is lost, it "
            "is made from the other (`hushsum admin begin-receipts-copy --help`)"
        )
    common = min(len(copy.kept), len(first.kept))
    if copy.kept_digest(common) != first.kept_digest(common):
        number = next(at for at in range(1, common + 1) if copy.kept_digest(at) != first.kept_digest(at))
        raise ReceiptsError(
            f"{copy.where}: line {number} differs from that of {first.where}: two copies of the store have released, "
            "or one of the two was restored and went on; nothing is released until an operator has found which is this "
            "store's"
        )
    if lines > len(first.kept):
        raise ReceiptsError(
            f"{first.where}: it has {plural(len(first.kept), 'line')}, and {copy.where} has {lines}: the former is "
            f"older; nothing is released. (1) Stop the service. (2) Complete the older one from the other: {_BEGIN} "
            "with --reverse completes the receipts, without it their copy. (3) If the store is older, too, restore a "
            "newer one; where there is none, use `hushsum admin mark-lost`. (4) Start the service"
        )


def check_begun(lines: ReceiptLines) -> None:
    """Raises ReceiptsError if there is nothing to copy."""
    if not lines.mark.id:
        raise ReceiptsError(f"{lines.where}: no receipts to copy; the first start of a new store makes both")


async def begin_copy(first: ReceiptsSink, copy: ReceiptsSink) -> int:
    """Makes a copy of receipts that exist, or completes one; the caller has compared the receipts with the store.

    The other way round it makes receipts that are lost from the copy that survived.

    Returns:
        The number of lines that were copied.

    Raises:
        ReceiptsError: There are no receipts, or the copy has other lines or more: both are left as they are.
    """
    lines, there = await first.catch_up(), await copy.catch_up()
    check_begun(lines)
    check_prefix(there, lines)
    lacking = lines.kept[len(there.kept) :]
    for kept in lacking:
        await copy.append(kept)
    return len(lacking)


def _moved(copy: ReceiptLines, known: str) -> ReceiptsError:
    """The error where the settings name another copy than the store knows: which of the two is newer cannot be told."""
    has = plural(len(copy.kept), "line") if copy.kept else "missing or empty"
    return ReceiptsError(
        f"receipts_copy names {copy.where} ({has}), but this store knows the copy of its receipts at {known}; nothing "
        "is released until the setting names that one and the service is started again. If it was moved, or is lost "
        f"for good, stop the service and use {_BEGIN}: it compares both with the receipts, completes the new one, and "
        "records its place. To go on without a copy, remove the setting and use `hushsum admin end-receipts-copy`"
    )


def _no_copy(copy: ReceiptLines, first: ReceiptLines) -> ForeignReceiptsError:
    return missing_copy(copy.where, f"{first.where} has {plural(len(first.kept), 'line')}")


def missing_copy(where: str, why: str) -> ForeignReceiptsError:
    """The error if there is no copy although there must be one: ``why``."""
    mounted = "Is its disk mounted? " if isinstance(place_of(where), Path) else ""
    return ForeignReceiptsError(
        f"{where}: missing, although {why}; nothing is released until it is restored and the service is started again. "
        f"{mounted}If there never was one, or it is lost for good, {_BEGIN} makes it from the receipts that are left; "
        "where the store is older than these, use `hushsum admin mark-lost` without receipts_copy first"
    )
