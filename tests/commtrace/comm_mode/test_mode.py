"""Communication counts of a block, by operator and by module."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace import CommDebugMode
from commtrace.comm_mode import tally
from commtrace.errors import UsageError
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.pool import on_processes
from dtensor_core.testing.threads import on_threads

legacy, native, c10d = torch.ops.c10d_functional, torch.ops._c10d_functional, torch.ops.c10d


class Reduced(torch.autograd.Function):
    """The identity; an all-reduce forward, an all-gather backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x.clone())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        native.wait_tensor(native.all_gather_into_tensor(grads[0], 4, "0"))
        return grads[0]


class Layer(nn.Linear):
    """A linear layer that communicates in both passes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return Reduced.apply(super().forward(input))  # pyright: ignore


class Net(nn.Module):
    """Two layers; one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(4, 4), Layer(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.first(x)))


@pytest.fixture
def world():
    with fake_world(4):
        yield


def test_functional_collectives_answer_to_both_their_names(world) -> None:
    with CommDebugMode() as mode:
        funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD).clone()
    counts = mode.get_comm_counts()
    assert counts == {legacy.all_reduce: 1}
    assert counts[native.all_reduce] == counts[legacy.all_reduce] == 1
    assert counts.get(native.all_reduce) == 1
    assert native.all_reduce in counts
    assert mode.get_total_counts() == 1
    assert repr(mode) == "CommDebugMode(get_total_counts()=1)"


def test_asking_for_what_was_not_called_adds_nothing(world) -> None:
    with CommDebugMode() as mode:
        dist.barrier()
    counts = mode.get_comm_counts()
    assert counts[legacy.all_gather_into_tensor] == counts[native.all_gather_into_tensor] == 0
    assert counts.get(c10d.send) is None
    assert c10d.send not in counts
    assert counts == {c10d.barrier: 1}


def test_an_all_to_all_between_two_shardings_has_the_name_that_torch_uses(world) -> None:
    with CommDebugMode() as mode:
        funcol.all_to_all_single(torch.ones(4), None, None, dist.group.WORLD).clone()
    counts = mode.get_comm_counts()
    assert counts == {legacy.all_to_all_single: 1}
    assert counts[torch.ops._dtensor.shard_dim_alltoall] == 1


@pytest.mark.parametrize(
    ("call", "packet"),
    [
        (lambda t: native.all_reduce_(t, "sum", "0"), "c10d_functional.all_reduce"),
        (lambda t: native.broadcast_(t, 0, "0"), "c10d_functional.broadcast"),
        (
            lambda t: native.all_gather_into_tensor_out(t, 4, "0", out=t.new_empty(8)),
            "c10d_functional.all_gather_into_tensor",
        ),
        (
            lambda t: native.all_reduce_coalesced([t, t], "sum", "0"),
            "c10d_functional.all_reduce_coalesced",
        ),
        (lambda t: dist.send(t, 1), "c10d.send"),
        (lambda t: dist.recv(t, 1), "c10d.recv_"),
        (lambda t: dist.barrier(), "c10d.barrier"),
        (lambda t: dist.all_reduce(t), "c10d.allreduce_"),
    ],
)
def test_every_variant_of_a_call_is_counted_once(world, call: Any, packet: str) -> None:
    with CommDebugMode() as mode:
        result = call(torch.ones(2))
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, torch.Tensor):
                native.wait_tensor(each)
    assert {str(key): count for key, count in mode.get_comm_counts().items()} == {packet: 1}


def test_entering_again_begins_anew_in_the_same_dictionary(world) -> None:
    mode = CommDebugMode()
    counts = mode.get_comm_counts()
    with mode:
        dist.barrier()
        dist.barrier()
        assert mode.get_total_counts() == 2
        with mode:
            dist.barrier()
        assert mode.get_total_counts() == 3
    dist.barrier()
    assert counts == {c10d.barrier: 3}
    with mode:
        assert mode.get_total_counts() == 0
    assert counts == {}


