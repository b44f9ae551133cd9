"""Generators, seeds and states: torch's own calls have the meaning they have on a single device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import dtensor_core
from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    rand,
)
from dtensor_core.device_mesh import DeviceMesh
from dtensor_core.errors import MeshError, RandomStateError
from dtensor_core.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.random import check_seeds, is_rng_supported_mesh, manual_seed, per_rank
from dtensor_core.testing import (
    fake_world,
    kept_mesh,
    on_threads,
    run_processes,
    run_threads,
)
from tests.dtensor_core.counting import Collectives

R, S0, S1 = Replicate(), Shard(0), Shard(1)


def value(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def shared(x: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> Any:
    return distribute_tensor(x, mesh, placements, src_data_rank=None)


WITH_GENERATOR: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "uniform_": lambda x, g: torch.empty_like(x).uniform_(generator=g),
    "normal_": lambda x, g: torch.empty_like(x).normal_(generator=g),
    "bernoulli_": lambda x, g: torch.empty_like(x).bernoulli_(0.3, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x.abs() / 8, generator=g),
    "exponential_": lambda x, g: torch.empty_like(x).exponential_(generator=g),
    "random_": lambda x, g: torch.empty_like(x).random_(3, 9, generator=g),
    "rand_like": lambda x, g: torch.rand_like(x, generator=g),
    "randint_like": lambda x, g: torch.randint_like(x, 3, 9, generator=g),
    "normal": lambda x, g: torch.normal(x, 2.0, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x.abs(), 2, generator=g),
    "poisson": lambda x, g: torch.poisson(x.abs(), generator=g),
    "kaiming_uniform_": lambda x, g: nn.init.kaiming_uniform_(torch.empty_like(x), generator=g),
}


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_a_generator_is_drawn_from_and_the_default_one_is_left_alone(name: str):
    draw, x = WITH_GENERATOR[name], value(7, 5)
    generator = torch.Generator().manual_seed(4)
    expected = [draw(x, generator) for _ in range(2)]

    def body() -> None:
        generator = torch.Generator().manual_seed(4)
        before = torch.get_rng_state()
        for placements in [S0, S1, R]:
            generator.manual_seed(4)
            x_here = shared(x, kept_mesh((4,)), placements)
            for wanted in expected:
                assert torch.equal(draw(x_here, generator).full_tensor(), wanted)
        assert torch.equal(torch.get_rng_state(), before)

    run_threads(body, 4)


@on_threads(2)
def test_no_generator_is_kept_alive_by_what_is_remembered_of_a_call():
    x = shared(value(4, 2), kept_mesh((2,)), S0)
    generator = torch.Generator()
    x.uniform_(generator=generator)
    gone = weakref.ref(generator)
    del generator
    gc.collect()
    assert gone() is None


@on_threads(4)
def test_the_same_state_gives_the_same_numbers_again():
    x = shared(value(7, 5), kept_mesh((4,)), S0)
    state = torch.get_rng_state()
    first = F.dropout(x, 0.5).full_tensor()
    second = F.dropout(x, 0.5).full_tensor()
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(F.dropout(x, 0.5).full_tensor(), first)
    with torch.random.fork_rng(devices=[]):
        assert torch.equal(F.dropout(x, 0.5).full_tensor(), second)
    assert torch.equal(F.dropout(x, 0.5).full_tensor(), second)


def _block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.relu(F.dropout(x, 0.4) @ w), 0.4)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_recomputes_with_the_same_masks(use_reentrant: bool):
    def gradients(x: Any, w: Any, through: bool) -> list[Any]:
        torch.manual_seed(5)
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = checkpoint(_block, x, w, use_reentrant=use_reentrant) if through else _block(x, w)
        y = F.dropout(y, 0.3)  # type: ignore[arg-type]
        y.square().sum().backward()
        return [x.grad, w.grad]

    x, w = value(7, 5), value(5, 6)
    with torch.random.fork_rng():
        expected = gradients(x, w, through=False)

    def body() -> None:
        mesh = kept_mesh((4,))
        got = gradients(shared(x, mesh, S0), shared(w, mesh, R), through=True)
        for each, wanted in zip(got, expected, strict=True):
            torch.testing.assert_close(each.full_tensor(), wanted)

    run_threads(body, 4)


@pytest.mark.parametrize("factory", ["rand", "randn"])
def test_factories_give_what_torch_gives_with_the_same_seed(factory: str):
    ours, theirs = getattr(dtensor_core, factory), getattr(torch, factory)
    layouts: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
        ((4,), (S0,)),
        ((4,), (R,)),
        ((2, 2), (S1, S0)),
        ((2, 2), (S0, S0)),
        ((2, 2), (R, Partial())),
    ]

    def body() -> None:
        for mesh_shape, placements in layouts:
            mesh = kept_mesh(mesh_shape)
            for size in [(8, 6), (7, 5), (2, 17), (0, 3)]:
                for dtype in (None, torch.float64, torch.bfloat16):
                    options = {"dtype": dtype, "device_mesh": mesh, "placements": placements}
                    torch.manual_seed(6)
                    wanted = theirs(size, dtype=dtype)
                    state = torch.get_rng_state()
                    torch.manual_seed(6)
                    got = ours(size, **options)
                    assert torch.equal(torch.get_rng_state(), state)
                    torch.testing.assert_close(got.full_tensor(), wanted)
                    generator = torch.Generator().manual_seed(6)
                    got = ours(size, generator=generator, **options)
                    torch.testing.assert_close(got.full_tensor(), wanted)

    run_threads(body, 4)


@on_threads(4)
def test_drawing_communicates_nothing():
    x = shared(value(7, 5).abs(), kept_mesh((4,)), S0)
    with Collectives() as issued:
        F.dropout(x, 0.5)
        torch.bernoulli(x / 8)
        torch.randn_like(x)
        torch.multinomial(x, 2)
        torch.normal(x, 1.0)
        x.exponential_()
        rand(7, 5, device_mesh=kept_mesh((4,)), placements=[S1])
    assert issued == {}


@on_threads(4)
def test_ranks_seeded_alike_are_found_to_agree():
    manual_seed(3, kept_mesh((4,)))
    check_seeds(kept_mesh((4,)))
    check_seeds(kept_mesh((2, 2)))
    assert torch.equal(torch.rand(()), torch.rand((), generator=torch.Generator().manual_seed(3)))


def test_ranks_seeded_differently_raise_on_all_ranks_alike():
    def body() -> str:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(mesh.get_local_rank("tp"))
        check_seeds(mesh["dp"])  # those of one column are equal
        with pytest.raises(RandomStateError) as raised:
            check_seeds(mesh)
        return str(raised.value)

    texts = set(run_threads(body, 4))
    assert len(texts) == 1
    assert "the cpu generators of ranks [1, 3] are not in the state of rank 0" in texts.pop()


@on_threads(4)
def test_ranks_outside_of_a_mesh_check_nothing_and_can_not_be_seeded_for_it():
    mesh = DeviceMesh("cpu", [0, 1])
    inside = mesh.get_coordinate() is not None
    torch.manual_seed(0 if inside else 1)
    check_seeds(mesh)
    assert is_rng_supported_mesh(mesh)
    if inside:
        manual_seed(2, mesh)
    else:
        with pytest.raises(RuntimeError, match="requires the current rank to be a part of"):
            manual_seed(2, mesh)
    rand(3, 4, device_mesh=mesh, placements=[S0])


def test_plain_tensors_draw_per_rank_and_stay_in_step():
    def body() -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = torch.ones(64)
        state = torch.get_rng_state()
        with per_rank(mesh):
            everywhere = F.dropout(x, 0.5)
        with per_rank(mesh, ["tp"]):
            along_tp = F.dropout(x, 0.5)
        with per_rank(mesh, [1]):
            again = F.dropout(x, 0.5)
        check_seeds(mesh)
        torch.set_rng_state(state)
        with per_rank(mesh):
            assert torch.equal(F.dropout(x, 0.5), everywhere)
        return everywhere, along_tp, again

    masks = run_threads(body, 4)
    everywhere, along_tp, again = (
        [tuple(m.tolist()) for m in each] for each in zip(*masks, strict=True)
    )
    assert len(set(everywhere)) == 4
    assert along_tp[0] == along_tp[2]
    assert along_tp[1] == along_tp[3]
    assert len(set(along_tp) | set(again)) == 4


def test_an_axis_that_a_mesh_does_not_have_is_refused():
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(MeshError) as raised, per_rank(mesh, ["pp"]):
            raise AssertionError("entered")
    assert str(raised.value) == (
        "random numbers per rank along axes ['pp']\n"
        "  Found: a mesh with axes ['dp', 'tp']\n"
        "  Try: pass a list of names or numbers of its axes"
    )


class Block(nn.Module):
    """A feed-forward block with dropout inside, after, and on the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Dropout(0.3)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.end = nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        return x + self.end(self.down(self.up(self.norm(x)).relu()))


