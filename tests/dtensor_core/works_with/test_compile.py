"""torch.compile over functions of DTensors: a single graph, and the results of eager.

All tests run on two ranks and compare forward, backward and layouts; `fullgraph=True` ensures that
the graph does not break.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dtensor_core
from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.experimental import implicit_replication, local_map
from dtensor_core.parallel import loss_parallel
from dtensor_core.testing import on_threads, run_threads
from tests.dtensor_core.works_with.compiled import check, forgotten, full, needs_cpp  # noqa: F401

R, S, P = Replicate, Shard, Partial


def sharded(mesh: DeviceMesh, *placements: Any, size: tuple[int, ...] = (8, 8)) -> DTensor:
    """Create a leaf with a gradient, from the same values on every rank."""
    return distribute_tensor(torch.randn(size), mesh, placements).requires_grad_()


def plain(*size: int) -> torch.Tensor:
    return torch.randn(size).requires_grad_()


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


def in_layouts(x: DTensor) -> DTensor:
    """Read a tensor's placements before and after an operator."""
    y = x @ x.redistribute(placements=[Replicate()])
    dim = y.placements[0].dim + 1 if y.placements[0].is_shard() else 0  # pyright: ignore
    same = y.device_mesh == x.device_mesh and isinstance(y.placements[0], Shard)
    return y.redistribute(y.device_mesh, [Shard(dim)]) * (y.device_mesh.size() if same else 0)


@local_map(out_placements=[Shard(0)], in_placements=([Shard(0)], [Replicate()]))
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def written(x: DTensor) -> DTensor:
    y = x * 2
    y.view(-1).mul_(3)
    return y.add_(x)


def made(x: DTensor, mesh: DeviceMesh) -> DTensor:
    zeros = dtensor_core.zeros(8, 8, device_mesh=mesh, placements=[Shard(0)])
    return x + zeros + dtensor_core.ones(8, 8, device_mesh=mesh, placements=[Shard(1)])


def saved_again(x: DTensor, w: DTensor) -> Any:
    return checkpoint(lambda a, b: torch.relu(a @ b) @ b.T, x, w, use_reentrant=False)


