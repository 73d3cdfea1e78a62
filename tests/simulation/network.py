"""The network between devices and gateways: streams break, calls overtake each other, copies come late."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from aggregator.errors import RefusedError
from edge_client.transport.interface import ConnectionLostError, Disconnect, PlanReply
from hushsum_proto.answers import Answer
from hushsum_proto.messages import PROTOCOL_VERSIONS, Hello, Welcome
from tests.simulation.loop import Process, VirtualLoop

_DELAY_S: Final = 0.005
_CONNECT_S: Final = 1.0
_LATE_S: Final = 8.0  # how late a copy may come: long after its window's seal


class Front(Protocol):
    """What a gateway's process shows to the network."""

    process: Process

    async def welcome(self, hello: Hello) -> Welcome: ...

    def begin(self, client_id: str, plan_id: bytes, data: bytes) -> "Answer | asyncio.Future[Answer]": ...

    def send(self, client_id: str, plan_id: bytes, data: bytes, tell: Callable[[Answer], None]) -> None: ...


@dataclass
class Network:
    """All connections.

    Attributes:
        fronts: The running gateways, by name.
        breaks: The chance that a message breaks its connection: half of them before it arrives, half after.
        copies: The chance that a delta arrives a second time, at any gateway, up to seconds later.
        cut: Names of devices and gateways that reach nobody.
        told: Is told of every answer that a gateway gives, whether or not it arrives.
    """

    loop: VirtualLoop
    seed: int
    told: Callable[[str, bytes, Answer], None]
    fronts: dict[str, Front] = field(default_factory=dict)
    breaks: float = 0.0
    copies: float = 0.0
    cut: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(f"network/{self.seed}")
        self._open: list[SimConnection] = []

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self.breaks = self.copies = 0.0
        self.cut.clear()

    def delay_s(self) -> float:
        """One way."""
        return self.random.expovariate(1 / _DELAY_S)

    def some_front(self) -> Front | None:
        """A gateway, as a load balancer picks one."""
        names = sorted(self.fronts)
        return self.fronts[self.random.choice(names)] if names else None

    def is_cut(self, *names: str) -> bool:
        """Whether one of these reaches nobody."""
        return any(name.partition("#")[0] in self.cut for name in names)

    def opened(self, connection: "SimConnection") -> None:
        """It is there."""
        self._open.append(connection)

    def lose(self, name: str) -> None:
        """Every connection of a device or a gateway breaks."""
        for connection in [each for each in self._open if name in each.names]:
            self._open.remove(connection)
            connection.lose()

    def deliver(
        self, front: Front, client_id: str, plan_id: bytes, data: bytes, reply: Callable[[Answer], None], *, unary: bool
    ) -> None:
        """A delta arrives in a gateway's process, by a call of its own or as one of a stream."""

        def answered(answer: Answer) -> None:
            self.told(client_id, data, answer)
            reply(answer)

        def receive() -> None:
            if not unary:
                front.send(client_id, plan_id, data, answered)
                return
            answer = front.begin(client_id, plan_id, data)
            if isinstance(answer, Answer):
                answered(answer)
            else:
                answer.add_done_callback(lambda done: answered(done.result()))

        self.loop.call_soon(receive, context=front.process.context.copy())


class SimTransport:
    """See :class:`edge_client.transport.interface.Transport`.

    Args:
        network: The one that all share.
        process: The device's.
        client_id: Whom the authenticator sees.
    """

    def __init__(self, network: Network, process: Process, client_id: str) -> None:
        self._network, self._process, self._client_id = network, process, client_id

    def connect(self) -> "SimConnection":
        return SimConnection(self._network, self._process, self._client_id)


