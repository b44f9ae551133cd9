"""The servers answer the page to whoever has its token, metrics at their address, nothing else."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from commtrace.errors import UsageError
from commtrace.live.metrics import RunMetrics
from commtrace_cli.serving import Served, address_of, serving, serving_metrics


@pytest.fixture
def served() -> Iterator[Served]:
    with serving("<p>page", 0) as served:
        served.update({"a": 1})
        yield served


def asked(
    served: Served | str, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    address = urlsplit(served if isinstance(served, str) else served.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
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


def test_what_is_no_address_is_refused(served: Served) -> None:
    with connected(served) as client:
        client.sendall(b"GET http://[x/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 400 ")


def connected(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0), timeout=10)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_a_client_that_resets_leaves_nothing_on_the_terminal(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        client = connected(served)
        client.sendall(f"GET /?token={served.token} HTTP/1.0\r\n".encode())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert asked(served, f"/?token={served.token}")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_connections_beyond_a_number_are_closed_and_slow_ones_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commtrace_cli.serving._MOST_CONNECTIONS", 3)
    monkeypatch.setattr("commtrace_cli.serving._TIMEOUT_S", 2)
    with serving("<p>page", 0) as served, contextlib.ExitStack() as clients:
        slow = [clients.enter_context(connected(served)) for _ in range(3)]
        for client in slow:
            client.sendall(b"GET ")
        assert is_closed(clients.enter_context(connected(served)))
        began = time.monotonic()
        while time.monotonic() < began + 60:
            with contextlib.suppress(OSError):  # each byte comes within the time of a read
                slow[0].sendall(b"x")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if asked(served, f"/?token={served.token}")[0] == 200:
                    return
            time.sleep(0.2)
    pytest.fail("slow clients keep others out")


def test_each_server_has_a_token_of_its_own() -> None:
    assert len({Served(b"").token for _ in range(10)}) == 10


@pytest.fixture
def metrics() -> RunMetrics:
    return RunMetrics()


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/metrics", "GET", None, 200),
        ("/metrics?a=b", "GET", "localhost:9464", 200),
        ("/", "GET", None, 404),
        ("/state", "GET", None, 404),
        ("/metrics/x", "GET", None, 404),
        ("/metrics", "POST", None, 501),
        ("/metrics", "GET", "example.org", 403),
        ("/metrics", "GET", "127.0.0.1.example.org:9464", 403),
        ("/metrics", "GET", "[", 400),
    ],
)
def test_metrics_are_answered_on_the_loopback_to_its_names(
    metrics: RunMetrics, path: str, method: str, host: str | None, status: int
) -> None:
    with serving_metrics(metrics, "127.0.0.1", 0) as url:
        assert asked(url, path, method=method, host=host)[0] == status


def test_metrics_on_all_addresses_are_answered_whatever_the_machine_is_called(
    metrics: RunMetrics,
) -> None:
    with serving_metrics(metrics, "0.0.0.0", 0) as url:
        for host in (None, "login1:9464", "10.0.0.7"):
            assert asked(url.replace("0.0.0.0", "127.0.0.2"), "/metrics", host=host)[0] == 200


def test_metrics_are_served_on_ipv6(metrics: RunMetrics) -> None:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving_metrics(metrics, "::1", 0) as url:
        assert url.startswith("http://[::1]:")
        assert asked(url, "/metrics")[0] == 200
        assert asked(url, "/metrics", host="example.org")[0] == 403


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("login1.example.org:1", ("login1.example.org", 1)),
        ("[::1]:9464", ("::1", 9464)),
        ("[::]:65535", ("::", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    "text", ["", ":", "x", ":9464", "a:", "-1", "65536", "9" * 5000, "٣", "[]:1", "[::1]", "1\n"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        address_of(text)
    assert "  try: --metrics 9464, or --metrics 0.0.0.0:9464 for scrapes from" in str(raised.value)


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1", "a" * 300])
def test_a_host_that_is_not_this_machine_is_a_usage_error(metrics: RunMetrics, host: str) -> None:
    with (
        pytest.raises(UsageError, match=f"cannot serve metrics on port 0 of {host}\n  found: ."),
        serving_metrics(metrics, host, 0),
    ):
        pass


def test_a_port_of_metrics_in_use_is_a_usage_error(metrics: RunMetrics) -> None:
    with serving_metrics(metrics, "127.0.0.1", 0) as url:
        port = urlsplit(url).port or 0
        with pytest.raises(UsageError) as raised, serving_metrics(metrics, "127.0.0.1", port):
            pass
    assert str(raised.value).splitlines() == [
        f"cannot serve metrics on port {port} of 127.0.0.1",
        "  found: address already in use",
        "  try: --metrics 0, for any free port of the loopback",
    ]
