"""A client for operators and analysts of one service: status, plans, windows, seals, outcomes and releases."""

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import grpc.aio

from hushsum.errors import PlanError
from hushsum.plan import BUNDLE_BYTES_MAX, Plan
from hushsum.releases import Release
from hushsum_proto import convert, convert_admin, convert_outcomes
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import WireError
from hushsum_proto.messages import (
    PAGE,
    PAGE_MAX,
    PROTOCOL_VERSIONS,
    Hello,
    LedgerPage,
    NextOutcome,
    PlanInfo,
    Released,
    ReleaseInfo,
    ServiceStatus,
    Welcome,
    WindowsPage,
)
from hushsum_proto.metadata import CLIENT_ID, REASON
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.errors import ServiceError

T = TypeVar("T")
RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
_NAME: Final = ((CLIENT_ID, "console"),)
_ORDER: Final = "window_order"
_QUICK_S: Final = 15.0
_LONG_S: Final = 300.0  # a seal waits for every fold, a release draws its noise
_PLAN_BYTES_MAX: Final = BUNDLE_BYTES_MAX + 2**20
_OPTIONS: Final = (("grpc.max_receive_message_length", _PLAN_BYTES_MAX),)


class Console:
    """The connection of an operator or an analyst to one service.

    Args:
        target: ``host:port``.
        credentials: Credentials and CA certificates; without a token or certificate the name ``console`` is declared.
            None: no credentials, and TLS to other machines.
        insecure: Allow an unencrypted connection to another machine.

    Raises:
        CredentialsError: ``insecure`` would send a token unencrypted to another machine.
    """

    def __init__(self, target: str, credentials: Credentials | None = None, *, insecure: bool = False) -> None:
        shown = credentials or Credentials()
        self._target = target
        self._credentials = shown.in_plaintext(target) if insecure else shown
        self._metadata: tuple[tuple[str, str], ...] = () if shown.names_itself else _NAME
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        """Opens a channel, which connects at the first call.

        Raises:
            CredentialsError: A file of the credentials cannot be used.
        """
        self._metadata += self._credentials.metadata()
        self._channel = self._credentials.channel(self._target, _OPTIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.close(None)

    async def welcome(self) -> Welcome:
        collection, hello = stubs.CollectionStub(self._open), convert.hello_to_wire(Hello(PROTOCOL_VERSIONS))
        return await self._call(collection.Hello, hello, convert.welcome_from_wire)

    async def plan(self) -> Plan:
        return await self._call(self._catalogue.GetPlan, pb.GetPlanRequest(), lambda reply: Plan.from_bytes(reply.plan))

    async def status(self) -> ServiceStatus:
        return await self._call(self._admin.GetStatus, pb.StatusRequest(), convert_admin.status_from_wire)

    async def plans(self) -> list[PlanInfo]:
        """All plans of the store, in the order of their registration."""
        return await self._call(self._admin.ListPlans, pb.ListPlansRequest(), convert_admin.plans_from_wire)

    async def windows(
        self, limit: int = PAGE, *, before: int | None = None, states: Collection[str] = ()
    ) -> WindowsPage:
        """The newest windows before ``before``, at most ``limit``; only windows in ``states`` if it is not empty."""
        found: list[tuple[int, str]] = []
        while True:
            # One more than the limit shows whether there are more.
            size = PAGE_MAX if states else min(limit + 1 - len(found), PAGE_MAX)
            request = convert_admin.windows_request_to_wire(before, size)
            page = await self._call(self._admin.ListWindows, request, convert_admin.windows_from_wire)
            found += [(window, state) for window, state in page.windows if not states or state in states]
            if len(found) > limit or not page.more or not page.windows:
                return WindowsPage(tuple(found[:limit]), more=len(found) > limit)
            before = page.windows[-1][0]

    async def ledger(self, limit: int = PAGE) -> LedgerPage:
        """The ledger of the plan's population, with its newest spends."""
        first = page = await self._ledger(0, limit)
        spends, known = [*first.spends], first.spends_total
        while page.spends and len(spends) < min(limit, first.spends_total):
            page = await self._ledger(len(spends) + known - first.spends_total, limit - len(spends))
            # New spends since the last page have shifted the older ones, so this page may begin with known ones.
            spends += page.spends[max(0, page.spends_total - known) :]
            known = page.spends_total
        return replace(first, spends=tuple(spends))

    async def seal(self, window: int | None = None, *, early: bool = False) -> int:
        """Seals a window, by default the oldest open one, and returns when every fold has passed the seal.

        With ``early`` a window can be sealed before its end and lateness.
        """
        request = pb.SealWindowRequest(window=window or 0, oldest=window is None, early=early)
        return await self._call(self._admin.SealWindow, request, lambda reply: reply.window, timeout_s=_LONG_S)

    async def seal_due(self) -> list[int]:
        """Seals every window past its end and lateness, the oldest first.

        Raises:
            ServiceError: There is no such window, and the error states when the next one ends; or a seal failed.
        """
        sealed = [await self.seal()]
        while True:
            try:
                sealed.append(await self.seal())
            except ServiceError as error:
                if error.reason == _ORDER:  # no window is left, or another operator sealed it
                    return sealed
                done = ", ".join(map(str, sealed))
                raise ServiceError(f"{error} (sealed before that: {done})", error.reason) from error

    async def release(self, window: int | None = None) -> Released:
        """Draws the outcome of a sealed window, by default of the oldest one without an outcome."""
        request = pb.ReleaseWindowRequest(window=window or 0, oldest=window is None)
        released = convert_admin.released_from_wire
        return await self._call(self._admin.ReleaseWindow, request, released, timeout_s=_LONG_S)

    async def seal_through(self, window: int) -> None:
        """Seals every open window up to this one, ended or not; windows that ended since the start may be empty."""
        while await self.seal(early=True) < window:
            pass

    async def release_through(self, window: int) -> Released:
        """Draws the outcomes of all sealed windows up to this one, in order; returns the last."""
        released = await self.release()
        while released.release.window < window:
            released = await self.release()
        return released

    async def releases(self) -> list[ReleaseInfo]:
        """All published outcomes, released or withheld, by window."""
        return (await self.listing())[0]

    async def listing(self) -> tuple[list[ReleaseInfo], NextOutcome | None]:
        """The same, and the next outcome: that of the oldest window without one; None: there is none.

        An outcome that is published meanwhile is in the list.
        """
        return await self._call(self._catalogue.ListReleases, _listing(None), convert_outcomes.listing_from_wire)

    async def watch(self, first_window: int | None = None) -> AsyncIterator[ReleaseInfo]:
        """The published outcomes from a window on, then each one as it is published; ends when the service stops."""
        with self._asking():
            async for info in self._catalogue.WatchReleases(_listing(first_window), metadata=self._metadata):
                yield convert_outcomes.release_info_from_wire(info)

    async def outcome(self, window: int) -> tuple[ReleaseInfo, Release | None]:
        """The published outcome of a window, from the catalogue that analysts use. The release is None if withheld.

        Raises:
            ServiceError: The outcome is not listed, or listed more than once.
        """
        listed = [info for info in await self.releases() if info.window == window]
        if len(listed) != 1:
            raise ServiceError(f"window {window} has {len(listed)} published outcomes, expected 1")
        return listed[0], None if listed[0].withheld else await self.fetch(listed[0])

    async def fetch(self, info: ReleaseInfo) -> Release:
        """Downloads a published release and checks its SHA-256.

        Raises:
            ServiceError: The release cannot be downloaded, or its window is withheld.
            ReleaseError: The bytes are not a valid release.
        """
        if info.withheld:
            raise ServiceError(f"window {info.window} is withheld: it has too few clients")
        if info.removed:
            raise ServiceError(f"the release of window {info.window} was removed by the service")
        data = bytearray()
        with self._asking():
            request = pb.GetReleaseRequest(plan_id=info.plan_id, kind=info.kind, window=info.window)
            async for chunk in self._catalogue.GetRelease(request, metadata=self._metadata, timeout=_LONG_S):
                if chunk.offset != len(data) or len(data) + len(chunk.data) > info.size_bytes:
                    raise ServiceError(f"release of window {info.window}: received a chunk out of order")
                data += chunk.data
        if hashlib.sha256(data).digest() != info.sha256:
            raise ServiceError(f"release of window {info.window}: SHA-256 differs from the listed one; try again")
        return Release.from_bytes(bytes(data))

    async def _ledger(self, skip: int, limit: int) -> LedgerPage:
        request = pb.GetLedgerRequest(skip=skip, limit=min(limit, PAGE_MAX))
        return await self._call(self._admin.GetLedger, request, convert_admin.ledger_from_wire)

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ReplyT]",
        request: RequestT,
        read: Callable[[ReplyT], T],
        *,
        timeout_s: float = _QUICK_S,
    ) -> T:
        with self._asking():
            return read(await method(request, metadata=self._metadata, timeout=timeout_s))

    @property
    def _admin(self) -> stubs.AdministrationStub:
        return stubs.AdministrationStub(self._open)

    @property
    def _catalogue(self) -> stubs.CatalogueStub:
        return stubs.CatalogueStub(self._open)

    @property
    def _open(self) -> grpc.aio.Channel:
        assert self._channel is not None, "use it as a context manager"
        return self._channel

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Translates gRPC errors to one line with the text of the service."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or "no reason given"
            if (explained := self._credentials.explained(self._target, details)) != details:
                raise ServiceError(explained) from error
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ServiceError(f"{self._target}: no service answers here ({details.splitlines()[0]})") from error
            reason = dict(error.trailing_metadata() or ()).get(REASON, "")
            raise ServiceError(f"{self._target}: {details}", str(reason)) from error
        except (WireError, PlanError) as error:
            raise ServiceError(f"{self._target}: this version cannot read the answer: {error}") from error


def _listing(first_window: int | None) -> pb.ListReleasesRequest:
    """Of the outcomes from a window on; None: of all."""
    return pb.ListReleasesRequest(first_window=first_window or 0, from_first=first_window is not None)
