"""Both counting modes see redistributions inside operators, and leave classes unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor

from dtensor_core import DTensor, Shard, distribute_tensor, init_device_mesh
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tests.dtensor_core.drop_in.counted import RANKS, functional, with_each_counter
from tests.dtensor_core.models.small_models import MLPModule


@with_each_counter
def test_what_an_operator_needs_is_counted(run) -> None:
    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        a, b = (distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]) for _ in range(2))
        with mode() as counter:
            a @ b
        assert counter.get_total_counts() == 1
        with mode() as counter:
            a.sum().full_tensor()
        assert counter.get_comm_counts()[functional.all_reduce] == 1

    run(body)


@with_each_counter
def test_modules_are_traced(run) -> None:
    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
        model = parallelize_module(MLPModule("cpu"), mesh, plan)
        counter = mode()
        with counter:
            assert len(counter.advanced_module_tracker.module_helper_dict) == 1
            assert counter.comm_module_counts == {"Global": {"forward": {}, "backward": {}}}
            model(torch.rand(8, 10))
        assert len(counter.advanced_module_tracker.module_helper_dict) == 5
        for name in ("Global", "MLPModule", "MLPModule.net2"):
            assert counter.comm_module_counts[name]["forward"][functional.all_reduce] == 1
        assert list(counter.get_parameter_info()) == ["MLPModule.net1", "MLPModule.net2"]

    run(body)


def test_the_classes_are_equal_to_a_question_and_still_two() -> None:
    assert DTensor == TorchDTensor
    assert DTensor is not TorchDTensor
    assert not issubclass(DTensor, TorchDTensor)
    assert DTensor != torch.Tensor
    assert len({DTensor: 1, torch.Tensor: 2}) == 2