def test_calls_are_attributed_to_their_modules_and_passes(world) -> None:
    net = Net()
    with CommDebugMode() as mode:
        assert mode.comm_module_counts == {"Global": {"forward": {}, "backward": {}}}
        for _ in range(2):  # several calls of one module, as in gradient accumulation
            net(torch.ones(2, 4)).sum().backward()
        dist.barrier()
    reduce, gather = c10d.allreduce_, legacy.all_gather_into_tensor
    assert mode.comm_module_counts == {
        "Global": {"forward": {reduce: 6, c10d.barrier: 1}, "backward": {gather: 6}},
        "Net": {"forward": {reduce: 6}, "backward": {gather: 6}},
        "Net.first": {"forward": {reduce: 4}, "backward": {gather: 4}},
        "Net.second": {"forward": {reduce: 2}, "backward": {gather: 2}},
    }
    assert not net._forward_hooks
    assert not net.first._forward_hooks


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_a_pass_of_its_own(world, reentrant: bool) -> None:
    net = Net()
    x = torch.ones(2, 4, requires_grad=True)
    with CommDebugMode() as mode:
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    counts = mode.comm_module_counts["Net.first"]
    assert counts["forward"] == counts["recompute"] == {c10d.allreduce_: 2}
    assert counts["backward"] == {legacy.all_gather_into_tensor: 2}
    assert "ACTIVATION CHECKPOINTING" in mode.generate_comm_debug_tracing_table(0)


def test_two_models_of_one_class_have_two_names(world) -> None:
    one, other = Layer(4, 4), Layer(4, 4)
    with CommDebugMode() as mode:
        one(torch.ones(4))
        other(torch.ones(4))
        other(torch.ones(4))
    counts = mode.comm_module_counts
    assert counts["Layer"]["forward"] == {c10d.allreduce_: 1}
    assert counts["Layer#2"]["forward"] == {c10d.allreduce_: 2}


def test_parameters_are_known_by_module(world) -> None:
    net = Net()
    net(torch.ones(4))
    mode = CommDebugMode()
    with mode:
        net(torch.ones(4))
    assert {name: list(found) for name, found in mode.get_parameter_info().items()} == {
        "Net.first": ["weight", "bias"],
        "Net.second": ["weight", "bias"],
    }
    assert mode.get_sharding_info() == {}
    view = mode.advanced_module_tracker
    assert list(view.module_helper_dict) == ["Global", "Net", "Net.first", "Net.second"]
    assert view.module_parents_dict["Net.first"] == {"Global", "Net", "Net.first"}
    with mode:
        pass
    assert mode.get_parameter_info() == {}


def fail_after_a_barrier() -> None:
    dist.barrier()
    raise KeyError("mine")


def test_an_exception_passes_and_leaves_nothing_behind(world) -> None:
    mode = CommDebugMode()
    original = nn.Module.__call__
    with pytest.raises(KeyError, match="mine"), mode:
        fail_after_a_barrier()
    dist.barrier()
    assert mode.get_total_counts() == 1
    assert nn.Module.__call__ is original


def test_other_threads_are_seen(world) -> None:
    with CommDebugMode() as mode:
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        thread.join()
    assert mode.get_total_counts() == 1


def test_it_works_without_a_process_group() -> None:
    with CommDebugMode() as mode:
        nn.Linear(2, 2)(torch.ones(2))
    assert mode.get_total_counts() == 0
    assert "**aten.addmm.default" in mode.generate_comm_debug_tracing_table()


def test_a_recording_around_it_changes_nothing(world) -> None:
    net = Net()
    with commtrace.record() as recording:
        net(torch.ones(4))
        with CommDebugMode() as mode:
            net(torch.ones(4))
        dist.barrier()
    assert mode.comm_module_counts["Net"]["forward"] == {c10d.allreduce_: 3}
    assert mode.get_total_counts() == 3
    assert recording.total() == 7


