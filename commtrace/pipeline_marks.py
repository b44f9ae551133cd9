"""Marks of the computations of pipeline stages, for programs with a schedule of their own.

Schedules of `torch.distributed.pipelining` are recorded without marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commtrace.errors import UsageError
from commtrace.recorder import RECORDER, acting
from commtrace.schema import PIPELINE_ACTIONS


@contextmanager
def pipeline_action(*, stage: int, micro_batch: int, action: str) -> Iterator[None]:
    """State that the body is the computation of a pipeline stage on a micro-batch.

    Communication in the body is recorded with the stage, the micro-batch and its direction. A
    receive at the beginning of the body and a send at its end are no part of the computation, so
    that the time in which the stage waits for them is counted as idle. Without a recording, nothing
    is recorded.

    Args:
        stage: The number of the stage, from 0, in the order in which activations pass them.
        micro_batch: The number of the micro-batch, from 0.
        action: `forward`, `loss`, `backward`, `backward_input` or `backward_weight`.

    Raises:
        UsageError: The stage or the micro-batch is no number, or the action is unknown.

    Example:
        >>> with pipeline_action(stage=1, micro_batch=0, action="forward"):
        ...     pass  # dist.recv(x, 0); y = model(x); dist.send(y, 2)
    """
    wrong = [each for each in (stage, micro_batch) if type(each) is not int or each < 0]
    if wrong or action not in PIPELINE_ACTIONS:
        raise UsageError(
            "cannot record an action of a pipeline stage",
            found=f"stage {stage!r}, micro-batch {micro_batch!r}, action {action!r}",
            why="stages and micro-batches are counted from 0, and a schedule has "
            f"{len(PIPELINE_ACTIONS)} actions",
            attempt=f"one of {', '.join(PIPELINE_ACTIONS)}",
        )
    with acting(stage, micro_batch, action, RECORDER.acted):
        yield