class SimConnection:
    """See :class:`edge_client.transport.interface.Connection`."""

    def __init__(self, network: Network, process: Process, client_id: str) -> None:
        self._network, self._device, self._client_id = network, process.name, client_id
        self._front: Front | None = None
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._plan_id = b""
        self._unary = False
        self._lost = False
        self._there_s = self._back_s = 0.0  # when the last message arrives, of a stream

    @property
    def names(self) -> tuple[str, ...]:
        """Both ends, as hosts and as processes."""
        ends = (self._device, "" if self._front is None else self._front.process.name)
        return (*ends, *(end.partition("#")[0] for end in ends))

    async def greet(self, plan_id: bytes) -> Welcome:
        network, self._plan_id = self._network, plan_id
        front = self._front = network.some_front()
        reply: asyncio.Future[Welcome] = network.loop.create_future()
        if front is None:
            network.loop.call_world(network.delay_s(), _fail, reply, Disconnect("nobody listens"))
        else:
            network.opened(self)
            network.loop.call_world(network.delay_s(), self._greet, front, reply)
        network.loop.call_world(_CONNECT_S, _fail, reply, Disconnect("no reply to Hello"))
        return await reply

    def _greet(self, front: Front, reply: "asyncio.Future[Welcome]") -> None:
        network = self._network
        if network.is_cut(self._device, front.process.name) or not front.process.alive:
            return

        async def welcome() -> None:
            try:
                welcome = await front.welcome(Hello(PROTOCOL_VERSIONS, self._plan_id))
            except RefusedError as error:
                network.loop.call_world(network.delay_s(), _fail, reply, Disconnect(str(error), error.refusal))
            except Exception as error:  # noqa: BLE001  a server's edge turns whatever it is into a failed call
                network.loop.call_world(network.delay_s(), _fail, reply, Disconnect(f"internal: {error}"))
            else:
                network.loop.call_world(network.delay_s(), _reply, reply, welcome)

        network.loop.spawn_in(front.process, welcome(), "welcome")

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        raise AssertionError("every simulated device has its plan")

    def open(self, *, unary: bool) -> None:
        self._unary = unary

    async def send(self, delta: bytes) -> None:
        network, front = self._network, self._front
        await asyncio.sleep(0)
        if self._lost or front is None:
            raise ConnectionLostError(Disconnect("the connection broke"))
        if network.random.random() < network.copies:
            self._copy(delta)
        if network.random.random() < network.breaks:
            arrives = network.random.random() < 0.5
            if arrives:
                network.loop.call_world(network.delay_s(), self._arrive, front, delta)
            network.loop.call_world(network.delay_s(), self.lose)
            return
        at_s = network.loop.time() + network.delay_s()
        if not self._unary:
            at_s = self._there_s = max(self._there_s, at_s)
        network.loop.call_world(at_s - network.loop.time(), self._arrive, front, delta)

    def _arrive(self, front: Front, delta: bytes) -> None:
        if not self._network.is_cut(self._device, front.process.name):
            self._network.deliver(front, self._client_id, self._plan_id, delta, self._answer, unary=self._unary)

    def _copy(self, delta: bytes) -> None:
        network = self._network

        def arrive() -> None:
            front = network.some_front()
            if front is not None:
                network.deliver(front, self._client_id, self._plan_id, delta, lambda _: None, unary=self._unary)

        network.loop.call_world(network.random.random() ** 3 * _LATE_S, arrive)

    def _answer(self, answer: Answer) -> None:
        network = self._network
        at_s = network.loop.time() + network.delay_s()
        if not self._unary:
            at_s = self._back_s = max(self._back_s, at_s)
        network.loop.call_world(at_s - network.loop.time(), self._come_back, answer)

    def _come_back(self, answer: Answer) -> None:
        front = self._front
        assert front is not None
        if not self._lost and not self._network.is_cut(self._device, front.process.name):
            self._answers.put_nowait(answer)

    def lose(self) -> None:
        """It breaks; the device hears of it in a moment."""
        self._lost = True
        self._answers.put_nowait(None)

    async def answers(self) -> AsyncGenerator[Answer, None]:
        while (answer := await self._answers.get()) is not None:
            yield answer
        raise ConnectionLostError(Disconnect("the connection broke"))

    async def close(self) -> None:
        self._lost = True


def _fail(reply: "asyncio.Future[Welcome]", loss: Disconnect) -> None:
    if not reply.done():
        reply.set_exception(ConnectionLostError(loss))


def _reply(reply: "asyncio.Future[Welcome]", welcome: Welcome) -> None:
    if not reply.done():
        reply.set_result(welcome)
