"""How the page is reached, and who vouches for callers."""

from dataclasses import dataclass, field
from typing import Final

#: What a proxy proves itself with.
PROXY_HEADER: Final = "x-hushsum-proxy-secret"


@dataclass(frozen=True)
class ProxySignOn:
    """A proxy that has authenticated callers already: they may read.

    Attributes:
        header: In which it names the caller, in lower case.
        secret: What it sends in ``X-Hushsum-Proxy-Secret``, so that nobody else can name callers.
    """

    header: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class PageSettings:
    """How the page is reached.

    Attributes:
        hosts: Names and addresses in lower case that the Host header may have, without ports: any other name leads to
            this machine by mistake or by DNS rebinding.
        port: Where it listens; cookies of plaintext pages have it in their names.
        is_secure: Whether browsers reach it over TLS.
        proxy: Single sign-on; None: off.
    """

    hosts: frozenset[str]
    port: int
    is_secure: bool
    proxy: ProxySignOn | None = None

    @property
    def cookie(self) -> str:
        """The name of the session's cookie: browsers send it to this host alone, over TLS alone where there is TLS."""
        return "__Host-hushsum" if self.is_secure else f"hushsum-{self.port}"

    @property
    def form_cookie(self) -> str:
        """The name of the cookie beside the form of the sign-in."""
        return f"{self.cookie}-form"
