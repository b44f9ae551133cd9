"""Writing in place to a pending reduction, where the operator needs the reduced value.

The reduction is done, the operator runs on the value, and what it made is put back as a pending
reduction of the same kind, so that the tensor keeps its layout and whatever shares its elements
sees the same value. Addends that the user gave to `from_local` are not touched so: `dispatch`
refuses. Used by `entry` and `lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dtensor_core.propagate import Decision, Fixed
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec


def settles(decision: Decision, fixed: Mapping[int, Fixed]) -> bool:
    """True if a decision finishes the reduction of its first argument, which it writes to."""
    return 0 in fixed and decision.outputs[0].placements != fixed[0].placements


def settling(
    run: Callable[..., Any], operator: str, before: Spec, finished: Spec
) -> Callable[..., Any]:
    """What writes to the finished reduction of its first argument, and makes it pending again."""
    finish, undo = plan_between(before, finished), plan_between(finished, before)
    cause = Cause(operator, "self")

    def local(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        value = execute(target, before, finish, cause)
        run(value, *args, **kwargs)
        return target.copy_(execute(value, finished, undo, cause))

    return local
