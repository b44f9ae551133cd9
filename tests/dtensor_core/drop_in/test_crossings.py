"""Conversions between local tensors and DTensors, as in programs written for torch's DTensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import _api as torch_api

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    _api,
    _dtensor_spec,
    distribute_tensor,
)
from dtensor_core._utils import compute_global_tensor_info, compute_local_shape_and_global_offset
from dtensor_core.debug import CommDebugMode
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.drop_in.counted import functional

RANKS = 4


@on_threads(RANKS)
def test_shape_and_stride_go_together() -> None:
    mesh, full = kept_mesh((RANKS,)), torch.arange(27.0).view(9, 3)
    pieces = [*full.chunk(RANKS), full[:0]]
    uneven = DTensor.from_local(
        pieces[dist.get_rank()], mesh, [Shard(0)], shape=full.shape, stride=full.stride()
    )
    assert torch.equal(uneven.full_tensor(), full)
    for half in ({"shape": full.shape}, {"stride": full.stride()}):
        with pytest.raises(
            RuntimeError, match=r"Please pass both shape and stride at the same time\."
        ):
            DTensor.from_local(torch.zeros(3, 3), mesh, [Shard(0)], **half)


@on_threads(RANKS)
def test_specs_and_what_makes_tensors_have_the_names_of_torchs_modules() -> None:
    assert all(hasattr(torch_api, name) for name in _api.__all__)
    meta = _dtensor_spec.TensorMeta(torch.Size([4]), (1,), torch.float32)
    spec = _dtensor_spec.DTensorSpec(kept_mesh((RANKS,)), (Replicate(),), tensor_meta=meta)
    made = _api.DTensor(torch.ones(4), spec, requires_grad=False)
    assert made._spec is distribute_tensor(torch.ones(4), kept_mesh((RANKS,)), [Replicate()])._spec


@on_threads(RANKS)
def test_only_plain_tensors_are_local() -> None:
    mesh = kept_mesh((RANKS,))
    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match=r"local_tensor argument only accepts torch\.Tensor"):
        DTensor.from_local(x, mesh, [Shard(0)])


@on_threads(RANKS)
def test_ranks_outside_of_the_mesh_know_the_shape_and_hold_nothing() -> None:
    mesh = DeviceMesh("cpu", [0, 2])
    inside = dist.get_rank() in (0, 2)
    x = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)])
    for tensor, value in ((x, 1.0), (x + 2, 3.0), (x.redistribute(placements=[Replicate()]), 1.0)):
        assert tensor.shape == (6, 4)
        local = tensor.to_local()
        assert local.numel() == 0 if not inside else bool((local == value).all())
    assert torch.equal(x, x)


@on_threads(RANKS)
def test_the_stride_is_that_of_the_local_tensor_made_global() -> None:
    mesh = kept_mesh((RANKS,))
    local = torch.randn(8, 4, 8).permute(1, 2, 0)
    assert local.stride() == (8, 1, 32)
    x = DTensor.from_local(local, mesh, [Shard(1)])
    assert x.stride() == (8 * RANKS, 1, 32 * RANKS)
    assert compute_global_tensor_info(local, mesh, [Shard(1)]) == (
        list(x.shape),
        list(x.stride()),
    )


@on_threads(RANKS)
def test_what_cannot_be_redistributed_to_is_refused() -> None:
    mesh = kept_mesh((RANKS,))
    x = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="redistributing to Partial is for internal use only"):
        x.redistribute(mesh, [Partial()])
    with pytest.raises(RuntimeError, match="placements is needed for redistribute"):
        x.redistribute(mesh)


@on_threads(RANKS)
def test_a_hint_about_gradients_is_followed_with_one_collective_each_way() -> None:
    mesh = kept_mesh((RANKS,))
    x = distribute_tensor(torch.ones(8, 3, requires_grad=True), mesh, [Shard(0)])
    with CommDebugMode() as counter:
        local = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        local.backward(torch.ones_like(local))
    assert counter.comm_counts == {
        functional.all_gather_into_tensor: 1,
        functional.reduce_scatter_tensor: 1,
    }
    assert isinstance(x.grad, DTensor)
    assert torch.equal(x.grad.full_tensor(), torch.full((8, 3), float(RANKS)))


@on_threads(RANKS)
def test_the_local_part_of_a_parameter_is_a_parameter() -> None:
    x = distribute_tensor(torch.ones(8, 3), kept_mesh((RANKS,)), [Shard(0)])
    assert x.to_local() is x._local_tensor
    parameter = nn.Parameter(x)
    assert isinstance(parameter.to_local(), nn.Parameter)
    assert not isinstance(parameter.full_tensor(), nn.Parameter)
    assert not isinstance(x._local_tensor, nn.Parameter)
    parameter.to_local().sum().backward()
    assert isinstance(parameter.grad, DTensor)
    assert not isinstance(parameter.grad.to_local(), nn.Parameter)


@pytest.mark.parametrize("shape", [(8, 4), (5, 3), (1, 2), (0, 3)])
def test_shape_and_offset_locate_the_shard(shape: tuple[int, int]) -> None:
    full = torch.arange(float(torch.Size(shape).numel())).view(shape)

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        for placements in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(-1)]):
            x = distribute_tensor(full, mesh, placements)
            size, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
            there = tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))
            assert x.to_local().shape == size
            assert torch.equal(full[there], x.to_local())
            assert compute_local_shape_and_global_offset(shape, mesh, placements, True) == (
                size,
                (),
            )

    body()


@pytest.mark.parametrize("size", [12, 13, 14])
@pytest.mark.parametrize("dim", [0, 1])
def test_each_redistribution_is_one_collective_with_its_gradient(size: int, dim: int) -> None:
    shape = (size, 3) if dim == 0 else (3, size)
    full = torch.arange(float(3 * size)).view(shape)

    @on_threads(RANKS)
    def body() -> None:
        mesh, rank = kept_mesh((RANKS,)), dist.get_rank()
        gather, reduce, scatter = (
            functional.all_gather_into_tensor,
            functional.all_reduce,
            functional.reduce_scatter_tensor,
        )
        chunk = full.chunk(RANKS, dim)[rank]

        sharded = distribute_tensor(full.clone().requires_grad_(), mesh, [Shard(dim)])
        with CommDebugMode() as counter:
            gathered = sharded.redistribute(mesh, [Replicate()])
            assert counter.comm_counts == {gather: 1}
            gathered.backward(torch.ones_like(gathered))
        assert counter.comm_counts == {gather: 1}
        assert torch.equal(gathered.to_local(), full)
        assert isinstance(sharded.grad, DTensor)
        assert sharded.grad.placements == (Shard(dim),)

        replica = distribute_tensor(full.clone().requires_grad_(), mesh, [Replicate()])
        with CommDebugMode() as counter:
            sliced = replica.redistribute(mesh, [Shard(dim)])
            assert counter.comm_counts == {}
            sliced.backward(torch.ones_like(sliced))
        assert counter.comm_counts == {gather: 1}
        assert torch.equal(sliced.to_local(), chunk)
        assert isinstance(replica.grad, DTensor)
        assert replica.grad.placements == (Replicate(),)

        pending = DTensor.from_local(full, mesh, [Partial()])
        with CommDebugMode() as counter:
            assert torch.equal(pending.redistribute(mesh, [Replicate()]).to_local(), full * RANKS)
        assert counter.comm_counts == {reduce: 1}
        with CommDebugMode() as counter:
            assert torch.equal(pending.redistribute(mesh, [Shard(dim)]).to_local(), chunk * RANKS)
        assert counter.comm_counts == {scatter: 1}

    body()


@on_threads(RANKS)
def test_what_arrives_is_dense_also_where_pieces_have_one_element() -> None:
    mesh = kept_mesh((RANKS,))
    full = torch.arange(2.0 * 4 * 8 * 4).view(2, 4, 8, 4)
    for source, target in ((3, 1), (1, 3), (1, 2), (3, 2)):
        sharded = distribute_tensor(full, mesh, [Shard(source)])
        for placement in (Shard(target), Replicate()):
            moved = sharded.redistribute(placements=[placement])
            assert moved.to_local().is_contiguous()
            assert torch.equal(moved.full_tensor(), full)
