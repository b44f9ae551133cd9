"""`torch.export` of modules that make DTensors of their inputs, as parallel styles do.

torch cannot trace them, and its error names neither the cause nor the alternative. Installed by the
package, once.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from dtensor_core.errors import RuleError
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.tensor import DTensor

_UNTRACED = ("NotImplemented", "not tracked", "to be a FakeTensor")


def install() -> None:
    """Explain torch's error; modules that are called with DTensors are exported."""
    when_loaded("torch.export._trace", _patch)


def _patch(trace: Any) -> None:
    # Every way to export calls it: strict or not, `draft_export`, and names imported before.
    trace._export = _explained(trace._export)


def _explained(original: Any) -> Any:
    @wraps(original)
    def export(mod: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(mod, *args, **kwargs)
        except (RuntimeError, AssertionError) as error:
            held = [name for name, each in mod.named_parameters() if isinstance(each, DTensor)]
            if not held or not any(each in str(error) for each in _UNTRACED):
                raise
            raise RuleError(
                "torch.export of a module that makes DTensors of plain inputs",
                found=f"{len(held)} parameters that are DTensors, such as {held[0]}",
                why=f"torch cannot trace how a plain tensor becomes a DTensor ({error})",
                hint="export the module before it is parallelized, or call it with DTensors; "
                "torch.compile compiles it as it is",
            ) from error

    return export
