"""Snapshots of NCCL RAS as its releases write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass(frozen=True)
class RasLayout:
    """Layout of a release; some builds of 2.28 leave out a comma in missing ranks."""

    version: str
    lacks_comma: bool = False


LAYOUTS = (
    RasLayout("2.28.7", lacks_comma=True),
    RasLayout("2.28.9"),
    RasLayout("2.29.1"),
    RasLayout("2.32.3"),
)


def rank(number: int, *, host: str = "10.0.0.1", **counts: int) -> dict[str, Any]:
    """A member that runs; `counts` are of kinds such as AllReduce."""
    return {
        **_process(number, host),
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": dict.fromkeys(FUNCTIONS, 0) | counts,
    }


def missing(number: int, *, unresponsive: bool = False, dead: bool = False) -> dict[str, Any]:
    return {
        **_process(number, "10.0.0.1"),
        "status": {"unresponsive": unresponsive, "considered_dead": dead},
    }


def _process(number: int, host: str) -> dict[str, Any]:
    device = {"cuda_dev": number, "nvml_dev": number}
    return {"rank": number, "host": host, "pid": 100 + number, **device}


def communicator(
    ranks: Sequence[Mapping[str, Any]], absent: Sequence[Mapping[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    return {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(absent),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": list(ranks),
        "missing_ranks": list(absent),
    } | more


def snapshot(
    *communicators: Mapping[str, Any], layout: RasLayout = LAYOUTS[-1], second: int = 0
) -> str:
    """The output of `ncclras -f json`."""
    document = {
        "nccl_version": layout.version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": f"2026-11-26 13:06:{second:02}",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.015, "timeouts_count": 0},
    }
    text = json.dumps(document, indent=2)
    if layout.lacks_comma:
        before, sign, behind = text.partition('"missing_ranks": [')
        behind = "".join(
            line.rstrip(",\n") + "\n" if '"cuda_dev"' in line else line
            for line in behind.splitlines(keepends=True)
        )
        text = before + sign + behind
    return text


def write(folder: Path, *texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"ras-{number}.json").write_text(text)
    return folder
