"""`torch.cond` of DTensors, outside of graphs: the branch that the predicate selects is run.

torch compiles the call, and its operator takes no DTensors. Installed by the package, once.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from dtensor_core.errors import RuleError
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.tensors import FakeTensorMode
from dtensor_core.torch_internals.trees import tree_leaves


def install() -> None:
    """Let `torch.cond` take DTensors; in a graph, its error says what to do."""
    torch.cond = _selecting(torch.cond)
    in_graphs: Any = torch.ops.higher_order.cond.python_key_table
    in_graphs[FakeTensorMode] = _refusing(in_graphs[FakeTensorMode])


def _selecting(original: Any) -> Any:
    @wraps(original)
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if not torch.compiler.is_compiling() and _has_dtensor((pred, operands)):
            # All ranks read a DTensor alike; a plain tensor must be equal on every rank.
            return original(bool(pred), true_fn, false_fn, operands)
        return original(pred, true_fn, false_fn, operands)

    return cond


def _refusing(original: Any) -> Any:
    @wraps(original)
    def traced(*args: Any) -> Any:
        if _has_dtensor(args):
            raise RuleError(
                "torch.cond of DTensors in a graph",
                found="a predicate or operand that is a DTensor",
                why="a graph holds both branches, and ranks may communicate in only one branch",
                hint="call torch.cond outside of torch.compile, or select by torch.where",
            )
        return original(*args)

    return traced


def _has_dtensor(values: Any) -> bool:
    return any(isinstance(each, DTensor) for each in tree_leaves(values))
