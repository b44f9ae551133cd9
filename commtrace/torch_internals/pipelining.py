"""torch.distributed.pipelining: the base classes of its stages and schedules."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def pipeline_classes(schedules: ModuleType) -> dict[str, Any]:
    """Return the base classes of the stages and the schedules that the module of schedules has."""
    found: Any = schedules
    return {"stage": found._PipelineStageBase, "schedule": found._PipelineSchedule}
