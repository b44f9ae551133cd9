"""Fallback for operators without a sharding rule: set by `missing_rule`, applied by `apply_policy`.

Such an operator runs on full tensors. The gathers that this takes are announced to listeners like
all communication, with `NO_RULE` in their reason. Used by `make_entry` and `dispatcher`; nothing
here runs if no argument has to be communicated.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from dtensor_core.dispatch.entry import Missing
from dtensor_core.errors import MissingRuleError, four_parts
from dtensor_core.redistribute.plan import Plan
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload

NO_RULE = "no rule"
"""Note of communication that only a missing rule makes necessary."""

# Namespaces of operators that do not accept DTensors.
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
_CHOICES = ("replicate", "warn", "error")
# Frames in these folders are not the caller's.
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


class MissingRuleWarning(UserWarning):
    """The arguments of an operator without a sharding rule were gathered."""


class _Chosen(threading.local):
    """A thread's choice; threads without a choice use the main thread's."""

    choice: str | None = None


_here = _Chosen()
_of_process = _newest = "warn"
_warned: set[str] = set()


class missing_rule:
    """Choose what an operator without a sharding rule does: "replicate", "warn" or "error".

    "replicate" and "warn" gather its arguments and run it on full tensors. "warn", the default,
    warns once per operator. "error" raises MissingRuleError before anything is communicated. A call
    sets the choice permanently, `with missing_rule(...)` while the body runs. A choice of the main
    thread holds for every thread that makes none. All ranks must choose alike.

    Raises:
        ValueError: There is no such choice.
    """

    def __init__(self, choice: str) -> None:
        if choice not in _CHOICES:
            raise ValueError(
                four_parts(
                    summary=f"missing_rule({choice!r})",
                    found="no such choice",
                    hint=" or ".join(f"missing_rule({each!r})" for each in _CHOICES),
                )
            )
        self._before = _here.choice, _of_process, _newest
        _choose(choice)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _of_process, _newest
        _here.choice, of_process, _newest = self._before
        if _is_main():
            _of_process = of_process


def _choose(choice: str) -> None:
    global _of_process, _newest
    _newest = choice
    if _is_main():
        _of_process = choice
    else:
        _here.choice = choice


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _choice() -> str:
    """Return this thread's choice; on an autograd thread, the most recent choice of any thread."""
    if _here.choice is not None:
        return _here.choice
    # Python has a dummy for each thread that it did not start, as those of autograd's engine.
    is_of_autograd = isinstance(threading.current_thread(), threading._DummyThread)  # pyright: ignore
    return _newest if is_of_autograd else _of_process


def missing(
    op: OpOverload,
    names: Sequence[str],
    specs: Sequence[Spec],
    moves: Sequence[tuple[int, Plan, object]],
) -> Missing:
    """Describe a call whose arguments move, by number, for lack of a rule."""
    num_bytes = 0
    for number, plan, _ in moves:
        spec = specs[number]
        first = (0,) * len(spec.mesh_shape)
        num_bytes += sum(
            step.payload_bytes(spec.shape, step.sent_itemsize(spec.dtype), spec.mesh_shape, first)
            for step in plan.steps
        )
    gathers = ", ".join(f"{names[number]} {specs[number].text}" for number, _, _ in moves)
    return Missing(str(op), gathers, num_bytes)


def apply_policy(found: Missing) -> None:
    """Apply the choice: do nothing, warn once per operator, or raise MissingRuleError."""
    choice = _choice()
    if choice == "error":
        raise MissingRuleError(
            f"{found.op}, under missing_rule('error')",
            found=found.gathers,
            why="it has no sharding rule: it would run on full tensors, for which "
            f"{found.num_bytes} bytes would be gathered",
            hint="register a rule by dtensor_core.experimental.register_sharding, redistribute "
            "these arguments to Replicate() yourself, or missing_rule('warn')",
        )
    if choice == "warn" and found.op not in _warned:
        _warned.add(found.op)
        try:
            warnings.warn(_text(found), MissingRuleWarning, stacklevel=_depth_of_caller())
        except MissingRuleWarning:  # as an error, it is raised on every rank, threads included
            _warned.remove(found.op)
            raise


def _text(found: Missing) -> str:
    return (
        f"{found.op} has no sharding rule: {found.num_bytes} bytes of its arguments are gathered "
        f"({found.gathers}), and it runs on full tensors. "
        "dtensor_core.experimental.register_sharding gives it a rule; "
        "dtensor_core.missing_rule('replicate') hides this, missing_rule('error') refuses it. "
        "Not repeated for this operator."
    )


def _depth_of_caller() -> int:
    """Return the stack level of the operator's caller, for `warnings.warn`."""
    depth, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        depth, frame = depth + 1, frame.f_back
    return depth


def refuse_collective(op: OpOverload) -> None:
    """Raise MissingRuleError if the operator is a collective that was given a DTensor."""
    if op.namespace in _COLLECTIVES:
        raise MissingRuleError(
            f"{op} of a DTensor",
            found="a collective, which does not have a sharding strategy registered",
            why="collectives take local tensors, and a DTensor does not say which local data "
            "to send",
            hint="call redistribute() or full_tensor(), or pass to_local() to the collective",
        )
