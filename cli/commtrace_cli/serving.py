"""Server of the page of `commtrace watch`: on the loopback only, for whoever knows the token.

It answers GET of `/` and `/state` with the token of the address, and refuses everything else: other
methods, other hosts in the request (so that no name that resolves to the loopback reaches it from a
foreign page), and wrong tokens.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from commtrace.errors import UsageError

_LOOPBACK = "127.0.0.1"
_NAMES = (_LOOPBACK, "localhost")
_TIMEOUT_S = 10
_MOST_CONNECTIONS = 64
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


@dataclass
class Served:
    """Page and state that are served; the state is replaced at each refresh."""

    page: bytes
    state: bytes = b"null"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    url: str = ""

    def update(self, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        self.state = json.dumps(state, allow_nan=False).encode()


@contextlib.contextmanager
def serving(page: str, port: int) -> Iterator[Served]:
    """Serve a page on the loopback while the body runs; port 0 is any free port.

    Raises:
        UsageError: the port is in use.
    """
    served = Served(page.encode("utf-8", "backslashreplace"))
    try:
        server = _Server((_LOOPBACK, port), _handler_of(served))
    except OSError as error:
        raise UsageError(
            f"cannot serve the page on port {port}",
            found=(error.strerror or str(error)).lower(),
            attempt="--port 0, for any free port",
        ) from error
    served.url = f"http://{_LOOPBACK}:{server.server_port}/?token={served.token}"
    thread = threading.Thread(target=server.serve_forever, name="commtrace-page", daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """Serves a bounded number of connections, each for a bounded time.

    Those beyond, and those that take longer, however slowly they send, are closed.
    """

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: dict[socket.socket, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, if there are not too many."""
        if len(self._ends) >= _MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._ends[request] = time.monotonic() + _TIMEOUT_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections whose time is over; called several times a second."""
        now = time.monotonic()
        for request, end in list(self._ends.items()):
            if now > end:
                with contextlib.suppress(OSError):  # its thread closes it then
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep the terminal for the state: a client that resets its connection is no error."""


def _handler_of(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version = "commtrace"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer with the page or the state."""
            host, _, _ = self.headers.get("Host", "").partition(":")
            try:
                address = urlsplit(self.path)
            except ValueError:
                self.send_error(400, "no address")
                return
            given = parse_qs(address.query).get("token", [""])[0]
            if host not in _NAMES:
                self.send_error(403, "another host")
            elif not hmac.compare_digest(given.encode(), served.token.encode()):
                self.send_error(403, "no token, or a wrong token")
            elif address.path == "/":
                self._answer(served.page, "text/html; charset=utf-8")
            elif address.path == "/state":
                self._answer(served.state, "application/json")
            else:
                self.send_error(404)

        def _answer(self, body: bytes, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the terminal for the state."""

    return Handler
