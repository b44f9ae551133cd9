"""`ExplicitRedistributionContext`: only explicit redistributions are allowed.

Explicit are `redistribute`, `full_tensor`, parallel styles and their backward. Redistributions that
an operator needs for its arguments are implicit: they raise or warn before anything is
communicated. The decision depends on global metadata only, so all ranks raise alike.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from dtensor_core import observe
from dtensor_core.errors import DTensorError
from dtensor_core.mesh import axes_name
from dtensor_core.placement import Placement
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec

logger = logging.getLogger(__name__)

_MODES = ("raise", "warn")
_SHOWN = 3


class ImplicitRedistributionError(DTensorError, RuntimeError):
    """An operator needs an implicit redistribution of an argument."""


class ModeError(DTensorError, RuntimeError):
    """The mode does not exist."""


class ExplicitRedistributionContext:
    """Refuses implicit redistributions by operators while it is active.

    It applies to the thread that enters it, and to the backward passes that this thread starts. The
    body raises ImplicitRedistributionError (a RuntimeError) for a refused redistribution.

    Args:
        enable: False lifts the enclosing context.
        strict: Also refuse redistributions that need no communication.
        mode: "raise", or "warn" to log a warning instead.
    """

    def __init__(self, enable: bool = True, strict: bool = False, mode: str = "raise") -> None:
        if mode not in _MODES:
            raise ModeError(f"Invalid mode {mode!r}: a mode is one of {', '.join(_MODES)}")
        self._enable = enable
        self._strict = strict
        self._mode = mode
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> ExplicitRedistributionContext:
        """Activate the context."""
        guarding = observe.guarding(self._refuse if self._enable else None)
        guarding.__enter__()
        self._entered.append(guarding)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the enclosing context."""
        self._entered.pop().__exit__(None, None, None)

    def _refuse(self, operator: str, moves: Sequence[observe.Move]) -> None:
        for move in moves:
            steps: Sequence[Step] = move.steps
            if self._strict or any(step.communicates for step in steps):
                error = _error(operator, move, steps)
                if self._mode == "raise":
                    raise error
                logger.warning(str(error))


def _error(operator: str, move: observe.Move, steps: Sequence[Step]) -> ImplicitRedistributionError:
    argument, target = move.argument, steps[-1].target
    spec: Spec = move.spec
    ways = "; ".join(
        f"{way} in {seconds * 1e6:.3g} µs" for way, seconds in move.candidates[:_SHOWN]
    )
    return ImplicitRedistributionError(
        f"Implicit redistribution of {argument} for {operator}, while "
        "ExplicitRedistributionContext was active",
        found=f"{argument} is {spec.text} and {_needed(spec, target)} ({_steps_text(spec, steps)})",
        why=f"cheapest candidate (arguments -> results) of: {ways}" if ways else "",
        hint=f"{_instead(argument, spec, target)}, or "
        "ExplicitRedistributionContext(enable=False) around the operator",
    )


def _needed(spec: Spec, target: Sequence[Placement]) -> str:
    if spec.placements == target:
        return "other ranks need parts of it"
    return f"is needed as {spec.with_placements(target).layout_text}"


def _instead(argument: str, spec: Spec, target: Sequence[Placement]) -> str:
    if argument == observe.WRITTEN:
        return "the operator's out-of-place form, whose result may have any layout"
    if spec.placements == target:
        return f"{argument}.redistribute(placements=...) to a layout that does not shard the dim"
    listed = ", ".join(map(repr, target))
    return f"{argument}.redistribute(placements=[{listed}]) before"


def _steps_text(spec: Spec, steps: Sequence[Step]) -> str:
    """Format the steps with the bytes of the rank that sends most."""
    origin = (0,) * len(spec.mesh_shape)
    texts: list[str] = []
    for step in steps:
        itemsize = step.sent_itemsize(spec.dtype)
        size = step.payload_bytes(spec.shape, itemsize, spec.mesh_shape, origin)
        texts.append(f"{step.kind} on {axes_name(spec.mesh, step.axes)}")
        if step.communicates:
            texts[-1] += f", {size} bytes"
    return ", ".join(texts)
