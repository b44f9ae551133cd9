"""torch.distributed.pipelining: methods and arguments of stages and schedules that are replaced."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, _utils, schedules, stage

from commtrace.recorder.attribution.pipeline_stages import METHODS
from commtrace.recorder.attribution.pipelines import METHODS as TRANSFERS
from commtrace.torch_internals.pipelining import (
    PREPARATIONS,
    STAGES,
    pipeline_classes,
    stage_classes,
)
from dtensor_core.testing import fake_world

SCHEDULES = (
    "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV",
)  # fmt: skip
CLASSES = pipeline_classes(schedules)
utils: Any = _utils


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_a_replaced_method_has_the_arguments_that_are_read(owner: str, name: str) -> None:
    names = METHODS[owner, name][0]
    parameters = list(inspect.signature(getattr(CLASSES[owner], name)).parameters)
    known = [each for each in names if each != "full_backward"]
    assert parameters[: len(known)] == known
    assert ("full_backward" in names) == ("full_backward" in parameters)


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_method_that_makes_transfers_has_its_micro_batch_as_an_argument(name: str) -> None:
    parameters = inspect.signature(getattr(CLASSES["stage"], name)).parameters
    assert list(parameters) == ["self", TRANSFERS[name][0]]


def test_stages_have_a_number_and_say_whether_they_have_a_backward_pass() -> None:
    source = inspect.getsource(CLASSES["stage"].__init__)
    assert "self.stage_index = stage_index" in source
    assert all(
        isinstance(getattr(CLASSES["stage"], name), property)
        for name in ("has_backward", "is_last")
    )


@pytest.mark.parametrize("name", PREPARATIONS)
def test_stages_prepare_themselves_in_methods_that_schedules_call(name: str) -> None:
    assert stage.__name__ == STAGES
    assert {PipelineStage, CLASSES["stage"]} <= set(stage_classes(stage))
    assert name in vars(PipelineStage)
    assert f".{name}(" in inspect.getsource(schedules)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_uses_the_methods_of_the_base_classes(name: str) -> None:
    made: Any = getattr(schedules, name)
    assert issubclass(made, CLASSES["schedule"])
    loops = [each for each in made.__mro__ if "_step_microbatches" in vars(each)]
    source = inspect.getsource(loops[0]._step_microbatches)
    assert "forward_one_chunk(" in source
    assert "backward_one_chunk(" in source
    assert "_maybe_compute_loss(" in source
    assert "_maybe_compute_loss" not in vars(made)


def test_torchs_stage_does_not_override_them() -> None:
    replaced = [name for owner, name in METHODS if owner == "stage"]
    assert not set(replaced) & set(vars(stage.PipelineStage))


def test_the_classes_are_those_of_stages_and_schedules() -> None:
    assert issubclass(PipelineStage, CLASSES["stage"])
    assert issubclass(ScheduleGPipe, CLASSES["schedule"])


def test_a_stage_that_exchanges_dtensors_has_the_seams_that_are_replaced() -> None:
    import torch.distributed.tensor as theirs

    for module in (utils, stage):
        assert issubclass(theirs.DTensor, module.DTensor.theirs)
        assert list(inspect.signature(module.to_local_if_dtensor).parameters) == [
            "tensor",
            "detach",
        ]
    made = {each.name for each in dataclasses.fields(utils._DTensorMeta)}
    assert {"shape", "stride", "placements", "mesh_dim_names", "mesh_layout"} <= made
    calls = inspect.getsource(stage)
    assert "= self.forward_maybe_with_nosync(" in calls
    assert "grads_input, _ = self.backward_maybe_with_nosync(" in calls
    assert {"outputs", "input_grads"} <= set(utils._StageMeta.__slots__)
    assert "get_mesh" in inspect.signature(PipelineStage.__init__).parameters
    assert utils._MeshCache()._get_mesh_cb is None


def test_a_mesh_knows_its_rank_and_thread() -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        assert mesh._rank == 0
        assert mesh._thread_id is None
        assert mesh._layout == init_device_mesh("cpu", (2,))._layout
