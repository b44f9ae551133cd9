"""The page's server answers on the loopback, for the token, and nothing else."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from commtrace.errors import UsageError
from commtrace_cli.serving import Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving("<p>page", 0) as served:
        served.update({"a": 1})
        yield served


def asked(
    served: Served, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    port = urlsplit(served.url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_address_has_the_page_and_its_state(served: Served) -> None:
    assert asked(served, f"/?token={served.token}") == (200, b"<p>page")
    assert asked(served, f"/state?token={served.token}", host="localhost:1") == (200, b'{"a": 1}')


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/", None),
        ("/state", None),
        ("/state?token=", None),
        ("/state?token=wrong", None),
        ("/state?token=%F0%9F%98%80", None),
        ("/state?token=TOKEN", "example.org"),
        ("/state?token=TOKEN", "127.0.0.1.example.org"),
    ],
)
def test_others_are_refused(served: Served, path: str, host: str | None) -> None:
    status, body = asked(served, path.replace("TOKEN", served.token), host=host)
    assert status == 403
    assert b'"a"' not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    assert asked(served, f"/state?token={served.token}", method=method)[0] == 501


def test_other_paths_are_not_there(served: Served) -> None:
    assert asked(served, f"/etc/passwd?token={served.token}")[0] == 404


def test_only_the_loopback_is_listened_on(served: Served) -> None:
    port = urlsplit(served.url).port
    for family, address in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as other:
            other.settimeout(5)
            assert other.connect_ex((address, port)) != 0


def test_a_port_in_use_is_a_usage_error(served: Served) -> None:
    port = urlsplit(served.url).port
    with (
        pytest.raises(UsageError, match=f"cannot serve the page on port {port}"),
        serving("", port or 0),
    ):
        pass


def test_each_server_has_a_token_of_its_own() -> None:
    assert len({Served(b"").token for _ in range(10)}) == 10