@on_threads(3)
def test_each_rank_on_threads_counts_its_own() -> None:
    rank = dist.get_rank()
    with CommDebugMode() as mode:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
    assert mode.get_comm_counts() == {c10d.allreduce_: 3}
    half = dist.new_group([0, 1])
    with mode:
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=half)
    assert mode.get_total_counts() == (1 if rank < 2 else 0)


def reduce_in_buckets() -> tuple[int, list[str]]:
    model = DistributedDataParallel(nn.Linear(4, 4))
    with CommDebugMode() as mode:
        model(torch.ones(2, 4)).sum().backward()
    return mode.get_comm_counts()[c10d.allreduce_], list(mode.comm_module_counts)


@on_processes(2)
def test_buckets_of_ddp_are_seen_on_gloo() -> None:
    count, names = reduce_in_buckets()
    assert count == 1
    assert names == ["Global", "DistributedDataParallel"]


def test_operators_are_listed_by_noise(world) -> None:
    net = Net()
    with CommDebugMode() as mode:
        net(torch.ones(2, 4)).sum().backward()
    quiet, some, more, loud = (mode.generate_comm_debug_tracing_table(n) for n in range(4))
    assert "*c10d.allreduce_: 3" in quiet
    assert "module type" not in quiet
    assert "*module type: class 'torch" not in quiet
    assert "*module type: class" in some
    assert "**aten.addmm.default" not in some
    assert "**aten.addmm.default" in more
    assert "**aten.t.default" not in more
    assert "**aten.t.default" in loud
    assert "\x1b" not in loud
    with pytest.raises(UsageError, match="noise level"):
        mode.generate_comm_debug_tracing_table(4)


def test_the_list_of_operators_is_bounded(world, monkeypatch) -> None:
    monkeypatch.setattr(tally, "MAX_OPERATORS", 5)
    with CommDebugMode() as mode:
        for _ in range(4):
            torch.ones(2).add(1)
    assert (
        sum(len(each["operations_list"]) for each in mode.comm_module_operation_counts.values())
        == 5
    )
    assert "3 more operators ran" in mode.generate_comm_debug_tracing_table(3)


def test_files_have_the_table_and_the_tree(world, tmp_path: Path, monkeypatch) -> None:
    net = Net()
    with CommDebugMode() as mode:
        net(torch.ones(2, 4)).sum().backward()
    monkeypatch.chdir(tmp_path)
    mode.log_comm_debug_tracing_table_to_file()
    mode.generate_json_dump()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "comm_mode_log.rank0.json",
        "comm_mode_log.rank0.txt",
    ]
    assert (tmp_path / "comm_mode_log.rank0.txt").read_text() == (
        mode.generate_comm_debug_tracing_table()
    )
    mode.generate_json_dump("mine.json", noise_level=2)
    tree = json.loads((tmp_path / "mine.json").read_text())
    assert (tree["fqn"], tree["children"][0]["fqn"]) == ("Global", "Net")
    first = tree["children"][0]["children"][0]
    assert first["fqn"] == "Net.first"
    assert first["collectives_forward"] == [["c10d.allreduce_", 2]]
    assert first["collectives_backward"] == [["c10d_functional.all_gather_into_tensor", 2]]
    assert {"name", "input_shape", "input_sharding", "device_mesh"} < set(
        first["operations_forward"][0]
    )


def test_torchs_own_dtensors_are_seen_with_their_layouts(world) -> None:
    import torch.distributed.tensor as torchs

    mesh = torchs.init_device_mesh("cpu", (4,))
    layer = torchs.distribute_module(nn.Linear(8, 8), mesh)
    x = torchs.distribute_tensor(torch.ones(8, 8), mesh, [torchs.Shard(0)])
    with CommDebugMode() as mode:
        layer(x).redistribute(placements=[torchs.Replicate()])
    assert mode.get_comm_counts() == {legacy.all_gather_into_tensor: 1}
    assert mode.get_sharding_info() == {
        "Linear.weight": (torchs.Replicate(),),
        "Linear.bias": (torchs.Replicate(),),
    }
    assert "sharding: [(Replicate(),), (Shard(dim=0),)" in mode.generate_comm_debug_tracing_table(1)
