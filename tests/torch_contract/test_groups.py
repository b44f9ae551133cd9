"""c10d is what `torch_internals.groups` says of both packages."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from commtrace.torch_internals import groups as recorders
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.thread_pool import World
from dtensor_core.torch_internals import fake_store, groups

OPTIONS = (
    groups.AllgatherOptions,
    groups.AllreduceCoalescedOptions,
    groups.AllreduceOptions,
    groups.AllToAllOptions,
    groups.BarrierOptions,
    groups.BroadcastOptions,
    groups.GatherOptions,
    groups.ReduceOptions,
    groups.ReduceScatterOptions,
    groups.ScatterOptions,
)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.__name__)
def test_options_are_made_without_arguments_and_have_a_timeout(options: Any) -> None:
    assert options().timeout is not None
    assert hasattr(options(), "asyncOp")


def test_a_group_is_found_by_name_and_has_a_backend_per_device() -> None:
    with fake_world(2):
        group: Any = dist.group.WORLD
        assert isinstance(group, groups.ProcessGroup)
        assert groups.resolve_group(group.group_name) is group
        assert isinstance(group._get_backend(torch.device("cpu")), groups.FakeProcessGroup)


def test_a_backend_that_sends_nothing_serves_a_group_of_any_name() -> None:
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group: Any = dist.ProcessGroup(0, 1)  # pyright: ignore[reportCallIssue]
    group._register_backend(torch.device("cpu"), custom, recorders.make_fake_backend(0, 1))
    group._set_default_backend(custom)
    group._set_group_name("a name")
    assert group.group_name == "a name"
    work = group.allreduce([torch.ones(2)])
    assert isinstance(work, recorders.FakeWork)
    assert work.wait()
    assert groups.FakeWork().boxed() is not None


def test_the_record_of_groups_can_be_replaced() -> None:
    before = groups.world()
    assert before is distributed_c10d._world
    assert type(before) is groups.World
    record = groups.World()
    try:
        groups.set_world(record)
        assert groups.world() is distributed_c10d._world is record
    finally:
        groups.set_world(before)


def test_the_record_of_a_thread_replaces_what_c10d_keeps_in_its_module() -> None:
    shared = {
        name
        for name, value in vars(groups.World).items()
        if isinstance(value, property) and "global " in inspect.getsource(value.fget or type)
    }
    kept = shared | {"tags_to_pg", "pg_to_tag", "default_pg"}  # read without a `global`
    assert {name for name in vars(World) if not name.startswith("_")} == kept


def test_threads_have_groups_of_their_own_while_they_are_isolated() -> None:
    groups.isolate_threads(True)
    groups.isolate_threads(False)
    with fake_world(1):
        name = dist.group.WORLD.group_name  # pyright: ignore
        assert groups.resolve_group(name) is dist.group.WORLD


def test_processes_meet_in_the_default_store() -> None:
    with fake_world(1):
        assert isinstance(groups.default_store(), dist.Store)


def test_meshes_in_force_are_a_stack() -> None:
    from dtensor_core import init_device_mesh

    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("x",))
        assert not groups.meshes_in_force.mesh_stack
        with mesh:
            assert groups.meshes_in_force.mesh_stack == [mesh]
            assert groups.meshes_in_force.get_current_mesh() is mesh
        assert mesh._dim_group_names == [mesh.get_group().group_name]
        assert mesh._root_mesh is None
        assert mesh._flatten_mapping == {}


def test_collectives_are_operators_that_return_tensors_to_wait_for() -> None:
    with fake_world(2):
        name = dist.group.WORLD.group_name  # pyright: ignore
        ops, former = groups.functional_ops, recorders.former_functional_ops
        made = ops.wait_tensor(ops.all_gather_into_tensor(torch.ones(2), 2, name))
        assert made.shape == (4,)
        assert ops.all_reduce.default.name() == "_c10d_functional::all_reduce"
        assert former.all_reduce.default.name() == "c10d_functional::all_reduce"
        from torch.distributed import _functional_collectives as functional

        pending = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)  # pyright: ignore
        assert isinstance(pending, groups.AsyncCollectiveTensor)
        assert pending.wait().shape == (2,)
    assert not groups.is_tracing()


def test_a_store_without_peers_answers_nothing() -> None:
    assert isinstance(fake_store.FakeStore(), dist.Store)
    assert "fake" in dist.Backend.backend_list
