"""Compiled graphs of DTensors: their breaks, collectives, and recompilations.

A process plays a rank of a fake world, so the tests inspect graphs, not values.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.errors import RuleError
from dtensor_core.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from dtensor_core.testing import fake_world
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.small_models import MLPModule, ModelArgs, Transformer
from tests.dtensor_core.works_with.compiled import forgotten  # noqa: F401


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def mlp(mesh: DeviceMesh) -> nn.Module:
    plan = {"net1": ColwiseParallel(input_layouts=Shard(0)), "net2": RowwiseParallel()}
    return parallelize_module(MLPModule("cpu"), mesh, plan)


def transformer(mesh: DeviceMesh) -> nn.Module:
    model = Transformer(ModelArgs(n_layers=1))
    return Transformer.parallelize(model, mesh, use_seq_parallel=True)


def sent(function: Callable[..., torch.Tensor], *args: Any) -> tuple[list[str], list[str]]:
    """The collectives in the graphs of forward and backward, in order."""
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        names = [str(target) for target in targets if "c10d" in str(target)]
        graphs.append([n.split(".")[1] for n in names if "wait_tensor" not in n])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    result = torch.compile(function, backend=backend, fullgraph=True)(*args)
    result.sum().backward()
    forward, backward = graphs
    return forward, backward


@pytest.mark.parametrize(
    ("make", "inputs"),
    [(mlp, (torch.ones(2, 10),)), (transformer, (torch.zeros(2, 8, dtype=torch.long),))],
)
def test_a_parallelized_model_is_one_graph(mesh: DeviceMesh, make: Any, inputs: Any) -> None:
    explained = torch._dynamo.explain(make(mesh))(*inputs)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


def test_graphs_send_what_eager_sends(mesh: DeviceMesh) -> None:
    x = torch.ones(2, 10, requires_grad=True)
    model = mlp(mesh)
    with Collectives() as eager:
        result = model(x)
        there = dict(eager.counts)
        result.sum().backward()
    assert there == {"all_gather_into_tensor": 1, "all_reduce": 1}
    assert eager == {"all_gather_into_tensor": 1, "all_reduce": 1, "reduce_scatter_tensor": 1}
    forward, backward = sent(mlp(mesh), x)
    assert forward == ["all_gather_into_tensor", "all_reduce"]
    assert backward == ["reduce_scatter_tensor"]


def test_a_graph_of_resampled_rows_sends_those_around(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(2, 8, 64, 64), mesh, [Shard(2)]).requires_grad_()
    for mode, exchanges in (("nearest", []), ("bilinear", ["all_to_all_single"])):
        torch._dynamo.reset()
        found = sent(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x)  # noqa: B023
        assert found == (exchanges, exchanges)


def rows(x: DTensor) -> DTensor:
    """The tensor sharded by rows; the last rank has none, so they come from other ranks."""
    return x.redistribute(placements=[Shard(0)])


def numbers(x: DTensor) -> DTensor:
    return distribute_tensor(torch.arange(3), x.device_mesh, [Replicate()])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: rows(x) @ x,
        lambda x, n: F.embedding(n, rows(x)),
        lambda x, n: rows(x).index_select(0, n),
        lambda x, n: rows(x).amax(0),
        lambda x, n: rows(x).sum(0).redistribute(placements=[Replicate()]),
        lambda x, n: rows(x).softmax(0),
    ],
    ids=["matmul", "embedding", "index_select", "amax", "sum", "softmax"],
)
def test_all_ranks_send_alike_even_one_that_holds_nothing(function: Any) -> None:
    def graphs(rank: int) -> tuple[list[str], list[str]]:
        torch._dynamo.reset()
        with fake_world(4, rank=rank):
            mesh = init_device_mesh("cpu", (4,))
            x = distribute_tensor(torch.ones(3, 3), mesh, [Shard(1)]).requires_grad_()
            return sent(function, x, numbers(x))

    assert graphs(3) == graphs(0)


def test_one_compilation_for_one_layout(mesh: DeviceMesh) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: x * 2, backend=counter, fullgraph=True)
    rows = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    columns = distribute_tensor(torch.ones(8, 8), mesh, [Shard(1)])
    for x, frames in [(rows, 1), (rows + 1, 1), (columns, 2), (rows, 2), (columns, 2)]:
        assert compiled(x).placements == x.placements
        assert counter.frame_count == frames


@pytest.mark.parametrize("dynamic", [None, True])
def test_each_size_is_compiled_for(mesh: DeviceMesh, dynamic: bool | None) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mlp(mesh), backend=counter, fullgraph=True, dynamic=dynamic)
    for batch, frames in [(2, 1), (3, 2), (5, 3), (3, 3)]:
        assert compiled(torch.ones(batch, 10)).shape == (4 * batch, 10)
        assert counter.frame_count == frames


def test_numbers_that_change_are_compiled_for(mesh: DeviceMesh) -> None:
    compiled = torch.compile(lambda x, n: x * n, backend="aot_eager", fullgraph=True)
    x = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])
    for number in (2.0, 3.0, 4.5, 2, 3, 4):
        assert compiled(x, number).to_local().equal(torch.full((2, 2), float(number)))


def test_a_size_marked_dynamic_is_refused(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(Exception, match="your code specialized it to be a constant"):
        torch.compile(lambda x: x * 2, backend="aot_eager")(x)


def asked(x: DTensor) -> DTensor:
    return x + DTensor.from_local(torch.ones(8), x.device_mesh, [Replicate()], run_check=True)


def parallel_loss(x: DTensor) -> torch.Tensor:
    with loss_parallel():
        return F.cross_entropy(x, torch.arange(8))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + distribute_tensor(torch.ones(8, 8), x.device_mesh), "makes a leaf"),
        (asked, "compares the local tensors of all ranks"),
        (lambda x: x + 1 if x.sum() > 0 else x, "Data-dependent branching"),
        (parallel_loss, "must enclose the call"),
    ],
    ids=["distribute_tensor", "run_check", "a branch", "a context"],
)
def test_a_graph_break_reports_its_reason(mesh: DeviceMesh, function: Any, reason: str) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        torch.compile(function, backend="eager", fullgraph=True)(x)


def _refused_before(torch_version: tuple[int, int], error: type[Exception], match: str) -> Any:
    """Expect an error of older versions of torch."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < torch_version:
        return pytest.raises(error, match=match)
    return contextlib.nullcontext()


