"""Programs for torch's CommDebugMode get the same answers, and right answers where it is wrong."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.tensor as theirs
import torch.distributed.tensor.parallel as styles
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode as TorchsMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from commtrace import CommDebugMode
from dtensor_core.testing import fake_world, run_processes, run_threads
from tests.commtrace.recorder.recorded import Linear

legacy, native, c10d = torch.ops.c10d_functional, torch.ops._c10d_functional, torch.ops.c10d

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Operators that only torch's mode lists: they neither compute nor communicate.
_EXTRA = (
    "_c10d_functional._wrap_tensor_autograd.default",
    "_c10d_functional.wait_tensor.default",
)
_HEADINGS = ("FORWARD PASS", "BACKWARD PASS")


@pytest.fixture
def world():
    with fake_world(4):
        yield


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


def of_a_tensor_parallel_model() -> Callable[[], Any]:
    mesh = dist.init_device_mesh("cpu", (4,))
    model = nn.Sequential(MLP(), MLP())
    for layer in model:
        plan: Any = {"net1": styles.ColwiseParallel(), "net2": styles.RowwiseParallel()}
        styles.parallelize_module(layer, mesh, plan)
    return lambda: model(torch.ones(4, 8)).sum().backward()


def of_redistributions() -> Callable[[], Any]:
    mesh = dist.init_device_mesh("cpu", (4,))
    tensor = theirs.distribute_tensor(torch.ones(8, 8), mesh, [theirs.Shard(0)])

    def run() -> None:
        tensor.redistribute(placements=[theirs.Replicate()])
        tensor.redistribute(placements=[theirs.Shard(1)])
        tensor.sum().full_tensor()

    return run


def of_functions() -> Callable[[], Any]:
    def run() -> None:
        for out in (
            funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD),
            funcol.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD),
            funcol.reduce_scatter_tensor(torch.ones(4), "sum", 0, dist.group.WORLD),
            funcol.all_to_all_single(torch.ones(4), None, None, dist.group.WORLD),
        ):
            out.clone()
        funcol.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", dist.group.WORLD)

    return run


def of_torch_distributed() -> Callable[[], Any]:
    def run() -> None:
        tensor, parts = torch.ones(4), [torch.ones(4) for _ in range(4)]
        dist.all_reduce(tensor)
        dist.all_gather(parts, tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        dist.scatter(tensor, parts, 0)
        dist.gather(tensor, parts, 0)
        dist.all_to_all(parts, parts)
        dist.all_to_all_single(tensor, tensor.clone())

    return run


def both(program: Callable[[], Any]) -> tuple[Any, Any]:
    """Run the program under torch's mode and ours, each on a model of its own."""
    program()()  # warms up the caches of torch's dispatch
    modes = TorchsMode(), CommDebugMode()
    for mode in modes:
        run = program()
        with mode:
            run()
    return modes


