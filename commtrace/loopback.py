"""Stores of process groups that listen on loopback only, for the ranks that the launcher starts.

By `env://` or `tcp://`, ranks meet at a TCPStore of rank 0, which c10d has listen on every network
interface of the machine, without authentication. Where the address asked for is a loopback one,
the store is given a socket that is bound to it.

A program may destroy its default group and make it again. A rank that is ahead of rank 0 would then
meet at the store of the group before, which is about to be closed. So rank 0 counts in a file how
often it has hosted, and a rank waits for its turn before it connects.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from commtrace.writing import whole

_PARAMETERS = ("host_name", "port", "world_size", "is_master", "timeout")
_BACKLOG = 4096
_POLL_INTERVAL_S = 0.01
_DEFAULT_TIMEOUT = timedelta(minutes=5)
_INTERFACES = ("lo", "lo0")

ADDRESS = "127.0.0.1"
INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
"""The variables by which gloo, NCCL and tensorpipe choose the interface to listen on."""

_num_joined: Counter[tuple[int, int]] = Counter()
os.register_at_fork(after_in_child=_num_joined.clear)


def interface() -> str:
    """The name of the loopback interface; empty where it cannot be found."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in _INTERFACES if name in names), "")


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port of the loopback address from being given to others; ranks can listen on it."""
    with _bound(ADDRESS, 0) as kept:
        yield kept.getsockname()[1]


def meet_on_loopback(folder: Path) -> None:
    """Host the stores of this process's groups on loopback; `folder` is shared by the ranks."""
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    make = rendezvous.TCPStore
    if getattr(make, "func", None) is not _store:  # as in a process forked by one that does
        rendezvous.TCPStore = functools.partial(_store, make, folder)


def _store(make: Any, folder: Path, *args: Any, **kwargs: Any) -> Any:
    """The store that torch asks for, hosted or joined."""
    asked = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    address = _loopback_address(asked["host_name"], asked["port"])
    if address and asked.get("multi_tenant"):  # as for a process group
        key = asked["port"], asked["world_size"]
        if asked["is_master"]:
            with contextlib.suppress(OSError):  # it hosts there already, or torch says who does
                listening = _bound(address, asked["port"])
                listening.listen(_BACKLOG)
                asked["master_listen_fd"] = listening.detach()
            _count(folder, *key)
        else:
            _await_turn(folder, address, *key, asked.get("timeout", _DEFAULT_TIMEOUT))
    return make(**asked)


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def _loopback_address(host: str, port: int) -> str:
    """The loopback address that a host's name stands for; empty if it stands for others too."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    addresses = sorted(str(address[0]) for *_, address in found)  # 127.0.0.1 before ::1
    return addresses[0] if all(map(_is_loopback, addresses)) else ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _counts(folder: Path, port: int) -> dict[str, int] | None:
    """How often stores have been hosted at a port, by the number of ranks; None if never."""
    with contextlib.suppress(OSError):
        return json.loads(_path(folder, port).read_text(encoding="ascii"))
    return None


def _count(folder: Path, port: int, world_size: int) -> None:
    counts = _counts(folder, port) or {}
    counts[str(world_size)] = counts.get(str(world_size), 0) + 1
    with whole(_path(folder, port)) as unfinished:
        unfinished.write_text(json.dumps(counts), encoding="ascii")


def _path(folder: Path, port: int) -> Path:
    return folder / f"store-{port}.json"


def _await_turn(folder: Path, address: str, port: int, world_size: int, timeout: timedelta) -> None:
    """Wait until the store has been hosted as often as this process joins, now included."""
    _num_joined[port, world_size] += 1
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        counts = _counts(folder, port)
        if counts is None and _is_listened_to(address, port):
            return  # by a process that is none of the launcher's
        if counts and counts.get(str(world_size), 0) >= _num_joined[port, world_size]:
            return
        time.sleep(_POLL_INTERVAL_S)


def _is_listened_to(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
