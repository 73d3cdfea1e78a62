"""What the programs of a deployment show to its service, and whom they believe: from what ``prepare`` has made."""

from collections.abc import Mapping

from hushsum_proto.credentials import Credentials
from simulator.deployment import files
from simulator.deployment.settings import Settings


def reader(settings: Settings) -> Credentials:
    """Of whoever reads releases."""
    return Credentials(token=settings.operator / "reader.token", ca=settings.config / "ca.pem")


def administrator(settings: Settings) -> Credentials:
    """Of whoever looks at the ledger."""
    return Credentials(token=settings.operator / "admin.token", ca=settings.config / "ca.pem")


def clients(settings: Settings) -> Mapping[str, Credentials]:
    """Of each client, by its id.

    Raises:
        JourneyError: Its tokens are not there.
    """
    tokens = files.read_json(settings.fleet / "tokens.json", "python -m simulator.deployment prepare")
    return {name: Credentials(token=token, ca=settings.fleet / "ca.pem") for name, token in tokens.items()}
