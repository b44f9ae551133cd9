"""Decisions cached for other sizes equal the full path's, on every rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.dispatch import dispatcher, shape_generic_cache
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.dispatch.entry import Entry
from dtensor_core.dispatch.make_entry import make_entry
from dtensor_core.experimental import register_sharding
from dtensor_core.layout import contiguous_stride
from dtensor_core.mesh import forget_decisions
from dtensor_core.operators import table
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing.fake import fake_world

aten = torch.ops.aten
F32, F64, I64 = torch.float32, torch.float64, torch.int64


@pytest.fixture(params=[0, 3])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """2 x 2 ranks, seen from the first and from the last, whose uneven shards are empty."""
    with fake_world(4, rank=request.param):
        yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


# Arguments of a call: tensors by the letters of their sizes, masks in capitals, and the rest.
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, ("ab", "ab"), {}),
    (aten.add.Tensor, ("ab", "b"), {"alpha": 2}),
    (aten.add.Tensor, ("b", "ab"), {}),
    (aten.mul.Tensor, ("abc", "ac"), {}),
    (aten.mul.Tensor, ("ab", ""), {}),
    (aten.mul.Tensor, ("ab", 2), {}),
    (aten.mul.Tensor, ("ab", 1j), {}),
    (aten.div.Tensor_mode, ("ab", "ab"), {"rounding_mode": "floor"}),
    (aten.relu.default, ("abc",), {}),
    (aten.gelu.default, ("ab",), {"approximate": "tanh"}),
    (aten.lerp.Scalar, ("ab", "ab", 0.5), {}),
    (aten.gt.Tensor, ("ab", "ab"), {}),
    (aten.where.self, ("AB", "ab", ""), {}),
    (aten.masked_fill.Scalar, ("ab", "AB", 1.0), {}),
    (aten._softmax.default, ("ab", 1, False), {}),
    (aten._softmax.default, ("ab", 5, False), {}),
    (aten._log_softmax.default, ("abc", -2, False), {}),
    (aten._softmax_backward_data.default, ("ab", "ab", -1, torch.float32), {}),
    (aten.sum.default, ("ab",), {}),
    (aten.sum.dim_IntList, ("ab", [0]), {}),
    (aten.sum.dim_IntList, ("abc", [-1, 0], True), {}),
    (aten.mean.dim, ("ab", [1]), {}),
    (aten.mm.default, ("ab", "bc"), {}),
    (aten.bmm.default, ("abc", "acb"), {}),
    (aten.addmm.default, ("c", "ab", "bc"), {}),
    (aten.addmm.default, ("ac", "ab", "bc"), {}),
    (aten.cat.default, (["ab", "cb"], 0), {}),
    (aten.native_layer_norm.default, ("ab", [4], "b", "b", 1e-5), {}),
    (aten.add_.Tensor, ("ab", "b"), {}),
    (aten.transpose.int, ("abc", -1, 0), {}),
    (aten.transpose.int, ("ab", 5, 0), {}),
    (aten.permute.default, ("abc", [1, -1, 0]), {}),
    (aten.t.default, ("ab",), {}),
    (aten.t.default, ("abc",), {}),
    (aten.detach.default, ("abc",), {}),
    (aten.expand.default, ("ab", [3, 4]), {}),
]
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)


def layout(
    dice: random.Random, mesh: DeviceMesh, letters: str, sharded: Sequence[str]
) -> Callable[[Any], DTensor]:
    """Return a constructor of tensors by size, mostly sharded along the letters of `sharded`.

    Some tensors are laid out differently, or are not contiguous.
    """
    names = letters.lower()
    dtype = torch.bool if letters.isupper() else dice.choice((F32,) * 12 + (F64, I64))
    kinds = [Replicate(), Partial(), *(Shard(dim) for dim in range(len(letters)))]
    placements = tuple(
        dice.choice(kinds)
        if dice.random() < 0.05
        else Shard(names.index(letter))
        if letter in names
        else Replicate()
        for letter in sharded
    )
    how = dice.random()

    def at(sizes: dict[str, int]) -> DTensor:
        shape = [sizes[letter] for letter in names]
        stride = contiguous_stride(shape)
        if how < 0.05:
            stride = (0,) * len(shape)
        elif how < 0.1:
            stride = contiguous_stride(shape[::-1])[::-1]
        spec = Spec(mesh, placements, TensorMeta(torch.Size(shape), stride, dtype))
        return DTensor(torch.zeros(spec.local_shape, dtype=dtype), spec)

    return at


def at_many_sizes(
    dice: random.Random, mesh: DeviceMesh, given: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield arguments in a layout, at sizes that do not always match."""
    sharded = [dice.choice("abc-") for _ in range(mesh.ndim)]

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(each) for each in value]
        return layout(dice, mesh, value, sharded) if isinstance(value, str) else value

    makers = [made(value) for value in given]
    for _ in range(10):
        sizes = {letter: dice.choice(SIZES) for letter in "abc"}

        def at(value: Any, sizes: dict[str, int] = sizes) -> Any:
            if isinstance(value, list):
                return [at(each) for each in value]
            unfit = {**sizes, dice.choice("abc"): dice.choice(SIZES)}
            return value(sizes if dice.random() < 0.95 else unfit) if callable(value) else value

        yield tuple(at(maker) for maker in makers)


