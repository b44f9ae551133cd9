"""Facts about a run and a rank: those known when a spool begins and those found out later.

Recording may begin before `init_process_group`. The variables of the launcher (`launched_rank`) are
then trusted until the first process group is seen.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import socket
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import torch
import torch.distributed as dist

from commtrace.errors import UsageError
from commtrace.launched_rank import LaunchedRank, attempt, launched_rank, run_id
from commtrace.recorder.clock import now
from commtrace.recorder.events.groups import Groups
from commtrace.tracefile import EVERY
from commtrace.tracefile.beside_spool import MAIN_THREAD
from commtrace.tracefile.liveness import BEAT, BEAT_S, boot

_latest_ranks: dict[int, int] = {}
"""By process id, the rank in the latest process group since a recording began."""


def process_rank() -> int | None:
    """Return this process's global rank, or None without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    rank = _latest_ranks[os.getpid()] = dist.get_rank()
    return rank


def likely_rank() -> int:
    """Return this process's global rank; without a group, the rank in the latest group, if any.

    Before the first group, it is the rank that the launcher states.
    """
    rank = process_rank()
    if rank is None:
        rank = _latest_ranks.get(os.getpid())
    return _first_rank(_launched()) if rank is None else rank


def _launched() -> LaunchedRank | None:
    with contextlib.suppress(UsageError):
        return launched_rank(os.environ)
    return None


def _first_rank(launched: LaunchedRank | None) -> int:
    rank = process_rank()
    if rank is not None:
        return rank
    return launched.rank if launched else 0


def _world_size(launched: LaunchedRank | None) -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return launched.num_ranks if launched else 1


def _origin(launched: LaunchedRank | None) -> dict[str, Any]:
    """Return the facts that the launcher states about the run; unknown facts are left out."""
    facts = {
        "launcher": launched.launcher if launched else "",
        "run_id": run_id(os.environ),
        "attempt": attempt(os.environ),
    }
    return {name: fact for name, fact in facts.items() if fact}


class Facts:
    """Facts of a recording; `rank` and `num_ranks` become accurate while it runs."""

    def __init__(self, detail: str, epoch: int, every: int | None = None) -> None:
        _latest_ranks.clear()  # a group that ended before says nothing of this recording
        self._is_rank_certain = process_rank() is not None
        launched = _launched()
        self.rank = _first_rank(launched)
        self._run: dict[str, Any] = {
            "world_size": max(_world_size(launched), self.rank + 1),
            "process_group": "none",
            "detail": detail,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": shlex.join(sys.argv),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **_origin(launched),
            **({EVERY: every} if every not in (None, 1) else {}),
        }
        self._device = "cpu"
        self.first: Mapping[str, Any] = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "boot": boot(),
            "epoch_ns": epoch,
            "device": self._device,
            "start_ns": now() + epoch,
            BEAT: BEAT_S,
            MAIN_THREAD: threading.main_thread().ident,
            "run": dict(self._run),
        }

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the program, as far as is known."""
        return self._run["world_size"]

    def changes(self, groups: Groups, device: str) -> dict[str, Any]:
        """Return the facts changed by the groups and the device seen since the last call."""
        before = (self.rank, self._device, dict(self._run))
        group = groups.newest
        if group is not None:
            self._run["process_group"] = group.row.backend
            if not self._is_rank_certain:
                self.rank = group.rank
                # The launcher may be that of an outer job, whose variables this one inherited.
                self._run["world_size"] = groups.world_size or self._run["world_size"]
            self._run["world_size"] = max(self._run["world_size"], groups.num_ranks)
        self._device = device
        if (self.rank, self._device, self._run) == before:
            return {}
        return {"rank": self.rank, "device": self._device, "run": dict(self._run)}
