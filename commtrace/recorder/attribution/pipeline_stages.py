"""Computations of pipeline stages: which stage works on which micro-batch, and for how long.

Schedules of `torch.distributed.pipelining` call three methods of a stage for each micro-batch, and
a method of their own for its loss. These are replaced while recording, once the program has loaded
that package. Programs with a schedule of their own report the same by `commtrace.pipeline_action`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

from commtrace.recorder.clock import now
from commtrace.recorder.events.facts import process_rank
from commtrace.recorder.events.pipeline_action import PipelineAction, direction_of
from commtrace.recorder.replaced import Replaced
from commtrace.recorder.thread_state import CURRENT, PipelinePart
from commtrace.schema import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, LOSS_OF_CHUNK
from commtrace.torch_internals.pipelining import pipeline_classes
from commtrace.when_loaded import when_loaded

_MODULE = "torch.distributed.pipelining.schedules"

Acted = Callable[[PipelineAction], None]
"""Function that receives a computation that has ended."""


@contextmanager
def acting(stage: int, micro_batch: int, action: str, acted: Acted) -> Iterator[None]:
    """Report the body as a computation of a stage, unless it raises."""
    state = CURRENT.state
    before = state.pipeline_part
    part = PipelinePart(stage, micro_batch, direction_of(action))
    state.set_pipeline_part(part)
    begin = now()
    try:
        yield
        end = now()
    finally:
        state.set_pipeline_part(before)
    acted(PipelineAction(part, action, process_rank(), begin, end - begin))


class Given(NamedTuple):
    """Arguments of a method call, by name as far as they are given."""

    stage: Any
    micro_batch: int
    arguments: Mapping[str, Any]


def _forward(given: Given) -> str:
    return FORWARD


def _backward(given: Given) -> str:
    if not given.stage.has_backward:
        return ""
    return BACKWARD if given.arguments.get("full_backward", True) else BACKWARD_INPUT


def _weight(given: Given) -> str:
    return BACKWARD_WEIGHT if given.stage.has_backward else ""


def _loss(given: Given) -> str:
    return LOSS_OF_CHUNK if given.stage.is_last else ""


ActionOf = Callable[[Given], str]
METHODS: dict[tuple[str, str], tuple[tuple[str, ...], ActionOf]] = {
    ("stage", "forward_one_chunk"): (("self", "fwd_chunk_id"), _forward),
    ("stage", "backward_one_chunk"): (
        ("self", "bwd_chunk_id", "loss", "full_backward"),
        _backward,
    ),
    ("stage", "backward_weight_one_chunk"): (("self", "bwd_chunk_id"), _weight),
    ("schedule", "_maybe_compute_loss"): (
        ("self", "stage", "output", "target_mbs", "mb_index"),
        _loss,
    ),
}
"""Methods of stages and schedules: their first arguments, and the action that they are, if any."""


class StageMethods:
    """Replaces the methods while installed."""

    def __init__(self, acted: Acted) -> None:
        self._acted = acted
        self._is_on = False
        self._stop_waiting: Callable[[], None] | None = None
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace the methods: now, or once the program has loaded them."""
        self._is_on = True
        self._stop_waiting = when_loaded(_MODULE, self._replace)

    def uninstall(self) -> None:
        """Restore the methods, unless someone has replaced them again since."""
        self._is_on = False
        if self._stop_waiting is not None:
            self._stop_waiting()
        self._replaced.restore()

    def _replace(self) -> None:
        if not self._is_on or self._replaced:
            return
        classes = pipeline_classes(sys.modules[_MODULE])
        for (owner_name, name), (arguments, action_of) in METHODS.items():
            reporting = partial(_reporting, names=arguments, action_of=action_of, acted=self._acted)
            self._replaced.replace(classes[owner_name], name, reporting)


def _reporting(
    original: Callable[..., Any], names: tuple[str, ...], action_of: ActionOf, acted: Acted
) -> Callable[..., Any]:
    @wraps(original)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        found = dict(zip(names, args, strict=False)) | kwargs
        chunk = next(name for name in names if name.endswith(("chunk_id", "mb_index")))
        stage = found.get("stage", found["self"])
        given = Given(stage, found[chunk], found)
        action = action_of(given)
        if not action:
            return original(*args, **kwargs)
        with acting(stage.stage_index, given.micro_batch, action, acted):
            return original(*args, **kwargs)

    return reporting
