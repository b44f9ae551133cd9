"""Private attributes of torch's objects that are used where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtensor_core import init_device_mesh
from dtensor_core.integrations import checkpoint, factories
from dtensor_core.testing.fake import fake_world
from dtensor_core.torch_internals.dispatcher import TorchDispatchMode


def test_a_module_is_called_through_an_attribute_of_its_class() -> None:
    assert nn.Module.__call__ is vars(nn.Module)["_wrapped_call_impl"]
    module = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    assert module._compiled_call_impl is None
    assert torch.equal(module._call_impl(x), module(x))
    assert set(module._parameters) == {"weight", "bias"}
    assert set(nn.BatchNorm1d(2)._buffers) == {"running_mean", "running_var", "num_batches_tracked"}


def test_ddp_logs_its_buckets() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(4, 2))
        assert model._get_ddp_logging_data()["bucket_sizes"] == str(4 * (4 * 2 + 2))
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
        logged = model._get_ddp_logging_data()
        assert logged["rebuilt_per_bucket_param_indices"] == "1 0"
        assert logged["unused_parameter_size"] == 0
        assert model.parameters_to_ignore == set()
    finally:
        dist.destroy_process_group()


def test_fsdp_knows_the_names_of_its_parameters() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with fake_world(2):
        wrapped: Any = FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu"))
        handle = wrapped._handle
        flat = handle.flat_param
        assert flat._fqns == ["weight", "bias"]
        assert isinstance(handle._fully_sharded_module, nn.Linear)
        assert flat._params is None
        assert list(flat._shapes) == [(2, 4), (2,)]
        assert handle.uses_sharded_strategy
        assert sum(flat._numels_with_padding) == 10
        assert flat._is_padding_mask == [False, False]
        assert flat._sharded_size.numel() == 5
        assert flat._shard_param_infos[0] == (True, 0, 5, 0, 4)
        assert not flat._shard_param_infos[1].in_shard
        assert dist.get_process_group_ranks(wrapped.process_group) == [0, 1]
        named: Any = FullyShardedDataParallel(
            nn.Linear(4, 2), device_id=torch.device("cpu"), use_orig_params=True
        )
        assert named._handle.flat_param._params == list(named.parameters())


def test_hybrid_fsdp_has_a_group_between_its_shards() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    with fake_world(4, rank=1):
        wrapped: Any = FullyShardedDataParallel(
            nn.Linear(4, 2), device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_mesh=init_device_mesh("cpu", (2, 2)),
        )  # fmt: skip
        assert dist.get_process_group_ranks(wrapped._inter_node_pg) == [1, 3]
        assert dist.get_process_group_ranks(wrapped.process_group) == [0, 1]


def test_fsdp2_knows_the_names_of_its_parameters_after_the_first_forward() -> None:
    from torch.distributed.fsdp import fully_shard

    with fake_world(2):
        model: Any = fully_shard(nn.Sequential(nn.Linear(4, 2)), mesh=init_device_mesh("cpu", (2,)))
        model(torch.ones(1, 4))
        group = model._get_fsdp_state()._fsdp_param_group
        assert [each._param_fqn for each in group.fsdp_params] == ["0.weight", "0.bias"]
        assert group.modules == (model,)


def test_fsdp2_keeps_the_sizes_of_what_it_sends_in_local_variables() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    gathers: Any = collectives.foreach_all_gather
    reduces: Any = collectives.foreach_reduce
    assert {"fsdp_params", "all_gather_input_numel"} <= {*gathers.__wrapped__.__code__.co_varnames}
    names = {"fsdp_params", "reduce_scatter_input_numel", "reduce_scatter_output_numel"}
    assert names <= {*reduces.__wrapped__.__code__.co_varnames}
    assert _fsdp_param.FSDPParam._get_grad_inner_tensor.__code__.co_varnames[0] == "self"


class Reductions(TorchDispatchMode):
    """Mode that keeps the reductions of all-reduces."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.values += args[2:3] if func.name() == "c10d::allreduce_" else ()
        return func(*args, **(kwargs or {}))


def test_a_reduction_in_a_script_object_is_read() -> None:
    with fake_world(1):
        with Reductions() as seen:
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
        (boxed,) = seen.values
        assert boxed._get_method("op")() == dist.ReduceOp.RedOpType.MAX.value  # pyright: ignore


def test_a_library_takes_back_its_kernels() -> None:
    library = torch.library.Library("torch_contract", "DEF")
    library.define("one() -> int")
    library.impl("one", lambda: 1, "CompositeExplicitAutograd")
    assert torch.ops.torch_contract.one() == 1
    library._destroy()
    with pytest.raises((AttributeError, RuntimeError)):
        torch.ops.torch_contract.one.default()


def test_a_scheduler_makes_its_first_step_by_itself() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert scheduler._is_initial is False


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in factories._FUNCTIONS.items() for name in names],
)
def test_functions_that_make_tensors_are_where_they_are_replaced(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name))


def test_checkpoints_have_their_helpers() -> None:
    helpers: Any = importlib.import_module(checkpoint._HELPERS)
    for name in ("DTensor", "distribute_tensor", "_distribute_tensors"):
        assert callable(getattr(helpers, name))