PROGRAMS = (of_a_tensor_parallel_model, of_redistributions, of_functions, of_torch_distributed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_counts_are_those_of_torchs_mode(program: Any, world) -> None:
    torchs, mode = both(program)
    expected = {packet: count for packet, count in torchs.get_comm_counts().items() if count}
    assert mode.get_comm_counts() == expected != {}
    for packet in expected:
        assert mode.get_comm_counts()[packet] == expected[packet]
    assert mode.get_total_counts() == torchs.get_total_counts()
    for name, passes in torchs.comm_module_counts.items():
        for in_pass, counts in passes.items():
            found = {packet: count for packet, count in counts.items() if count}
            assert mode.comm_module_counts[name][in_pass] == found, (name, in_pass)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_parameters_and_layouts_are_those_of_torchs_mode(program: Any, world) -> None:
    torchs, mode = both(program)
    expected, found = torchs.get_parameter_info(), mode.get_parameter_info()
    assert {name: list(held) for name, held in found.items()} == {
        name: list(held) for name, held in expected.items()
    }
    for name, held in expected.items():
        for key, value in held.items():
            assert type(found[name][key]) is type(value)
            assert found[name][key].shape == value.shape
    assert mode.get_sharding_info() == torchs.get_sharding_info()
    view, torchs_view = mode.advanced_module_tracker, torchs.advanced_module_tracker
    assert set(view.module_helper_dict) == set(torchs_view.module_helper_dict)
    for name, expected in torchs_view.module_helper_dict.items():
        assert view.module_helper_dict[name].items() >= expected.items() or name == "Global"
    assert view.module_parents_dict == torchs_view.module_parents_dict


def lines(table: str) -> list[str]:
    """Lines of a table without headings, colours and differences that are expected."""
    found = [line.rstrip() for line in _COLOUR.sub("", table).splitlines()]
    return [
        line
        for line in found
        if line.strip() not in _HEADINGS and line.strip().strip("*") not in _EXTRA
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("noise", [0, 1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_table_has_the_lines_of_torchs(program: Any, noise: int, world) -> None:
    torchs, mode = both(program)
    expected = lines(torchs.generate_comm_debug_tracing_table(noise))
    found = mode.generate_comm_debug_tracing_table(noise)
    assert "\x1b" not in found
    assert lines(found) == expected


def without_extras(tree: dict[str, Any]) -> dict[str, Any]:
    tree.pop("collectives_checkpointing", None)
    for name in ("forward", "backward", "checkpointing"):
        operators = tree[f"operations_{name}"]
        tree[f"operations_{name}"] = [each for each in operators if each["name"] not in _EXTRA]
    tree["children"] = [without_extras(child) for child in tree["children"]]
    return tree


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("noise", [0, 1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_json_is_that_of_torchs(program: Any, noise: int, world, tmp_path: Path) -> None:
    trees = []
    for mode in both(program):
        mode.generate_json_dump(str(tmp_path / "tree.json"), noise)
        trees.append(without_extras(json.loads((tmp_path / "tree.json").read_text())))
    assert trees[1] == trees[0]
    assert list(trees[1]) == list(trees[0])


@pytest.mark.filterwarnings("ignore")
def test_operators_are_listed_under_torchs_names(world) -> None:
    torchs, mode = both(of_a_tensor_parallel_model)
    expected = torchs.comm_module_operation_counts["Sequential.0.net2"]["operations_list"]
    found = mode.comm_module_operation_counts["Sequential.0.net2"]["operations_list"]
    is_product = [each for each in found if each["name"] is torch.ops.aten.addmm.default]
    assert is_product == [e for e in expected if e["name"] is torch.ops.aten.addmm.default] != []


# Errors of torch's mode. Where that is cheap, an assertion shows that they still exist.


def x() -> torch.Tensor:
    return torch.ones(3, 4, requires_grad=True)


def test_a_module_may_be_called_again_and_no_hook_is_left(world) -> None:
    model = nn.Sequential(Linear(4, 4))
    with CommDebugMode() as mode:
        for _ in range(3):
            model(x()).sum().backward()
    assert mode.comm_module_counts["Sequential.0"]["forward"] == {c10d.allreduce_: 3}
    assert not any(module._forward_hooks for module in model.modules())
    with CommDebugMode():
        nn.Sequential(model[0], model[0])(x())


def test_everything_that_communicates_is_counted(world) -> None:
    def run() -> None:
        tensor = torch.ones(4)
        dist.barrier()
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, 1)]):
            work.wait()
        native.wait_tensor(native.all_reduce_(tensor, "sum", "0"))
        native.wait_tensor(
            native.all_gather_into_tensor_out(tensor, 4, "0", out=tensor.new_empty(16))
        )
        native.wait_tensor(native.isend(tensor, 1, 0, "0"))

    with CommDebugMode() as mode:
        run()
    assert mode.get_comm_counts() == {
        c10d.barrier: 1,
        c10d.send: 2,
        c10d.recv_: 1,
        legacy.all_reduce: 1,
        legacy.all_gather_into_tensor: 1,
        legacy.isend: 1,
    }
    with TorchsMode() as torchs:
        run()
    assert torchs.get_total_counts() < mode.get_total_counts()


def test_what_comes_after_a_backward_pass_is_in_no_module(world) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with CommDebugMode() as mode:
        model(x()).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    assert mode.comm_module_counts == {
        "Global": {"forward": {c10d.allreduce_: 2}, "backward": {}},
    }


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def of_fsdp() -> dict[str, Any]:
    model = nn.Sequential(Block(), Block())
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model[0].set_modules_to_forward_prefetch([model[1]])
    with CommDebugMode() as mode:
        model(torch.ones(4, 8)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {
        name: {in_pass: sum(counts.values()) for in_pass, counts in passes.items()}
        for name, passes in mode.comm_module_counts.items()
    }


def test_what_fsdp_sends_is_its_units_and_clipping_is_nobodys() -> None:
    for counts in run_threads(of_fsdp, 2):
        assert counts == {
            "Global": {"forward": 3, "backward": 4},  # one of these is from clipping
            "FSDPSequential": {"forward": 2, "backward": 4},
            "FSDPSequential.0": {"forward": 1, "backward": 2},
            "FSDPSequential.1": {"forward": 1, "backward": 2},
        }


def of_ddp() -> dict[str, Any]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with CommDebugMode() as mode:
        model(x()).sum().backward()
    return {name: dict(passes) for name, passes in mode.comm_module_counts.items()}


def test_buckets_of_ddp_are_the_wrapped_models() -> None:
    for counts in run_processes(_names_of_ddp, 2):
        assert counts == {"Global": 1, "DistributedDataParallel": 1}


def _names_of_ddp() -> dict[str, int]:
    return {name: sum(found["backward"].values()) for name, found in of_ddp().items()}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_neither_forward_nor_backward(reentrant: bool, world) -> None:
    model = nn.Sequential(Linear(4, 4), Linear(4, 4))
    with CommDebugMode() as mode:
        checkpoint(model, x(), use_reentrant=reentrant).sum().backward()  # type: ignore[union-attr]
    counts = mode.comm_module_counts["Sequential.0"]
    assert counts["forward"] == counts["recompute"] == counts["backward"] == {c10d.allreduce_: 1}


@pytest.mark.filterwarnings("ignore")
def test_what_is_compiled_stays_compiled(world) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def run(tensor: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(tensor.sin(), "sum", [0, 1, 2, 3]) + 1

    for mode, num_graphs in ((TorchsMode(), 0), (CommDebugMode(), 1)):
        torch._dynamo.reset()
        compiled = torch.compile(run, backend=backend)
        with mode:
            compiled(torch.ones(4))
            compiled(torch.ones(4))
        assert len(graphs) == num_graphs
    assert mode.get_comm_counts()[legacy.all_reduce] == 2
    torch._dynamo.reset()


def test_other_threads_are_counted(world) -> None:
    for mode, expected in ((TorchsMode(), 0), (CommDebugMode(), 2)):
        with mode:
            threads = [threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))] * 1
            threads += [threading.Thread(target=dist.barrier)]
            for thread in threads:
                thread.start()
                thread.join()
        assert mode.get_total_counts() == expected


def test_asking_changes_nothing(world) -> None:
    for mode, size in ((TorchsMode(), 1), (CommDebugMode(), 0)):
        assert mode.get_comm_counts()[legacy.broadcast] == 0
        assert len(mode.get_comm_counts()) == size


def test_files_have_no_control_characters_and_are_each_ranks_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        with fake_world(2, rank=rank), CommDebugMode() as mode:
            dist.barrier()
            mode.generate_json_dump()
            mode.log_comm_debug_tracing_table_to_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"comm_mode_log.rank{rank}.{suffix}" for rank in range(2) for suffix in ("json", "txt")
    ]
    assert all(b"\x1b" not in path.read_bytes() for path in tmp_path.iterdir())
