"""Testing of distributed code: many ranks quickly, and every placement of a call.

There are three ways to run ranks: `run_threads` for numerics and behaviour (a fifth of a
millisecond per run), `run_processes` for real processes over gloo, and `fake_world` for decisions
at any size. The other names come from torch's DTensor test harness: tests written for it run after
a change of imports. Names are imported on first access.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "run_threads": "threads",
    "on_threads": "threads",
    "kept_mesh": "threads",
    "run_processes": "pool",
    "on_processes": "pool",
    "fake_world": "fake",
    "RankFailure": "failure",
    "RankReport": "failure",
    "Outcome": "failure",
    "DEVICE_TYPE": "cases",
    "NUM_DEVICES": "cases",
    "DTensorTestBase": "cases",
    "DTensorOpTestBase": "cases",
    "with_comms": "cases",
    "skip_if_lt_x_gpu": "skips",
    "skip_unless_torch_gpu": "cases",
    "run_tests": "cases",
    "TestCase": "compare",
    "DTensorConverter": "converter",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
