"""Operators on DTensors match one device, forward and backward, for any layout of arguments."""

from __future__ import annotations

import gc
import itertools
import math
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.dispatch import dispatcher, redistribute_arguments
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.dispatch.special.contexts import implicit_replication
from dtensor_core.dispatch.special.fallback import MissingRuleWarning
from dtensor_core.errors import MeshError, MixedTensorError, RuleError
from dtensor_core.redistribute.execute import execute
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads

Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _drop(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return F.dropout(x, 0.5)


def _attend_with_dropout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return F.scaled_dot_product_attention(q, k, v, None, 0.4, True)


def _bernoulli(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.bernoulli(x.sigmoid())


_HEADS = (_t(2, 4, 8, 4), _t(2, 4, 8, 4) * 2, _t(2, 4, 8, 4) * 3)

CASES: dict[str, Case] = {
    "add": (torch.add, (_t(4, 8), _t(8))),
    "multiply and broadcast": (torch.mul, (_t(4, 8), _t(4, 1))),
    "mm": (torch.mm, (_t(8, 4), _t(4, 12))),
    "addmm": (torch.addmm, (_t(12), _t(8, 4), _t(4, 12))),
    "linear": (F.linear, (_t(2, 6, 8), _t(12, 8), _t(12))),
    "matmul of four dims": (torch.matmul, (_t(2, 4, 8, 4), _t(2, 4, 4, 8))),
    "einsum": (lambda x, y: torch.einsum("abc,cd->bad", x, y), (_t(4, 5, 8), _t(8, 4))),
    "sum": (lambda x: x.sum(1), (_t(4, 8, 5),)),
    "mean": (lambda x: x.mean(), (_t(5, 7),)),
    "mean of dims": (lambda x: x.mean((0, -1), keepdim=True), (_t(5, 7, 3),)),
    "amax over empty shards": (lambda x: x.amax(0), (_t(5, 7),)),
    "softmax": (lambda x: x.softmax(-1), (_t(4, 8),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (_t(4, 5, 8), _t(8), _t(8) * 2)),
    "view splits": (lambda x: x.view(4, 2, 4, 8), (_t(4, 8, 8),)),
    "view flattens": (lambda x: x.reshape(4, 64) * 2, (_t(4, 8, 8),)),
    "view without common factors": (lambda x: x.reshape(6, 4), (_t(4, 6),)),
    "permute": (lambda x: x.permute(2, 0, 1) + 1, (_t(4, 8, 8),)),
    "slice": (lambda x: x[1:3, :5], (_t(4, 8),)),
    "select": (lambda x: x[1], (_t(4, 8),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (_t(4, 8), _t(4, 4))),
    "stack": (lambda x, y: torch.stack([x, y], 0), (_t(4, 8), _t(4, 8) * 2)),
    "embedding": (lambda w, i: F.embedding(i, w), (_t(9, 8), _ids(9, 4, 5))),
    "gelu": (F.gelu, (_t(5, 8),)),
    "attention": (_attend, _HEADS),
    "attention with dropout": (_attend_with_dropout, _HEADS),
    "where": (lambda c, x, y: torch.where(c > 0, x, y), (_t(4, 8), _t(4, 8) * 2, _t(8))),
    "expand": (lambda x: x.unsqueeze(1).expand(4, 3, 8), (_t(4, 8),)),
    "squeeze": (lambda x: x.squeeze(), (_t(4, 1, 5),)),
    "zeros like partial sums": (lambda x: torch.zeros_like(x) + x, (_t(4, 8),)),
    "filled like partial sums": (lambda x: torch.empty_like(x).fill_(2.0) * x, (_t(4, 8),)),
    "norm": (lambda x: x.norm(), (_t(4, 8),)),
    "variance": (lambda x: x.var(0), (_t(4, 8),)),
    "cross entropy": (F.cross_entropy, (_t(8, 5), _ids(5, 8))),
    "conversion": (lambda x: x.double().float(), (_t(4, 8),)),
    "dropout": (_drop, (_t(5, 8),)),
    "bernoulli": (_bernoulli, (_t(5, 8),)),
    "an operator without rule": (lambda x: torch.linalg.pinv(x), (_t(4, 8),)),
}


def layouts_of(tensor: torch.Tensor, axes: int) -> list[tuple[Placement, ...]]:
    one: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(tensor.ndim))]
    if tensor.is_floating_point():
        one.append(Partial())
    return list(itertools.product(one, repeat=axes))


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_equals_its_full_run(name: str, mesh_shape: tuple[int, ...]) -> None:
    fn, tensors = CASES[name]
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    expected = fn(*leaves)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    differentiable = expected.requires_grad
    grads = ()
    if differentiable:
        grads = torch.autograd.grad(expected, wanted, upstream, allow_unused=True)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh(mesh_shape)
        choices = [layouts_of(t, len(mesh_shape)) for t in tensors]
        combinations = list(itertools.product(*choices))
        chance = random.Random(name)
        for layouts in chance.sample(combinations, min(len(combinations), 16)):
            arguments = [
                distribute_tensor(t, mesh, layout, src_data_rank=None).requires_grad_(
                    t.is_floating_point()
                )
                for t, layout in zip(tensors, layouts, strict=True)
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MissingRuleWarning)
                result = fn(*arguments)
                same(result, expected, f"{name} {layouts}")
                if differentiable:
                    leaf_grads = torch.autograd.grad(
                        result,
                        [a for a in arguments if a.requires_grad],
                        distribute_tensor(upstream, mesh, src_data_rank=None),
                        allow_unused=True,
                    )
                    for got, want in zip(leaf_grads, grads, strict=True):
                        assert (got is None) == (want is None)
                        if want is not None:
                            same(got, want, f"gradient of {name} {layouts}")

    body()


def same(result: Any, expected: torch.Tensor, what: str) -> None:
    assert isinstance(result, DTensor), what
    assert tuple(result._local_tensor.shape) == result._spec.local_shape, what
    assert result.shape == expected.shape, what
    torch.testing.assert_close(
        result.full_tensor(), expected, atol=1e-4, rtol=1e-4, msg=lambda m: f"{what}: {m}"
    )


def test_in_place_operators_write_the_tensor_itself() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        full = _t(8, 4)
        x = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
        y = distribute_tensor(full, mesh, [Replicate()], src_data_rank=None)
        assert x.add_(y).mul_(2) is x
        assert x.placements == (Shard(0),)
        torch.testing.assert_close(x.full_tensor(), full * 4)

    body()


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


@pytest.mark.parametrize("name", ["cumsum_", "cumprod_"])
def test_an_in_place_operator_that_needs_another_layout_brings_its_result_back(name: str) -> None:
    @on_threads(4)
    def body() -> None:
        full = _t(5, 3)
        x = distribute_tensor(full, kept_mesh((4,)), [Shard(0)], src_data_rank=None)
        local = x.to_local()
        assert getattr(x, name)(0) is x
        assert x.placements == (Shard(0),)
        assert x.to_local() is local
        torch.testing.assert_close(x.full_tensor(), getattr(full.clone(), name)(0))

    body()


def test_partial_sums_passed_by_the_user_are_not_reduced_by_writing_in_place(mesh) -> None:
    local = torch.ones(2, 4)
    x = DTensor.from_local(local, mesh, [Partial()])
    with pytest.raises(RuleError) as error:
        x.exp_()
    assert str(error.value) == (
        "aten.exp_.default to write its result in place to f32[2,4] tp:P(sum)\n"
        "  Found: partial sums that were passed to DTensor.from_local\n"
        "  Why: in-place operations that require placement changes are not supported: the "
        "operator needs the reduced value, and the partial sums would be lost\n"
        "  Try: redistribute to Replicate() or Shard(dim) first, or use the operator's "
        "out-of-place form"
    )
    assert local.eq(1).all()
    x.mul_(2)  # commutes with the sum
    assert local.eq(2).all()


@pytest.mark.parametrize(
    ("name", "args", "placement"),
    [
        ("squeeze_", (0,), Shard(0)),
        ("unsqueeze_", (0,), Shard(2)),
        ("transpose_", (0, 1), Shard(0)),
        ("t_", (), Shard(0)),
    ],
)
def test_a_shape_that_changes_in_place_takes_the_placement_along(mesh, name, args, placement):
    x = distribute_tensor(torch.arange(8.0).reshape(1, 8), mesh, [Shard(1)])
    wanted = getattr(torch.arange(8.0).reshape(1, 8), name)(*args)
    local = x.to_local()
    assert getattr(x, name)(*args) is x
    assert x.shape == wanted.shape
    assert x.placements == (placement,)
    assert x.to_local().shape == torch.Size([2 if n == 8 else n for n in wanted.shape])
    assert local.shape == (1, 2)


@pytest.mark.parametrize("layout", [Shard(0), Shard(1), Replicate()])
def test_writing_to_a_view_that_is_a_copy_reaches_its_tensor(layout) -> None:
    full = torch.arange(20.0).reshape(5, 4)

    def write(x: Any, y: Any) -> None:
        x[0] = 1.0
        x[1:3] = y
        x[..., 1] = x[..., 2]
        x[4].add_(5)
        x.t()[2:].mul_(2)
        x[3:, :2].zero_()
        x[[0, 2], 3] = 7
        x[x > 30] = 0
        x.unbind(0)[1][2:].sub_(1)
        x.split([2, 3])[1][:1] = -3
        x.view(20)[18:] = 9

    wanted = full.clone()
    write(wanted, full[:2] * 3)

    @on_threads(3)
    def body() -> None:
        mesh = kept_mesh((3,))
        x = distribute_tensor(full.clone(), mesh, [layout], src_data_rank=None)
        write(x, distribute_tensor(full[:2] * 3, mesh, [Shard(0)], src_data_rank=None))
        assert x.placements == (layout,)
        assert x.full_tensor().tolist() == wanted.tolist()

    body()


def test_a_view_without_inverse_is_not_written_to() -> None:
    @on_threads(4)
    def body() -> None:
        x = distribute_tensor(torch.zeros(8, 4), kept_mesh((4,)), [Shard(0)])
        view = x.unfold(0, 2, 1)
        with pytest.raises(RuleError, match="the write could not be propagated"):
            view.add_(1)

    body()


def test_writing_to_a_view_reaches_its_tensor(mesh) -> None:
    x = distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])
    x[:, 0] = 1.0
    x.view(4, 2, 4)[:, :, 1].add_(2)
    assert x.to_local().tolist() == [[1.0, 2.0, 0.0, 0.0]] * 2


