"""Process-group stores that listen on loopback only, for the ranks that the launcher starts.

With `env://` or `tcp://`, ranks meet at a TCPStore of rank 0, which c10d lets listen on every
network interface, without authentication. If the requested address is on loopback, the store is
given a socket bound to it.

A program may destroy its default group and create it again. A rank ahead of rank 0 would then join
the previous group's store, which is about to be closed. So rank 0 notes in a file each time it
hosts a store, and a rank waits for its turn before it connects.
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
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write

_PARAMETERS = ("host_name", "port", "world_size", "is_master", "timeout")
_BACKLOG = 4096
_POLL_INTERVAL_S = 0.01
_DEFAULT_TIMEOUT = timedelta(minutes=5)
_INTERFACES = ("lo", "lo0")

ADDRESS = "127.0.0.1"
INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
"""Variables by which gloo, NCCL and tensorpipe select the interface to listen on."""

_num_joined: Counter[tuple[int, int]] = Counter()
_num_shared: Counter[int] = Counter()
# A forked rank counts the groups that it joins itself, from 0.
os.register_at_fork(after_in_child=_num_joined.clear)


def interface() -> str:
    """Return the name of the loopback interface; empty if it cannot be found."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in _INTERFACES if name in names), "")


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a loopback port, on which ranks can listen."""
    with _bound(ADDRESS, 0) as listener:
        yield listener.getsockname()[1]


def host_on_loopback(folder: Path, on_rendezvous: Callable[[], None]) -> None:
    """Host the stores of this process's groups on loopback.

    Args:
        folder: a folder shared by the ranks.
        on_rendezvous: called before a store is hosted or joined.
    """
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    make = rendezvous.TCPStore
    make = make.args[0] if isinstance(make, functools.partial) else make  # that of a forking parent
    rendezvous.TCPStore = functools.partial(_store, make, folder, on_rendezvous)


def _store(
    make: Any, folder: Path, on_rendezvous: Callable[[], None], *args: Any, **kwargs: Any
) -> Any:
    """Create the store that torch asks for, hosted or joined."""
    on_rendezvous()
    options = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    address = _loopback_address(options["host_name"], options["port"])
    if not (address and options.get("multi_tenant")):  # requested for a process group
        return make(**options)
    create = _hosted if options["is_master"] else _joined
    return create(make, folder, address, options)


def _hosted(make: Any, folder: Path, address: str, options: dict[str, Any]) -> Any:
    """Host a store, or use a part of an earlier store that is still in use."""
    port = options["port"]
    try:
        listening = _bound(address, port)
    except OSError:  # its own; otherwise torch reports the owner of the port
        listening, _num_shared[port] = None, _num_shared[port] + 1
    else:
        _num_shared[port] = 0
    # Before the store listens: ranks take a listener without a noted turn for another program.
    _note_turn(folder, port, options["world_size"], _num_shared[port])
    if listening is not None:
        listening.listen(_BACKLOG)
        # From here on the store owns the socket.
        options["master_listen_fd"] = listening.detach()
    return _part(make(**options), _num_shared[port])


def _joined(make: Any, folder: Path, address: str, options: dict[str, Any]) -> Any:
    part = _await_turn(folder, address, options)
    return _part(make(**options), part)


def _part(store: Any, number: int) -> Any:
    """Return the part of a store that no earlier group has written to."""
    prefixed: Any = sys.modules["torch.distributed"].PrefixStore
    return prefixed(f"again-{number}", store) if number else store


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Lets rank 0 bind the port while the launcher reserves it by a socket that does not listen.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def _loopback_address(host: str, port: int) -> str:
    """Return the loopback address that a host name resolves to; empty if others are among them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    addresses = sorted(str(address[0]) for *_, address in found)  # 127.0.0.1 before ::1
    return addresses[0] if all(map(_is_loopback, addresses)) else ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _turns(folder: Path, port: int) -> dict[str, list[int]]:
    """Return by number of ranks the store part of each group in turn; empty if none is noted."""
    with contextlib.suppress(OSError):
        # Never half written, since the file is replaced atomically.
        return json.loads(_path(folder, port).read_text(encoding="ascii"))
    return {}


def _note_turn(folder: Path, port: int, world_size: int, part: int) -> None:
    turns = _turns(folder, port)
    turns[str(world_size)] = [*turns.get(str(world_size), []), part]
    with atomic_write(_path(folder, port)) as unfinished:
        unfinished.write_text(json.dumps(turns), encoding="ascii")


def _path(folder: Path, port: int) -> Path:
    return folder / f"store-{port}.json"


def _await_turn(folder: Path, address: str, options: dict[str, Any]) -> int:
    """Wait until rank 0 has hosted as often as this process joins; return the part to join.

    Do not wait for a process that the launcher did not start.
    """
    key = options["port"], options["world_size"]
    _num_joined[key] += 1
    until = time.monotonic() + options.get("timeout", _DEFAULT_TIMEOUT).total_seconds()
    while time.monotonic() < until:
        parts = _turns(folder, options["port"]).get(str(options["world_size"]), [])
        if len(parts) >= _num_joined[key]:
            return parts[_num_joined[key] - 1]
        if _is_foreign(folder, address, options["port"]):
            break
        time.sleep(_POLL_INTERVAL_S)
    return 0


def _is_foreign(folder: Path, address: str, port: int) -> bool:
    """Return whether a process listens without a noted turn, which ranks note beforehand."""
    if _turns(folder, port):
        return False
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return not _turns(folder, port)
    return False
