"""Errors that random programs have found, each in its smallest form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
)
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing import kept_mesh, on_threads


@on_threads(4)
def test_a_shape_that_changes_in_place_changes_the_layout_too():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    x = distribute_tensor(torch.arange(8.0).view(8, 1), mesh, [Shard(0)])
    assert x.squeeze_(1) is x
    assert (x.shape, x.placements, x.to_local().shape) == ((8,), (Shard(0),), (2,))
    x.unsqueeze_(0).t_().transpose_(0, 1)
    assert (x.shape, x.stride(), x.placements) == ((1, 8), (8, 1), (Shard(1),))
    x.add_(1)
    assert torch.equal(x.full_tensor(), torch.arange(1.0, 9).view(1, 8))


@on_threads(4)
def test_a_vector_times_a_matrix_is_a_vector_with_its_gradients():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    vector, matrix = torch.randn(8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    (vector @ matrix).exp().sum().backward()
    x = distribute_tensor(vector.detach(), mesh, [Shard(0)]).requires_grad_()
    w = distribute_tensor(matrix.detach(), mesh, [Shard(0)]).requires_grad_()
    product = x @ w
    assert product.shape == (4,)
    product.exp().sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), vector.grad)
    torch.testing.assert_close(w.grad.full_tensor(), matrix.grad)


@on_threads(4)
def test_the_zeros_of_a_gradient_formula_are_no_plain_tensors_that_mix():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)]).requires_grad_()
    x.split(2, 1)[2].sum().backward()  # its formula concatenates zeros that it creates from sizes
    assert torch.equal(x.grad.full_tensor(), torch.tensor([0.0, 0, 0, 0, 1, 1]).expand(4, 6))
    with pytest.raises(MixedTensorError):
        torch.cat([x, torch.zeros(4, 6)])


@on_threads(4)
def test_an_operator_that_returns_a_list_returns_one_on_an_empty_rank():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    (part,) = distribute_tensor(torch.ones(1, 2), mesh, [Shard(0)]).chunk(1, 1)
    assert part.shape == (1, 2)


@on_threads(4)
def test_a_gradient_that_is_not_wanted_is_none_on_an_empty_rank():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(1, 4), mesh, [Shard(0)]).requires_grad_()
    F.layer_norm(x, (4,)).sum().backward()
    assert x.grad.placements == (Shard(0),)


@on_threads(4)
def test_a_mean_over_a_strided_shard_counts_all_elements():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    flat = distribute_tensor(x, mesh, [Shard(1)]).reshape(-1)
    assert flat.placements == (_StridedShard(0, split_factor=3),)
    torch.testing.assert_close(flat.mean(0).full_tensor(), x.mean())


@on_threads(4)
def test_a_norm_joined_with_a_negative_number_leaves_its_sign():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    x = torch.randn(8)
    norm = distribute_tensor(x, mesh, [Shard(0)]).norm()
    loss = distribute_tensor(torch.tensor(-2.0), mesh, [Replicate()])
    joined = torch.stack([norm, loss]).full_tensor()
    torch.testing.assert_close(joined, torch.stack([x.norm(), torch.tensor(-2.0)]))


@on_threads(4)
def test_one_hot_keeps_the_cut_of_its_indices():
    mesh = kept_mesh((4,))
    torch.manual_seed(0)
    indices = torch.tensor([2, 0, 1, 2])
    hot = F.one_hot(distribute_tensor(indices, mesh, [Shard(0)]))
    assert hot.placements == (Shard(0),)
    assert torch.equal(hot.full_tensor(), F.one_hot(indices))


@on_threads(4)
def test_reductions_of_two_kinds_do_not_wait_in_one_tensor():
    mesh = kept_mesh((2, 2))
    product = distribute_tensor(torch.full((2, 1), 3.0), mesh, [Shard(0), Replicate()]).prod(0)
    local = torch.full((3,), 1.0)
    total = DTensor.from_local(local, mesh, [Replicate(), Partial()])
    joined = torch.cat([total, product, product])
    assert torch.equal(joined.full_tensor(), torch.tensor([2.0, 2, 2, 9, 9]))
