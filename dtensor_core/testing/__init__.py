"""What a test of distributed code needs: many ranks quickly, and every placement of a call.

Three ways to have ranks, by what is tested: `run_threads` (numerics and behaviour, a fifth of a
millisecond a run), `run_processes` (the real thing over gloo), `fake_world` (decisions at any
size). Then the names that tests written for torch's DTensor harness expect: change the imports,
and they run. Names are loaded when they are asked for.
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
    "Attention": "models",
    "FeedForward": "models",
    "Llama": "llama",
    "LlamaArgs": "llama",
    "MLPModule": "models",
    "MLPStacked": "models",
    "ModelArgs": "models",
    "RMSNormPython": "models",
    "Transformer": "models",
    "TransformerBlock": "models",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
