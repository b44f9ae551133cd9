"""A computation of a pipeline stage on a micro-batch, turned into a row when it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

from commtrace.event import ActionRow
from commtrace.recorder.events.facts import likely_rank
from commtrace.recorder.thread_state import PipelinePart
from commtrace.schema import BACKWARD, FORWARD, LOSS_OF_CHUNK


class PipelineAction(NamedTuple):
    """A computation that has ended.

    Attributes:
        part: its stage, micro-batch and direction.
        action: one of `PIPELINE_ACTIONS`.
        rank: rank of the thread; None before there is a process group.
        at: when it began.
        duration: in ns.
    """

    part: PipelinePart
    action: str
    rank: int | None
    at: int
    duration: int

    def row(self, number: int, epoch: int, step: int) -> Any:
        """Return the row of table `pipeline_actions`."""
        return ActionRow(
            rank=likely_rank() if self.rank is None else self.rank,
            id=number,
            stage=self.part.stage,
            micro_batch=self.part.micro_batch,
            action=self.action,
            start_ns=self.at + epoch,
            duration_ns=self.duration,
            step=step,
        )


def direction_of(action: str) -> str:
    """Return the pass of the pipeline that an action belongs to."""
    return FORWARD if action in (FORWARD, LOSS_OF_CHUNK) else BACKWARD
