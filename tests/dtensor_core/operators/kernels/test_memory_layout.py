"""Strides, offsets and bytes that an operator receives refer to the full tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Replicate, Shard, _StridedShard, distribute_tensor
from dtensor_core.errors import RuleError
from dtensor_core.placement import Partial
from dtensor_core.testing import kept_mesh, on_threads

LAYOUTS = [Shard(0), Shard(1), Replicate(), _StridedShard(1, split_factor=2)]
DTYPES = [torch.int64, torch.float32, torch.uint8, torch.int16, torch.complex64, torch.complex128]


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64).view(shape) + 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [(6, 10), (5, 4), (1, 2), (0, 4), (3, 2)])
@on_threads(4)
def test_bytes_are_viewed_as_on_one_device_however_uneven_the_shards(shape, placement, dtype):
    full = numbers(*shape)
    x = distribute_tensor(full, kept_mesh((4,)), [placement])
    assert torch.equal(x.view(dtype).full_tensor(), full.view(dtype))
    if dtype not in (torch.complex128,):
        assert torch.equal(x.view(dtype).view(torch.float64).full_tensor(), full)


@on_threads(4)
def test_a_last_dim_that_no_such_number_fits_in_is_refused_by_all_ranks():
    x = distribute_tensor(numbers(4, 5), kept_mesh((4,)), [Shard(1)])
    with pytest.raises(RuntimeError, match="must be divisible by 2"):
        x.view(torch.complex128)
    with pytest.raises(RuntimeError, match="must be 1"):
        x.t().view(torch.int32)


@on_threads(2)
def test_the_bytes_of_partial_sums_are_those_of_their_sum():
    mesh = kept_mesh((2,))
    x = DTensor.from_local(torch.full((3,), 2.0), mesh, [Partial()])
    assert torch.equal(x.view(torch.int32).full_tensor(), torch.full((3,), 4.0).view(torch.int32))


@pytest.mark.parametrize("placement", LAYOUTS[:3], ids=str)
@on_threads(4)
def test_what_is_written_to_a_view_of_other_bytes_reaches_the_tensor(placement):
    full = numbers(6, 5)
    x = distribute_tensor(full, kept_mesh((4,)), [placement]).clone()
    x.view(torch.int64).add_(1)
    expected = full.clone()
    expected.view(torch.int64).add_(1)
    assert torch.equal(x.full_tensor(), expected)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Partial()], ids=str)
@pytest.mark.parametrize("shape", [(7, 2), (2, 7), (4, 4), (9, 4)])
@on_threads(4)
def test_a_diagonal_is_filled_where_it_is_on_one_device(shape, placement, wrap):
    mesh = kept_mesh((4,))
    for full in (numbers(*shape), numbers(*shape[::-1]).t(), numbers(*shape, 2)[..., 0]):
        given = distribute_tensor(full, mesh, [Replicate()])
        x = given.redistribute(placements=[placement]) if not placement.is_partial() else given
        x = x + distribute_tensor(torch.zeros(shape), mesh, [Replicate()])
        expected = full + torch.zeros(shape)
        try:
            expected.fill_diagonal_(-1, wrap=wrap)
        except RuntimeError:  # torch wraps by the strides of a contiguous tensor
            with pytest.raises(RuntimeError):
                x.fill_diagonal_(-1, wrap=wrap)
            continue
        x.fill_diagonal_(-1, wrap=wrap)
        assert torch.equal(x.full_tensor(), expected)


@pytest.mark.parametrize("placement", LAYOUTS[:3], ids=str)
@on_threads(4)
def test_places_in_memory_are_those_of_the_full_tensor(placement):
    mesh = kept_mesh((4,))
    for full in (numbers(6, 4), numbers(4, 6).t(), numbers(1, 4).expand(6, 4)):
        x = DTensor.from_local(
            distribute_tensor(full, mesh, [placement]).to_local(),
            mesh, [placement], shape=full.shape, stride=full.stride(),
        )  # fmt: skip
        for size, stride, offset in (((2, 2), (1, 1), 1), ((2,), (2,), None), ((2, 0), (9, 1), 0)):
            expected = full.as_strided(size, stride, offset)
            assert torch.equal(x.as_strided(size, stride, offset).full_tensor(), expected)
            made = torch.as_strided_copy(x, size, stride, offset)
            assert torch.equal(made.full_tensor(), expected)


@on_threads(4)
def test_memory_that_is_not_the_tensors_is_refused_by_all_ranks():
    x = distribute_tensor(numbers(6, 4), kept_mesh((4,)), [Shard(0)])
    with pytest.raises(RuleError, match="some positions are outside of the tensor's elements"):
        x[:, ::2].as_strided((3,), (1,))


@on_threads(4)
def test_the_gradient_of_places_in_memory_is_that_of_one_device():
    mesh = kept_mesh((4,))
    plain = numbers(5, 10).requires_grad_()
    plain.as_strided([3, 2], [1, 10], 0).mean(0).sin().sum().backward()
    for placement in LAYOUTS[:3]:
        x = distribute_tensor(plain.detach(), mesh, [placement]).requires_grad_()
        x.as_strided([3, 2], [1, 10], 0).mean(0).sin().sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)


def gapped(mesh) -> tuple[torch.Tensor, DTensor]:
    """A shard with gaps between its rows, of a full tensor without gaps."""
    full = numbers(4, 12)
    part = full.chunk(4, 1)[mesh.get_local_rank()]
    return full, DTensor.from_local(part, mesh, [Shard(1)], shape=(4, 12), stride=(12, 1))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(-1),
        lambda x: x.view(2, 24)[0],
        lambda x: x.view(-1).view(4, 12),
        lambda x: x.view(-1).view(torch.int64).view(torch.float64),
        lambda x: x.view(2, 2, 12).select(0, 1),
    ],
)
@on_threads(4)
def test_a_view_of_a_part_that_can_not_be_viewed_is_one_for_writing_and_reading(view):
    full, x = gapped(kept_mesh((4,)))
    full = full.clone()
    view(x).mul_(2)
    view(full).mul_(2)
    assert torch.equal(x.full_tensor(), full)
    here, there = view(x), view(full)
    x.add_(1)
    full.add_(1)
    assert torch.equal(here.full_tensor(), there)
    assert torch.equal((here * 1).full_tensor(), there)
    there.neg_()
    here.neg_()
    assert torch.equal(x.full_tensor(), full)
    assert here.to_local().numel() == here._local_tensor.numel()


@pytest.mark.parametrize("placement", LAYOUTS[:3], ids=str)
@on_threads(2)
def test_a_conjugate_is_a_view_for_writing_and_reading(placement):
    torch.manual_seed(0)
    full = torch.randn(4, 6, dtype=torch.complex128)
    x = distribute_tensor(full, kept_mesh((2,)), [placement]).clone()
    full = full.clone()
    here, there = x.conj(), full.conj()
    for view in (lambda t: t.conj(), lambda t: t.imag, lambda t: t.conj().imag, lambda t: t.mH):
        view(x).mul_(2)
        view(full).mul_(2)
        assert torch.equal(x.full_tensor(), full)
        assert torch.equal((here * 1).full_tensor(), there * 1)


@on_threads(2)
def test_pairs_with_gaps_between_them_are_complex_numbers_for_writing_too():
    mesh = kept_mesh((2,))
    part = numbers(2, 5, 3)[..., :2].clone(memory_format=torch.preserve_format)
    part = torch.empty_strided(part.shape, (15, 3, 1), dtype=part.dtype).copy_(part)
    x = DTensor.from_local(part, mesh, [Shard(0)], shape=(4, 5, 2), stride=(10, 2, 1))
    torch.view_as_complex(x).mul_(2)
    assert torch.equal(x.full_tensor()[:2], numbers(2, 5, 3)[..., :2] * 2)


@on_threads(2)
def test_places_count_from_the_first_element_wherever_a_rank_has_its_part():
    mesh = kept_mesh((2,))
    full = numbers(5, 5, 5)
    part = full.chunk(2)[mesh.get_local_rank()]
    x = DTensor.from_local(part, mesh, [Shard(0)], shape=(5, 5, 5), stride=(25, 5, 1))
    assert x.storage_offset() == 0
    assert x[1:].storage_offset() == 25
    x.fill_diagonal_(-1, wrap=True)
    assert torch.equal(x.full_tensor(), numbers(5, 5, 5).fill_diagonal_(-1, wrap=True))
    assert part.min() == -1
    y = DTensor.from_local(numbers(8)[4:], mesh, [Replicate()])
    assert torch.equal(y[1:].as_strided((2,), (2,)).to_local(), torch.tensor([6.0, 8]).double())
    y[2:].as_strided((2,), (1,)).neg_()
    assert y.to_local().tolist() == [5, 6, -7, -8]


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@on_threads(2)
def test_positions_of_a_view_count_from_the_beginning_of_its_base(placement: Any):
    y = distribute_tensor(numbers(6, 4), kept_mesh((2,)), [placement])
    view, plain = y[1:], numbers(6, 4)[1:]
    assert view.detach()[:, 2].storage_offset() == plain[:, 2].storage_offset() == 6
    for position in (4, 6):
        taken = view.as_strided((2, 2), (4, 1), position)
        assert torch.equal(taken.full_tensor(), plain.as_strided((2, 2), (4, 1), position))
        copied = torch.as_strided_copy(view, (2, 2), (4, 1), position)
        assert torch.equal(copied.full_tensor(), taken.full_tensor())
    view.as_strided((2, 2), (4, 1), 6).mul_(2)
    plain = numbers(6, 4)
    plain[1:].as_strided((2, 2), (4, 1), 6).mul_(2)
    assert torch.equal(y.full_tensor(), plain)
    with pytest.raises(RuleError, match="a view whose first element is at position 4"):
        view.as_strided((2, 2), (4, 1), 0)
    assert torch.equal(copy.deepcopy(view).full_tensor(), plain[1:])


@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
@pytest.mark.parametrize(
    "view",
    [
        lambda b: b[2:5],
        lambda b: b.view(2, 4)[1],
        lambda b: b.view(2, 4).t()[1:3],
        lambda b: b[1::2],
        lambda b: b.view(4, 2).diagonal(),
        lambda b: b[3],
    ],
)
@on_threads(2)
def test_the_gradient_of_a_write_to_a_view_is_that_of_one_device(view, placement):
    plain = numbers(8).requires_grad_()
    x = distribute_tensor(plain.detach(), kept_mesh((2,)), [placement]).requires_grad_()
    for each in (plain, x):
        made = each * 1
        view(made).mul_(3)
        made.sin().sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), plain.grad)