class Decided(Exception):
    """Raised in place of executing a decision: there are no other ranks to communicate with."""


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide every call without executing it, and keep only its pattern in the cache."""
    miss = dispatcher._miss

    def decide(*call: Any) -> None:
        miss(*call)
        CACHE.entries.clear()
        raise Decided

    forget_decisions()
    monkeypatch.setattr(dispatcher, "_miss", decide)


def test_an_entry_of_a_pattern_is_what_the_long_way_makes(
    mesh, deciding, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(0)
    entry_of = shape_generic_cache.entry_of
    now: list[Any] = []
    served: list[Any] = []

    def compared(key: Any) -> Entry | None:
        entry = entry_of(key)
        if entry is not None:
            served.append(now[0])
            made = make_entry(*now)
            assert type(entry.kind) is type(made.kind), now
            for one, other in ((entry, made), (entry.kind, made.kind)):
                for name in {each.name for each in fields(other)} - {"kind"}:
                    assert getattr(one, name) == getattr(other, name), (name, now)
        return entry

    monkeypatch.setattr(shape_generic_cache, "entry_of", compared)
    refused = 0
    for op, given, kwargs in CALLS * 4:
        for args in at_many_sizes(dice, mesh, given):
            now[:] = op, args, kwargs
            try:
                make_entry(op, args, kwargs)
            except Exception as error:
                refused += 1
                expected: type[Exception] = type(error)
            else:
                expected = Decided
            with pytest.raises(expected), torch.no_grad():
                op(*args, **kwargs)
    assert refused > 20
    assert len(served) > 200
    assert len(set(served)) > 10


def _like_this(mesh: DeviceMesh, *shape: int) -> DTensor:
    return distribute_tensor(torch.ones(shape), mesh, [Shard(0), Replicate()])


def test_a_new_size_is_not_decided_again(mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    (_like_this(mesh, 8, 6) + _like_this(mesh, 8, 6)).softmax(1).sum(0)
    monkeypatch.setattr(dispatcher, "make_entry", None)
    result = (_like_this(mesh, 12, 10) + _like_this(mesh, 12, 10)).softmax(1).sum(0)
    assert result.shape == (10,)
    assert result.placements == (Partial(), Replicate())
    with pytest.raises(TypeError, match="not callable"):
        _like_this(mesh, 12, 12).sum(0)


def test_what_is_written_to_out_is_written_at_every_size(mesh) -> None:
    replicated = [Replicate()] * mesh.ndim
    for size in (4, 8, 6):
        x, out = (DTensor.from_local(torch.full((size,), n), mesh, replicated) for n in (2.0, 0.0))
        torch.mul(x, x, out=out)
        assert out.to_local().tolist() == [4.0] * size


def test_the_sizes_of_a_plain_tensor_are_looked_at(mesh) -> None:
    ones = torch.ones(()).expand(5)
    by_columns = [Replicate(), Shard(1)]
    x = distribute_tensor(torch.ones(4, 5), mesh, by_columns)
    assert (x + ones).shape == (4, 5)
    wide = distribute_tensor(torch.ones(4, 10), mesh, by_columns)
    assert wide.to_local().shape == (4, 5)
    with pytest.raises(RuntimeError, match="to broadcast"):
        wide + ones


def test_a_rule_of_the_users_is_not_taken_from_what_was_decided_before(
    mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "TABLE", dict(table.TABLE))
    op = aten.tanh.default
    replicated = [Replicate(), Replicate()]
    for size in (6, 4):
        x = _like_this(mesh, 8, size).redistribute(placements=replicated)
        assert x.tanh().placements == (Replicate(), Replicate())

    @register_sharding(op)
    def by_size(x: Any) -> Any:
        kind = Replicate() if x.shape[1] % 4 else Shard(1)
        return [([kind], [kind])]

    try:
        for size, kind in ((6, Replicate()), (4, Shard(1)), (10, Replicate()), (16, Shard(1))):
            x = _like_this(mesh, 8, size).redistribute(placements=replicated)
            assert x.tanh().placements == (kind, kind)
    finally:
        CACHE.forget(op)


def test_what_is_kept_is_bounded(mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_generic_cache, "MOST_PATTERNS", 8)
    forget_decisions()
    for ndim in range(1, 20):
        x = _like_this(mesh, *([2] * ndim))
        x + x
    assert len(CACHE.patterns) == 8
