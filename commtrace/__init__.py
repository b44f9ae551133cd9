"""commtrace records, analyses and draws every collective of a distributed PyTorch program.

    with commtrace.record("run.json") as recording:
        train()

Names are imported on first use, so that recording loads no plotting library, and reading a trace
does not load torch, which need not be installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commtrace.comm_mode import CommDebugMode
    from commtrace.errors import CommtraceError
    from commtrace.expert_rows import experts
    from commtrace.jupyter import launch, load_ipython_extension
    from commtrace.pipeline_marks import pipeline_action
    from commtrace.session import Recording, record
    from commtrace.tracefile import Trace, merge_spools, read_trace
    from commtrace.views.compared import compare
    from commtrace.views.run import Run, load

__all__ = [
    "CommDebugMode",
    "CommtraceError",
    "Recording",
    "Run",
    "Trace",
    "compare",
    "experts",
    "launch",
    "load",
    "load_ipython_extension",
    "merge_spools",
    "pipeline_action",
    "read_trace",
    "record",
]
__version__ = "0.2.0.dev0"

_HOMES = {
    "CommDebugMode": "commtrace.comm_mode",
    "CommtraceError": "commtrace.errors",
    "Recording": "commtrace.session",
    "Run": "commtrace.views.run",
    "Trace": "commtrace.tracefile",
    "compare": "commtrace.views.compared",
    "experts": "commtrace.expert_rows",
    "launch": "commtrace.jupyter",
    "load": "commtrace.views.run",
    "load_ipython_extension": "commtrace.jupyter",
    "merge_spools": "commtrace.tracefile",
    "pipeline_action": "commtrace.pipeline_marks",
    "read_trace": "commtrace.tracefile",
    "record": "commtrace.session",
}

_NEED_TORCH = {
    "CommDebugMode",
    "Recording",
    "experts",
    "launch",
    "load_ipython_extension",
    "pipeline_action",
    "record",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'commtrace' has no attribute {name!r}")
    if name in _NEED_TORCH:
        importlib.import_module("commtrace.errors").require_torch(f"commtrace.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
