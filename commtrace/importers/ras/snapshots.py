"""Contents of a snapshot of NCCL RAS, as values of known types within bounds.

    {"nccl_version": "2.29.1", "timestamp": "2026-11-26 13:06:53", "communicators": [
       {"hash": "0xae94", "secondary_hash": "0xb7:0xb8", "size": 2,
        "ranks": [{"rank": 0, "host": "10.0.0.1", "pid": 4711, "cuda_dev": 0, "nvml_dev": 0,
                   "status": {"init_state": 0, "async_error": 0, "abort_flag": false, ...},
                   "collective_counts": {"AllReduce": 42, ...}}],
        "missing_ranks": [{"rank": 1, ..., "status": {"unresponsive": true,
                                                      "considered_dead": false}}]}]}

It is the output of `ncclras -f json`. Ranks are numbered within their communicator. A missing rank
did not answer, or has no such communicator.
Source: NVIDIA/nccl, src/ras/client_support.cc of 2.28 and later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from commtrace.errors import NotATraceError
from commtrace.importers.input_files import Document
from commtrace.schema import (
    ABORTED,
    DEAD,
    FINALIZING,
    INITIALIZING,
    MAX_RANKS,
    MOST_INSTANT_NS,
    NO_MEMBER,
    RUNNING,
    UNRESPONSIVE,
)
from commtrace.torch_names import NOT_KNOWN

_IN_PROGRESS = 7
"""Value of `ncclResult_t` for an operation that has not ended, which is no error."""

_MOST_CHARACTERS = 256
_MOST_FUNCTIONS = 64


class RasDevice(NamedTuple):
    """A device of a process, which is a rank of the job; pid -1 if it is unknown."""

    host: str
    pid: int
    number: int


class RasMember(NamedTuple):
    """A rank of a communicator; `counts` are the calls that it has launched, by function."""

    rank: int
    device: RasDevice
    state: str
    error: int
    counts: Mapping[str, int]


class SeenCommunicator(NamedTuple):
    """A communicator in a snapshot."""

    name: str
    second_name: str
    size: int
    members: list[RasMember]


@dataclass(frozen=True, slots=True)
class RasSnapshot:
    """The communicators of a job at a point in time."""

    path: Path
    at_ns: int
    version: str
    communicators: list[SeenCommunicator]
    num_timeouts: int


def snapshot_of(document: Document) -> RasSnapshot:
    """Return the contents of a snapshot.

    Raises:
        NotATraceError: names the field with an impossible value.
    """
    content = document.content
    try:
        at = datetime.strptime(str(content.get("timestamp")), "%Y-%m-%d %H:%M:%S")
        at_ns = int(at.replace(tzinfo=timezone.utc).timestamp()) * 10**9
    except ValueError:
        at_ns = NOT_KNOWN
    if not 0 <= at_ns <= MOST_INSTANT_NS:
        raise _unfit(document, "timestamp", "a date and a time")
    version = content.get("nccl_version")
    ras = content.get("ras")
    timeouts = ras.get("timeouts_count") if isinstance(ras, dict) else None
    return RasSnapshot(
        document.path,
        at_ns,
        version if isinstance(version, str) and len(version) <= _MOST_CHARACTERS else "",
        [
            _communicator(document, f"communicators[{place}]", each)
            for place, each in enumerate(content["communicators"])
        ],
        max(_natural(timeouts), 0),
    )


def _unfit(document: Document, place: str, expected: str) -> NotATraceError:
    return NotATraceError(
        f"cannot import {document.path}",
        place=place,
        found=f"no {expected}",
        why="its contents are not those that NCCL RAS writes as JSON",
        attempt="`ncclras -f json` of NCCL 2.28 or later",
    )


def _communicator(document: Document, place: str, values: Any) -> SeenCommunicator:
    if not isinstance(values, dict):
        raise _unfit(document, place, "object")
    name, second, size = (values.get(key) for key in ("hash", "secondary_hash", "size"))
    if not isinstance(name, str) or _HASH.fullmatch(name) is None:
        raise _unfit(document, f"{place}.hash", "hash, such as 0xae94")
    if not isinstance(second, str) or _HASHES.fullmatch(second) is None:
        second = ""
    if type(size) is not int or not 0 < size <= MAX_RANKS:
        raise _unfit(document, f"{place}.size", f"number of ranks up to {MAX_RANKS:,}")
    members: dict[int, RasMember] = {}
    for key, read in (("ranks", _member), ("missing_ranks", _missing)):
        of_key = values.get(key) or []
        if not isinstance(of_key, list):
            raise _unfit(document, f"{place}.{key}", "list")
        for number, each in enumerate(of_key):
            inside = f"{place}.{key}[{number}]"
            if not isinstance(each, dict) or not isinstance(each.get("status"), dict):
                raise _unfit(document, inside, "rank with a status")
            member = read(each)
            if not 0 <= member.rank < size or member.rank in members:
                raise _unfit(document, f"{inside}.rank", f"rank of its own below {size:,}")
            members[member.rank] = member
    return SeenCommunicator(name, second, size, list(members.values()))


_HASH = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_HASHES = re.compile(r"0x[0-9a-fA-F]{1,16}:0x[0-9a-fA-F]{1,16}", re.ASCII)


def _member(values: Mapping[str, Any]) -> RasMember:
    status = values["status"]
    init, error = (max(_natural(status.get(key)), 0) for key in ("init_state", "async_error"))
    state = next((state for key, state in _FLAGS if status.get(key) is True), "")
    counts = values.get("collective_counts")
    counts = counts if isinstance(counts, dict) and len(counts) <= _MOST_FUNCTIONS else {}
    known = {
        name: _natural(count)
        for name, count in counts.items()
        if len(name) <= _MOST_CHARACTERS and _natural(count) >= 0
    }
    codes = [code for code in (init, error) if code not in (0, _IN_PROGRESS)]
    state = state or (RUNNING if init == 0 else INITIALIZING)
    error = max(codes, default=0)
    return RasMember(_natural(values.get("rank")), _device(values), state, error, known)


_FLAGS = (("abort_flag", ABORTED), ("finalize_called", FINALIZING), ("destroy_flag", FINALIZING))
"""Flags of a status with the state that each shows, in order of precedence."""


def _missing(values: Mapping[str, Any]) -> RasMember:
    status = values["status"]
    is_dead, is_silent = (status.get(key) for key in ("considered_dead", "unresponsive"))
    state = DEAD if is_dead is True else UNRESPONSIVE if is_silent is True else NO_MEMBER
    return RasMember(_natural(values.get("rank")), _device(values), state, 0, {})


def _device(values: Mapping[str, Any]) -> RasDevice:
    host = values.get("host")
    if not isinstance(host, str) or len(host) > _MOST_CHARACTERS or host == "unknown":
        host = ""
    numbers = [_natural(values.get(key)) for key in ("nvml_dev", "cuda_dev")]
    return RasDevice(host, _natural(values.get("pid")), max(numbers))


def _natural(value: Any) -> int:
    """Return an integer from 0 to 2^62 - 1; -1 for anything else."""
    return value if type(value) is int and 0 <= value <= MOST_INSTANT_NS else NOT_KNOWN
