"""A launcher as a process, observed from outside: its child processes and listening sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0

LAUNCHER = """
import sys
from commtrace.launching.launcher import run_script
result = run_script(sys.argv[3], sys.argv[4:], nproc=int(sys.argv[1]), spool_folder=sys.argv[2])
print("exit code", result.exit_code)
"""


@contextlib.contextmanager
def launcher(
    script: Path, *args: str, nproc: int, spools: Path, program: str = LAUNCHER
) -> Iterator[subprocess.Popen[str]]:
    """Start a launcher that runs `script`; it and its descendants are killed after the body."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(nproc), str(spools), str(script), *args],
        cwd=script.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    below: set[int] = set()
    try:
        yield process
    finally:
        below |= descendants(process.pid)
        process.kill()
        process.communicate()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_ports(num: int) -> int:
    """Find consecutive ports that are free and outside of the system's ephemeral range.

    They do not depend on seeds, which other processes of the tests may have set alike.
    """
    while True:
        first = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + num):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[str], timeout_s: float = DEADLINE_S
) -> None:
    """Wait for a condition, while a process runs."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "timed out"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Process ids of all descendants of a process."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _parent(process: Path) -> int:
    with contextlib.suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return -1


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports at which the processes accept TCP connections."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {
        (_address(local.partition(":")[0]), int(local.partition(":")[2], 16))
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
        for _, local, _, state, *rest in [line.split()]
        if state == "0A" and rest[5] in inodes
    }


def beyond_loopback(sockets: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """The sockets that other machines can reach."""
    return {each for each in sockets if not ipaddress.ip_address(each[0]).is_loopback}


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    yield target[8:-1]


def _address(text: str) -> str:
    words = struct.pack(
        f"={len(text) // 8}I", *(int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    )
    return socket.inet_ntop(socket.AF_INET6 if len(words) == 16 else socket.AF_INET, words)
