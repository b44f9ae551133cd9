"""Servers of `commtrace watch`: its page on the loopback, and metrics at an address of choice.

The page's server answers GET of `/` and `/state` with the token of its address, the other GET of
`/metrics`; everything else is refused. On the loopback, so are other hosts in the request, so that
no name that resolves to the loopback reaches a server from a foreign page.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from commtrace.errors import UsageError

if TYPE_CHECKING:
    from commtrace.live.metrics import RunMetrics

_LOOPBACK = "127.0.0.1"
_NAMES = (_LOOPBACK, "localhost")
_TIMEOUT_S = 10
_LAST_ANSWERS_S = 1
_MOST_CONNECTIONS = 64
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
Respond = Callable[[SplitResult, str], tuple[bytes, str]]
"""Body and content type for an address and the header `Accept`; raises `_RefusedError`."""


class _RefusedError(Exception):
    """Status and reason of a refusal."""


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

    def respond(self, address: SplitResult, accept: str) -> tuple[bytes, str]:
        """Return the page or the state."""
        given = parse_qs(address.query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise _RefusedError(403, "no token, or a wrong token")
        if address.path == "/":
            return self.page, "text/html; charset=utf-8"
        if address.path == "/state":
            return self.state, "application/json"
        raise _RefusedError(404)


@contextlib.contextmanager
def serving(page: str, port: int) -> Iterator[Served]:
    """Serve a page on the loopback while the body runs; port 0 is any free port.

    Raises:
        UsageError: the port is in use.
    """
    served = Served(page.encode("utf-8", "backslashreplace"))
    summary, attempt = f"cannot serve the page on port {port}", "--port 0, for any free port"
    with _listening(_LOOPBACK, port, served.respond, summary, attempt) as url:
        served.url = f"{url}/?token={served.token}"
        yield served


@contextlib.contextmanager
def serving_metrics(metrics: RunMetrics, host: str, port: int) -> Iterator[str]:
    """Serve metrics while the body runs, and yield their address; port 0 is any free port.

    Raises:
        UsageError: the host is not one of this machine, or the port is in use.
    """

    def respond(address: SplitResult, accept: str) -> tuple[bytes, str]:
        if address.path != "/metrics":
            raise _RefusedError(404)
        return metrics.text(accept)

    summary = f"cannot serve metrics on port {port} of {host}"
    attempt = "--metrics 0, for any free port of the loopback"
    with _listening(host, port, respond, summary, attempt) as url:
        yield f"{url}/metrics"


def address_of(text: str) -> tuple[str, int]:
    """Return the host and port of `PORT`, which is on the loopback, or `HOST:PORT`.

    Raises:
        UsageError: it is neither.
    """
    asked = re.fullmatch(r"(?:(?P<host>[^\[\]]+|\[[^\[\]]+\]):)?(?P<port>[0-9]{1,5})", text)
    if asked is None or int(asked["port"]) >= 1 << 16:
        raise UsageError(
            f"cannot use --metrics {text}",
            why="a port up to 65535 is needed, or an address of this machine and a port",
            attempt="--metrics 9464, or --metrics 0.0.0.0:9464 for scrapes from other machines",
        )
    return (asked["host"] or _LOOPBACK).strip("[]"), int(asked["port"])


@contextlib.contextmanager
def _listening(host: str, port: int, respond: Respond, summary: str, attempt: str) -> Iterator[str]:
    """Serve while the body runs, and yield the address without a path."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, address, respond)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(summary, found=reason.lower(), attempt=attempt) from error
    thread = threading.Thread(target=server.serve_forever, name="commtrace-page", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """Serves a bounded number of connections, each for a bounded time.

    Those beyond, and those that take longer, however slowly they send, are closed.
    """

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any, respond: Respond) -> None:
        self.address_family = family
        self._ends: dict[socket.socket, float] = {}
        names = _NAMES if ipaddress.ip_address(address[0]).is_loopback else None
        super().__init__(address, _handler_of(respond, names and {*names, address[0]}))

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

    def server_close(self) -> None:
        """Stop listening, and leave answers that have begun a moment to end."""
        super().server_close()
        end = time.monotonic() + _LAST_ANSWERS_S
        while self._ends and time.monotonic() < end:
            time.sleep(0.01)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep the terminal for the state: a client that resets its connection is no error."""


def _handler_of(
    respond: Respond, hosts: Container[str | None] | None
) -> type[BaseHTTPRequestHandler]:
    """Return a handler of requests that name one of the hosts; None allows all."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version = "commtrace"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer, or say why not."""
            try:
                address = urlsplit(self.path)
                host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            except ValueError:
                self.send_error(400, "no address")
                return
            try:
                if hosts is not None and host not in hosts:
                    raise _RefusedError(403, "another host")
                self._answer(*respond(address, self.headers.get("Accept", "")))
            except _RefusedError as refused:
                self.send_error(*refused.args)

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