def test_placements_made_inside_do_not_cross_a_break(mesh: DeviceMesh) -> None:
    outside = [Shard(1)]

    def function(x: DTensor, inside: bool) -> DTensor:
        placements = [Shard(1)] if inside else outside
        y = x + 1
        torch._dynamo.graph_break()
        return y.redistribute(placements=placements)

    compiled = torch.compile(function, backend="aot_eager")
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    assert compiled(x, False).placements == (Shard(1),)
    with _refused_before((2, 14), AssertionError, match="FakeScriptObject"):
        assert compiled(x, True).placements == (Shard(1),)


def test_communication_is_announced_when_it_is_compiled(mesh: DeviceMesh) -> None:
    heard: list[str] = []
    compiled = torch.compile(mlp(mesh), backend="aot_eager")
    with observe.listening(lambda reason: heard.append(reason.step)):
        compiled(torch.ones(2, 10))
        assert {"all_gather", "all_reduce"} <= set(heard)
        heard.clear()
        compiled(torch.ones(2, 10))
    assert heard == []


def test_modules_that_are_called_with_dtensors_are_exported(mesh: DeviceMesh) -> None:
    module = distribute_module(torch.nn.Linear(8, 4), mesh)
    x = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])
    for strict in (False, True):
        exported = torch.export.export(module, (x,), strict=strict).module()
        got = exported(x)
        assert got.placements == module(x).placements == (Shard(0),)
        torch.testing.assert_close(got.to_local(), module(x).to_local())


# draft_export leaves the file of its log open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_modules_that_make_dtensors_of_their_inputs_are_not_exported(mesh: DeviceMesh) -> None:
    ways = (
        partial(torch.export.export, strict=False),
        partial(torch.export.export, strict=True),
        torch.export.draft_export,
    )
    for way in ways:
        with pytest.raises(RuleError, match="export the module before it is parallelized"):
            way(mlp(mesh), (torch.ones(2, 10),))
    gc.collect()  # the file is closed here, not in another test


def test_an_argument_may_still_be_arriving(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    compiled = torch.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    got = compiled(x.redistribute(placements=[Replicate()], async_op=True))
    assert got.placements == (Replicate(),)


def test_no_graph_of_dtensors_is_taken_from_disk(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match="compiled anew in each process"):
        x._stable_hash_for_caching()
