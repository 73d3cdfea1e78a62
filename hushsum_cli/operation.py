"""How the commands of an operator reach the service: the same options and one connection for all of them."""

from typing import TYPE_CHECKING, Any, TypeVar

import click

from hushsum_cli.connection import connects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hushsum_proto.credentials import Credentials
    from hushsum_simulator.console import Console

T = TypeVar("T")


def operates(command: "Callable[..., Any]") -> "Callable[..., Any]":  # Any: any command's
    """Gives a command the options that name a service and the way to it: ``service`` and ``credentials``."""
    at = click.option(
        "--at",
        "service",
        metavar="HOST:PORT",
        default="127.0.0.1:7443",
        show_default=True,
        help="Address of the aggregator.",
    )
    return at(connects(command))


def ask(service: str, credentials: "Credentials", question: "Callable[[Console], Awaitable[T]]") -> T:
    """What a running aggregator answers."""
    import asyncio

    from hushsum_simulator.console import Console

    async def asked() -> T:
        async with Console(service, credentials) as console:
            return await question(console)

    return asyncio.run(asked())
