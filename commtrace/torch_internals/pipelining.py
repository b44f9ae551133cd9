"""torch.distributed.pipelining: the base classes of its stages and schedules."""

from __future__ import annotations

from types import ModuleType
from typing import Any

STAGES = "torch.distributed.pipelining.stage"
"""Name of the module of stages."""
PREPARATIONS = ("_prepare_forward_infra", "_prepare_backward_infra")
"""Methods of stages that run before the first step, on memory that nothing has written."""


def pipeline_classes(schedules: ModuleType) -> dict[str, Any]:
    """Return the base classes of the stages and the schedules that the module of schedules has."""
    found: Any = schedules
    return {"stage": found._PipelineStageBase, "schedule": found._PipelineSchedule}


def stage_classes(stages: ModuleType) -> list[type[Any]]:
    """Return the classes of stages that the module of stages has."""
    base = vars(stages)["_PipelineStageBase"]
    return [
        each for each in vars(stages).values() if isinstance(each, type) and issubclass(each, base)
    ]
