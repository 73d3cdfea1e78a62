"""A web application with threads that contributes what its users send: `POST /reading` with a JSON object.

WSGI, as Flask and Django speak it; here with the server of the standard library, one thread a request. A server with
several processes makes one client in each, after the fork, with a spool of its own (gunicorn: in `post_fork`).

hushsum serve --plan examples/plan.toml --data hushsum-data                   (in another terminal)
python examples/web_app.py localhost:7443 &
curl -d '[1.5, 2.5]' localhost:8080/reading
curl localhost:8080/status
"""

import json
import os
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer, make_server

from edge_client import Policy, SpoolFullError
from edge_client.blocking import EdgeClient
from edge_client.transport.interface import Transport
from hushsum import RecordError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class ReadingsApp:
    """The application: records become deltas in a spool before a request is answered; sending is not its concern."""

    def __init__(self, client: EdgeClient) -> None:
        self._client = client

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answers one request, in whatever thread."""
        route = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if route == ("POST", "/reading"):
            status, body = self._take(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        elif route == ("GET", "/status"):
            now = self._client.status()
            status, body = (
                "200 OK",
                f"{now.records} records, {now.queued} deltas queued, last error: {now.last_error}\n",
            )
        else:
            status, body = "404 Not Found", "POST /reading or GET /status\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [body.encode()]

    def _take(self, data: bytes) -> tuple[str, str]:
        try:
            self._client.add(json.loads(data))
        except (RecordError, ValueError) as error:
            return "400 Bad Request", f"{error}\n"
        except SpoolFullError:
            return "503 Service Unavailable", "try again later\n"
        return "202 Accepted", "safe on disk\n"


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """One thread a request."""

    daemon_threads = True


def main(target: str | Transport, port: int = 8080) -> None:
    """Serves until it is interrupted; then waits a moment for answers."""
    with EdgeClient(target, spool=f"web-{os.getpid()}.db", policy=Policy(max_epsilon=1.0)) as client:
        server = make_server("localhost", port, ReadingsApp(client), server_class=ThreadingServer)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()


if __name__ == "__main__":
    address, *ports = sys.argv[1:] or ["localhost:7443"]
    main(address, *map(int, ports))