def test_sequence_parallel_dropout_in_the_plan_trains_as_on_one_device():
    torch.manual_seed(1)
    reference, x = Block(), value(2, 6, 8)
    weights = {name: each.detach().clone() for name, each in reference.state_dict().items()}
    torch.manual_seed(2)
    expected = reference(x)
    expected.square().sum().backward()

    def body() -> None:
        mesh = init_device_mesh("cpu", (2,))
        model = Block()
        model.load_state_dict(weights)
        plan = {
            "start": SequenceParallel(),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=S1),
            "down": RowwiseParallel(output_layouts=S1, use_local_output=False),
            "end": SequenceParallel(),
        }
        parallelize_module(model, mesh, plan)
        torch.manual_seed(2)
        y = model(shared(x, mesh, S1))
        assert y.placements == (S1,)
        torch.testing.assert_close(y.full_tensor(), expected)
        y.square().sum().backward()
        for name, parameter in model.named_parameters():
            wanted = reference.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad.full_tensor(), wanted)  # type: ignore[union-attr]

    run_threads(body, 2)


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "meta"])
def test_tensors_without_data_draw_shapes(fake: bool):
    from tests.dtensor_core.operators.random.test_random import ELEMENTWISE, LAYOUTS

    def local_shape(draw: Any, x: torch.Tensor, mesh: DeviceMesh, placements: Any) -> None:
        y = draw(shared(x, mesh, *placements))
        assert isinstance(y, DTensor)
        assert tuple(y._local_tensor.shape) == y._spec.local_shape

    # It inspects values, of plain tensors too.
    able = {name: draw for name, draw in ELEMENTWISE.items() if name != "init.trunc_normal_"}
    with fake_world(4, rank=3):
        for mesh_shape, placements in LAYOUTS:
            mesh = init_device_mesh("cpu", mesh_shape)
            for draw in able.values():
                if fake:
                    with FakeTensorMode():
                        local_shape(draw, torch.empty(7, 5), mesh, placements)
                else:
                    local_shape(draw, torch.empty(7, 5, device="meta"), mesh, placements)


def test_names_are_where_torch_has_them():
    from dtensor_core import _random, random

    assert _random.manual_seed is random.manual_seed
    assert _random.is_rng_supported_mesh is random.is_rng_supported_mesh


def _masks_of_unseeded_ranks() -> tuple[list[float], list[float], list[float]]:
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.ones(8, 4), mesh, [S0])
    drawn = F.dropout(x, 0.5)
    replica = dtensor_core.randn(4, device_mesh=mesh, placements=[R]).to_local()
    full = F.dropout(distribute_tensor(torch.ones(8, 4), mesh, [S1]), 0.5).full_tensor()
    check_seeds(mesh)
    return drawn.to_local().flatten().tolist(), replica.tolist(), full.flatten().tolist()


def test_in_processes_shards_differ_and_replicas_agree():
    first, second = run_processes(_masks_of_unseeded_ranks, 2)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