def test_a_plain_tensor_may_be_copied_into_a_dtensor() -> None:
    @on_threads(2)
    def body() -> None:
        full = torch.arange(6.0).reshape(3, 2)
        x = distribute_tensor(torch.zeros(3, 2), kept_mesh((2,)), [Shard(0)])
        x.copy_(full)
        assert torch.equal(x.full_tensor(), full)

    body()


def test_mixed_tensors_are_refused_with_the_plain_one_named(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    with pytest.raises(MixedTensorError) as error:
        x + torch.ones(4, 4)
    assert str(error.value) == (
        "aten.add.Tensor: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to "
        "DTensor before calling distributed operators!\n"
        "  Found: other, a torch.Tensor of shape (4, 4) and dtype torch.float32; self, a DTensor "
        "f32[4,4] tp:S(0)\n"
        "  Why: the layout of a plain tensor on the mesh is unknown\n"
        "  Try: if other is the same on every rank, DTensor.from_local(tensor, mesh, [Replicate()] "
        "* mesh.ndim), or run under dtensor_core.experimental.implicit_replication(); "
        "distribute_tensor(tensor, mesh, placements) to split it"
    )
    with implicit_replication():
        total: Any = x + torch.ones(4, 4)
    assert total.to_local().tolist() == [[2.0] * 4]
    with pytest.raises(MixedTensorError):
        x + torch.ones(4, 4)


def test_a_plain_tensor_of_one_element_may_take_part(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    product: Any = x * torch.tensor(2.0)
    assert product.to_local().tolist() == [[2.0] * 4]


def test_tensors_of_two_meshes_are_refused(mesh) -> None:
    other = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    y = distribute_tensor(torch.ones(4, 4), other, [Shard(0), Shard(1)])
    with pytest.raises(MeshError, match=r"aten\.add\.Tensor on inputs with different meshes"):
        x + y


def test_a_scalar_that_changes_every_step_does_not_grow_the_cache(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    x.mul(0.5).add(1).add_(2, alpha=3)
    x.mul(0.0).add(0).add_(0, alpha=2)
    before = len(CACHE.entries)
    for step in range(100):
        x.mul(float(step)).add(step).add_(step, alpha=step + 2)
    assert len(CACHE.entries) <= before


def test_numbers_that_decide_some_layouts_are_keys_of_those_alone(mesh) -> None:
    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    full = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    largest = DTensor.from_local(torch.ones(4), mesh, [Partial("max")])
    for alpha in (2.0, -2.0, 0.5, -0.5, 2.0):
        total = torch.add(full, largest, alpha=alpha)
        assert total.placements == ((Partial("max") if alpha > 0 else Replicate()),)
    torch.add(x, x, alpha=0.5)
    before = len(CACHE.entries)
    for step in range(1, 100):
        torch.add(x, x, alpha=step / 7)
    assert len(CACHE.entries) <= before


def test_zeros_infinities_and_nan_are_one_entry_each(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    x.mul(0.5), x.mul(0.0), x.mul(float("inf"))
    before = len(CACHE.entries)
    for _ in range(100):
        x.mul(-0.0), x.mul(-float("inf")), x.mul(float("nan")), x.mul(-float("nan"))
    assert len(CACHE.entries) <= before


def test_lists_of_scalars_that_change_do_not_grow_the_cache(mesh) -> None:
    ones = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    x, y = (ones + 1, ones + 2), (ones, ones)
    torch._foreach_addcdiv_(x, y, y, [0.5, 0.25])
    torch._foreach_addcdiv_(x, y, y, [0.5, 0.0])
    before = len(CACHE.entries)
    for step in range(100):
        torch._foreach_addcdiv_(x, y, y, [0.5 + step, 0.25 * step])
    assert len(CACHE.entries) <= before


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_steps_of_an_optimizer_do_not_grow_the_cache(mesh, how: dict[str, bool]) -> None:
    parameters = [
        torch.nn.Parameter(distribute_tensor(torch.ones(4, size), mesh, [Shard(0)]))
        for size in (3, 5)
    ]
    optimizer: Any = torch.optim.AdamW(parameters, **how)  # pyright: ignore[reportArgumentType]
    sizes: list[int] = []
    for step in range(6):
        for parameter in parameters:
            parameter.grad = parameter.detach() * step
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        sizes.append(len(CACHE.entries))
    assert sizes[2:] == [sizes[2]] * 4


def test_a_number_that_the_result_rests_on_is_distinguished(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    kinds = [
        torch.linalg.vector_norm(x, order).placements for order in (2, 3, 0, 2.0, math.inf, 3.0, 0)
    ]
    assert kinds == [
        (Partial(kind),) for kind in ("norm2", "norm3", "sum", "norm2", "max", "norm3", "sum")
    ]


def test_a_key_keeps_an_object_without_a_hash_alive() -> None:
    class Unhashable:
        __hash__ = None  # pyright: ignore

    given = Unhashable()
    key, gone = dispatcher._hashable(given), weakref.ref(given)
    assert key == dispatcher._hashable(given) != dispatcher._hashable(Unhashable())
    assert {key: 1}[dispatcher._hashable(given)] == 1
    del given
    gc.collect()
    assert gone() is not None


def test_arguments_that_are_redistributed_are_freed_with_the_call(
    mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = []

    def noted(*args: Any) -> torch.Tensor:
        full = execute(*args)
        gathered.append(weakref.ref(full))
        return full

    monkeypatch.setattr(redistribute_arguments, "execute", noted)
    x, y = (distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]) for _ in range(2))
    gc.disable()  # which would also free what is in a cycle, but later
    try:
        assert torch.mm(x, y).shape == (4, 4)
        assert [each() for each in gathered] == [None]
    finally:
        gc.enable()


def test_static_arguments_are_distinguished(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    assert x.sum(0).shape == (6,)
    assert x.sum(1).shape == (4,)
    assert x.view(4, 2, 3).shape == (4, 2, 3)
    assert x.view(4, 3, 2).shape == (4, 3, 2)


def test_the_cache_is_bounded(mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MOST_ENTRIES", 8)
    CACHE.forget_layouts()
    for size in range(1, 20):
        x = distribute_tensor(torch.ones(4, size), mesh, [Shard(0)])
        x + x
    assert len(CACHE.entries) == 8


def test_numbers_of_partial_sums_are_reduced_first() -> None:
    @on_threads(4)
    def body() -> None:
        x = distribute_tensor(torch.ones(8), kept_mesh((4,)), [Shard(0)], src_data_rank=None)
        assert x.sum().item() == 8.0
        assert float(x.mean()) == 1.0
        assert bool((x.sum() > 7).all())

    body()


def test_sizes_are_compared_with_plain_tensors_too(mesh) -> None:
    x = distribute_tensor(torch.ones(8), mesh, [Shard(0)])
    assert x.is_same_size(torch.ones(8))
    assert not torch.ones(2).is_same_size(x)


def test_a_tensor_that_is_given_twice_moves_once(mesh) -> None:
    x = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        x * x
    assert [(reason.step, reason.argument) for reason in reasons] == [("all_reduce", "self")]


def test_what_was_considered_is_reported_with_its_cost(mesh) -> None:
    x = distribute_tensor(torch.ones(64, 64), mesh, [Shard(1)])
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        x.sort(-1)
    (reason,) = reasons
    assert reason.operator == "aten.sort.default"
    assert reason.source == "f32[64,64] tp:S(1)"
    assert reason.target == "f32[64,64] tp:S(0)"
    assert reason.step == "all_to_all"
    assert [text for text, _ in reason.candidates] == ["S(0) -> S(0), S(0)", "R -> R, R"]
    costs = [seconds for _, seconds in reason.candidates]
    assert 0 < costs[0] < costs[1]


def test_inference_mode_dispatches_composites_undecomposed() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        q, k, v = (distribute_tensor(t, mesh, [Shard(1)], src_data_rank=None) for t in _HEADS)
        with torch.inference_mode():
            result: Any = _attend(q, k, v)
        torch.testing.assert_close(result.full_tensor(), _attend(*_HEADS))

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        body()
    with sdpa_kernel(SDPBackend.MATH):
        body()