CASES: dict[str, Any] = {
    "pointwise, with a redistribution": (
        lambda m: [sharded(m, S(0)), sharded(m, S(1))],
        lambda x, y: torch.relu(x) * y + 1,
    ),
    "matmul that gathers": (
        lambda m: [sharded(m, S(0)), sharded(m, S(1))],
        lambda x, w: x @ w,
    ),
    "matmul whose contributions go out": (
        lambda m: [sharded(m, S(1)), sharded(m, S(0))],
        lambda x, w: (x @ w, torch.relu(x @ w)),
    ),
    "views": (lambda m: [sharded(m, S(0))], lambda x: x.view(4, 2, 8).transpose(0, 1).flatten(1)),
    "reductions": (
        lambda m: [sharded(m, S(0))],
        lambda x: (x.sum(), x.mean(0), x.norm(), x.amax(1)),
    ),
    "redistributions": (
        lambda m: [sharded(m, S(0)), sharded(m, R())],
        lambda x, y: (
            x.redistribute(placements=[S(1)]) * 2,
            x.redistribute(placements=[S(0)]),
            y.redistribute(placements=[S(-1)]),
        ),
    ),
    "redistribution in another dtype": (
        lambda m: [sharded(m, S(0))],
        lambda x: x.redistribute(
            placements=[R()], forward_dtype=torch.bfloat16, backward_dtype=torch.float32
        ),
    ),
    "to_local": (
        lambda m: [sharded(m, S(0)), sharded(m, R())],
        lambda x, y: (x.to_local(), y.to_local(grad_placements=[P()]) * 2, x.full_tensor()),
    ),
    "from_local": (
        lambda m: [plain(4, 8), m],
        lambda x, m: (
            DTensor.from_local(x, m, [S(0)]),
            DTensor.from_local(x, m, [S(0)], shape=(8, 8), stride=(8, 1)) * 2,
            DTensor.from_local(x, m, [P()]).redistribute(placements=[R()]),
            DTensor.from_local(x, m, [R()], grad_placements=[P()]) * 3,
        ),
    ),
    "there and back": (
        lambda m: [plain(4, 8), m],
        lambda x, m: DTensor.from_local(x, m, [S(0)]).redistribute(placements=[S(1)]).to_local(),
    ),
    "questions of layout": (lambda m: [sharded(m, S(0))], in_layouts),
    "attention": (
        lambda m: [sharded(m, S(1), size=(2, 4, 6, 8)) for _ in range(3)],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "resampling": (
        lambda m: [sharded(m, S(2), size=(1, 2, 8, 4)), sharded(m, S(0), size=(2, 1, 4, 3))],
        lambda *xs: tuple(
            F.interpolate(x, scale_factor=1.5, mode=mode)
            for x in xs
            for mode in ("nearest", "bilinear", "bicubic")
        ),
    ),
    "norm and embedding": (
        lambda m: [sharded(m, S(0)), distribute_tensor(torch.tensor([[0, 7, 3]]), m, [R()])],
        lambda w, i: F.layer_norm(F.embedding(i, w).redistribute(placements=[R()]), (8,)),
    ),
    "indices": (lambda m: [sharded(m, S(0))], lambda x: (x[0], x[1:5], x[:, None])),
    "uneven shards": (
        lambda m: [sharded(m, S(0), size=(7, 6)), sharded(m, S(1), size=(6, 5))],
        lambda x, w: torch.relu(x @ w).sum(0),
    ),
    "local_map": (lambda m: [sharded(m, S(0)), sharded(m, R())], lambda x, w: product(x, w) * 2),
    "factories": (lambda m: [sharded(m, S(0)), m], made),
    "writing in place": (lambda m: [sharded(m, S(0))], written),
    "activation checkpointing": (lambda m: [sharded(m, S(0)), sharded(m, S(1))], saved_again),
}


@pytest.mark.parametrize("name", CASES)
@on_threads(2)
def test_compiling_changes_nothing(name: str) -> None:
    mesh = line()
    torch.manual_seed(0)
    arguments, function = CASES[name]
    check(function, arguments(mesh))


@pytest.mark.parametrize("placement", [S(0), S(1), R(), P()])
@on_threads(2)
def test_gradients_arrive_in_any_layout(placement: Any) -> None:
    mesh = line()
    x = sharded(mesh, S(0))
    given = dtensor_core.ones(8, 8, device_mesh=mesh, placements=[placement]) * 3
    compiled = torch.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    for gradient in (given, given.t()):
        x.grad = None
        compiled(x).backward(gradient)
        assert isinstance(x.grad, DTensor)
        assert x.grad.placements == (S(0),)
        torch.testing.assert_close(full(x.grad), torch.full((8, 8), 6.0))


@on_threads(4)
def test_meshes_of_two_axes() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    x, w = sharded(mesh, S(0), R(), size=(4, 6, 8)), sharded(mesh, S(0), S(0))
    check(lambda x, w: torch.relu(F.linear(x, w)).sum(-1), [x, w])


@on_threads(2)
def test_what_is_written_to_an_argument_is_written() -> None:
    mesh = line()
    x = sharded(mesh, S(0)).detach()
    check(lambda x: (x.add_(1), x.view(4, 2, 8).mul_(3))[1] + 1, [x])


@on_threads(2)
def test_compiling_inside_of_contexts() -> None:
    mesh = line()
    torch.manual_seed(0)
    x, targets = sharded(mesh, S(1)), torch.arange(8)
    with loss_parallel():
        check(lambda x, t: F.cross_entropy(x, t).full_tensor(), [x, targets])
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        check(lambda x, y: x @ y.T, [x, x])
    with torch.no_grad(), implicit_replication():
        check(lambda x, y: x + y, [x, torch.ones(8, 8)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x + 1 if x.sum() > 0 else x - 1,
        lambda x: x * len(str(x)),
        lambda x: torch.nonzero(x > 0),
        lambda x: torch.autograd.grad((x * x).sum(), x)[0],
        lambda x: x + distribute_tensor(torch.ones(8, 8), x.device_mesh, [Shard(0)]),
        lambda x: x + DTensor.from_local(torch.ones(8), x.device_mesh, [R()], run_check=True),
    ],
    ids=["item", "a branch", "repr", "nonzero", "autograd.grad", "distribute_tensor", "run_check"],
)
@pytest.mark.filterwarnings("ignore::dtensor_core.MissingRuleWarning")
@on_threads(2)
def test_where_the_graph_breaks_the_results_are_those_of_eager(function: Any) -> None:
    mesh = line()
    torch.manual_seed(0)
    x = sharded(mesh, S(0))
    function = torch.no_grad()(function) if "grad" not in function.__code__.co_names else function
    eager, compiled = function(x), torch.compile(function, backend="aot_eager")(x)
    torch.testing.assert_close(full(compiled), full(eager))


@on_threads(2)
def test_dropout_draws_what_eager_draws() -> None:
    mesh = line()
    x = sharded(mesh, S(0))

    def dropped(x: DTensor) -> DTensor:
        return F.dropout(x, 0.5)

    torch.manual_seed(1)
    eager = dropped(x)
    torch.manual_seed(1)
    compiled = torch.compile(dropped, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(full(compiled), full(eager))


@on_threads(4)
def test_a_rank_that_holds_nothing_joins_every_collective() -> None:
    """The last rank's product is empty and needs no weight, but all ranks gather the weight."""
    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    x, w = sharded(mesh, S(0), size=(3, 6)), sharded(mesh, S(1), size=(6, 5))
    check(lambda x, w: torch.relu(x @ w).sum(0), [x, w])


@on_threads(4)
def test_a_rank_that_sends_and_gets_nothing_joins_the_exchange_of_a_slice() -> None:
    """The last rank has none of 5 rows, and in the results none or other rows."""
    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    x, w = sharded(mesh, S(0), size=(5, 6)), sharded(mesh, S(1), size=(6, 6))
    check(lambda x, w: (torch.relu((x @ w)[1:4]), torch.cat((x * 2).split([2, 3])[::-1])), [x, w])


@needs_cpp
@pytest.mark.parametrize("name", ["uneven shards"])
def test_inductor_changes_nothing_either(name: str) -> None:
    arguments, function = CASES[name]

    def body() -> None:
        mesh = line()
        torch.manual_seed(0)
        check(function, arguments(mesh), backend="inductor")

    with torch._inductor.config.patch(compile_threads=1):
        run_threads(body, 2, timeout_s=240)  # C++ is compiled
