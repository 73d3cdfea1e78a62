"""What every command that calls a service is told of the way there: whom to believe, and what to show."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hushsum_proto.credentials import Credentials

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option(
        "--ca",
        type=_FILE,
        envvar="HUSHSUM_CA",
        show_envvar=True,
        help="CA certificates (PEM).  [default: those of the system]",
    ),
    click.option("--cert", type=_FILE, help="Client certificate (PEM), for services with certificate authentication."),
    click.option("--cert-key", type=_FILE, help="Private key of --cert (PEM)."),
    click.option(
        "--token-file",
        type=_FILE,
        envvar="HUSHSUM_TOKEN_FILE",
        show_envvar=True,
        help="File with the bearer token, for services with token authentication.",
    ),
    click.option(
        "--server-name",
        metavar="NAME",
        help="Host name expected in the service's certificate.  [default: the host of the address]",
    ),
    click.option("--insecure", is_flag=True, help="Allow unencrypted connections to other machines; not with a token."),
)


def connects(command: Callable[..., Any]) -> Callable[..., Any]:  # Any: any command's
    """Gives a command these options, as one argument: ``credentials``."""

    @functools.wraps(command)
    def with_credentials(**given: Any) -> Any:  # Any: any command's
        shown = {name: given.pop(name) for name in ("ca", "cert", "cert_key", "token_file", "server_name", "insecure")}
        return command(credentials=_credentials(**shown), **given)

    for option in reversed(_OPTIONS):
        with_credentials = option(with_credentials)
    return with_credentials


def _credentials(
    *,
    ca: Path | None,
    cert: Path | None,
    cert_key: Path | None,
    token_file: Path | None,
    server_name: str | None,
    insecure: bool,
) -> "Credentials":
    """What these options say. A command is over soon: a token that is refused now is told now, not waited for.

    Raises:
        CredentialsError: The token's file cannot be used, or came with ``--insecure``; or a certificate came without
            its key.
    """
    from hushsum_proto.credentials import Credentials
    from hushsum_proto.errors import CredentialsError

    if (cert is None) != (cert_key is None):
        raise CredentialsError("--cert and --cert-key must be given together: a certificate and its private key")
    if insecure and token_file is not None:
        raise CredentialsError(
            "--insecure and --token-file cannot be combined: a token would be sent unencrypted. Use TLS; for "
            "services on this machine remove --insecure"
        )
    shown = Credentials(
        token_file=token_file, ca=ca, certificate=cert, key=cert_key, insecure=insecure, server_name=server_name
    )
    return shown.fixed()
