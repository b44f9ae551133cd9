"""Inductor overwrites memory only if nothing else is read from it, and sends what it is given."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.utils import counters, detect_fake_mode
from torch._functorch._aot_autograd import graph_compile
from torch._inductor import ir
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world, run_threads
from tests.dtensor_core.works_with.compiled import check, forgotten, needs_cpp  # noqa: F401

functional = torch.ops._c10d_functional


def test_memory_of_two_saved_tensors_is_not_donated() -> None:
    with FakeTensorMode():
        x, product, other = torch.ones(4), torch.ones(4), torch.ones(4)
        saved = [product[:2], product[1:], x[:2], other[:2], None]
        collect: Any = graph_compile.collect_fw_donated_buffer_idxs
        assert collect([x], [], [], saved) == [3]


def two_shards(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The backward needs this rank's rows of the product twice, in two shapes."""
    product = x @ w
    return product * y, product.view(8, 4, 4) * z


def compare_two_shards() -> None:
    mesh = init_device_mesh("cpu", (4,))
    values = torch.Generator().manual_seed(0)
    whole, rows = [Replicate()], [Shard(0)]
    layouts = (((8, 16), whole), ((16, 16), whole), ((8, 16), rows), ((8, 4, 4), rows))
    arguments = [
        distribute_tensor(torch.rand(shape, generator=values), mesh, placements).requires_grad_()
        for shape, placements in layouts
    ]
    check(two_shards, arguments, backend="inductor")


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_gradients_of_two_shards_of_a_tensor() -> None:
    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        run_threads(compare_two_shards, 4, timeout_s=240)


def group_name() -> str:
    return dist.GroupMember.WORLD.group_name  # pyright: ignore


def reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x, "sum", group_name()))


def whole(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = y.sin()
    both = reduced(torch.cat([x.cos(), part])) * 2
    gathered = functional.all_gather_into_tensor(part, 2, group_name())
    return both, functional.wait_tensor(gathered)


def whole_and_part(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = y.sin()
    return reduced(torch.cat([x.cos(), part])) * 2, reduced(part.view(2, 2))


def only_whole(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (reduced(torch.cat([x.cos(), y.sin()])) * 2,)


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("function", [whole, whole_and_part])
def test_parts_of_a_tensor_that_is_reduced(function: Any) -> None:
    def body() -> None:
        check(function, (torch.arange(4.0), torch.arange(4.0)), backend="inductor")

    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        run_threads(body, 2, timeout_s=240)


@pytest.mark.parametrize(
    ("function", "is_in_place"),
    [(whole, False), (whole_and_part, False), (only_whole, True)],
)
def test_a_reduction_in_place_has_memory_of_its_own(function: Any, is_in_place: bool) -> None:
    with fake_world(2):
        graph = make_fx(function, tracing_mode="fake")(torch.ones(4), torch.ones(4)).graph
        reinplace_inplaceable_ops_core(graph)
    names = [str(node.target) for node in graph.nodes]
    assert ("_c10d_functional.all_reduce_.default" in names) is is_in_place


def hidden(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x @ w).sin(),)


def shown(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`hidden`, with an equal backward, that must not overwrite the product."""
    product = x @ w
    return product.sin(), product.detach()


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_a_cached_backward_overwrites_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, w = torch.ones(8, 16), torch.eye(16).requires_grad_()
    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            for function in (hidden, shown):
                sine, *products = torch.compile(function)(x, w)
                sine.sum().backward()
                assert all(product.equal(x) for product in products)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


def gathered_signs(x: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_gather_into_tensor(x > 0, 2, group_name()))


def broadcast_signs(x: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.broadcast(x > 0, 0, group_name()))


@pytest.mark.parametrize("function", [gathered_signs, broadcast_signs])
def test_collectives_send_tensors_of_the_type_that_they_are_given(function: Any) -> None:
    """Not of the type to which their other arguments, such as 2 ranks, would promote them."""
    sent: list[torch.dtype] = []

    def lower(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
        graph.graph.output_node().meta["original_output_strides"] = [(1,)]
        lowering = GraphLowering(graph)
        with V.set_graph_handler(lowering), V.set_fake_mode(detect_fake_mode(inputs)):
            lowering.run(*inputs)
            kernels = [op for op in lowering.operations if isinstance(op, ir._CollectiveKernel)]
            sent.extend(given.get_dtype() for kernel in kernels for given in kernel.inputs)
        return make_boxed_func(graph.forward)

    with fake_world(2):
        torch.compile(function, backend=partial(compile_fx, inner_compile=lower))(torch.ones(4))
    assert set(sent) == {torch.bool}


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_a_result_is_read_after_its_wait_also_if_loops_are_recomputed() -> None:
    reads: list[list[str]] = []

    def recompute(nodes: list[Any]) -> list[Any]:
        for node in nodes:
            if isinstance(node, SchedulerNode) and node.mutation_renames:
                for _ in range(2):
                    reads.append(sorted(dep.name for dep in node.read_writes.reads))
                    node.recompute_size_and_body()
        return nodes

    def function(x: torch.Tensor) -> torch.Tensor:
        return reduced(x.sin()) + x

    torch._dynamo.reset()
    patches = {"_pre_fusion_custom_pass": recompute, "compile_threads": 1, "fx_graph_cache": False}
    with fake_world(2), torch._inductor.config.patch(patches):  # pyright: ignore
        torch.compile(function)(torch.ones(4))
    assert len(reads) == 2
    assert reads[0] == reads[1]


def attended(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gathered = functional.wait_tensor(functional.all_gather_into_tensor(x, 2, group_name()))
    query = gathered.t()[None, None].clone(memory_format=torch.contiguous_format)
    return scaled_dot_product_attention(query, y, y)


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return checkpoint(attended, x, y, use_reentrant=False)  # pyright: ignore


def compiled_attention() -> None:
    x, y = torch.rand(2, 3).requires_grad_(), torch.rand(1, 1, 3, 4)
    with torch._inductor.config.patch(compile_threads=1, fx_graph_cache=False):  # pyright: ignore
        torch.testing.assert_close(torch.compile(step)(x, y), step(x, y))


@needs_cpp
def test_attention_in_a_checkpoint_is_given_the_strides_that_it_was_traced_with() -> None:
    """Its kernel reads beyond the memory of a query whose last dimension is not contiguous."""
    torch._dynamo.reset()
    run_threads(compiled_attention, 2, timeout_s=120)
