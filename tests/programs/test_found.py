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
from dtensor_core.errors import MixedTensorError, RuleError
from dtensor_core.testing import kept_mesh, on_threads, run_threads


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
def test_a_gradient_that_is_not_requested_is_none_on_an_empty_rank():
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
def test_one_hot_keeps_the_sharding_of_its_indices():
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


@pytest.mark.parametrize("function", [torch.linalg.svd, torch.linalg.eig])
@on_threads(2)
def test_matrices_made_by_a_decomposition_have_the_strides_of_one_device(function):
    x = torch.arange(24.0).reshape(2, 3, 4)[..., :3].square()
    made = function(distribute_tensor(x, kept_mesh((2,)), [Replicate()]))
    assert [each.stride() for each in made] == [each.stride() for each in function(x)]


@on_threads(2)
def test_an_empty_product_of_two_types_has_the_type_that_one_device_gives_it():
    wide, narrow = torch.ones(0, 2, dtype=torch.float64), torch.ones(0, 2)
    x, y = (distribute_tensor(each, kept_mesh((2,)), [Replicate()]) for each in (wide, narrow))
    made, expected = (torch.einsum("ab,ab->", *each) for each in ((x, y), (wide, narrow)))
    assert made.dtype is expected.dtype
    assert torch.equal(made.full_tensor(), expected)


@on_threads(2)
def test_an_rms_norm_of_sharded_rows_is_contiguous():
    x = torch.arange(20.0).reshape(4, 5).t()
    normed = F.rms_norm(distribute_tensor(x, kept_mesh((2,)), [Shard(1)]), (4,))
    assert normed.stride() == (4, 1)
    torch.testing.assert_close(normed.full_tensor(), F.rms_norm(x, (4,)))


@on_threads(2)
def test_what_a_batch_norm_or_a_list_operator_writes_to_a_view_reaches_its_tensor():
    def laid(x: torch.Tensor, placement: Replicate | Shard) -> DTensor:
        return distribute_tensor(x, kept_mesh((2,)), [placement])

    def written(kept: torch.Tensor, x: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        F.batch_norm(x, kept.flatten()[:2], kept.flatten()[7:9], training=True)
        torch.ops.aten._native_batch_norm_legit(
            x, None, None, kept.flatten()[:2], kept.flatten()[7:9], True, 0.5, 1e-5
        )
        torch._foreach_add_([kept.flatten()[3:4], kept.flatten()[10:11]], [one, one])
        return kept

    kept, x, one = torch.ones(4, 6), torch.arange(8.0).reshape(4, 2), torch.ones(1)
    expected = written(kept.clone(), x, one)
    for x_placement in (Replicate(), Shard(0)):
        made = written(laid(kept, Shard(1)), laid(x, x_placement), laid(one, Replicate()))
        torch.testing.assert_close(made.full_tensor(), expected)


@on_threads(2)
def test_a_copy_of_a_view_has_shapes_that_no_view_has():
    x = torch.arange(25.0).reshape(5, 5)
    spread = distribute_tensor(x, kept_mesh((2,)), [Replicate()]).expand(5, 5, 5)
    made, expected = (torch.view_copy(each, (25, 5)) for each in (spread, x.expand(5, 5, 5)))
    assert made.stride() == expected.stride()
    assert torch.equal(made.full_tensor(), expected)


@on_threads(2)
def test_all_ranks_refuse_to_write_to_a_copied_view_of_an_expanded_tensor():
    x = distribute_tensor(torch.ones(1, 2), kept_mesh((2,)), [Shard(1)]).expand(2, 2)
    with pytest.raises(RuleError, match="share memory"):
        x.diagonal().fill_(1.5)


@on_threads(2)
def test_windows_that_are_copied_can_be_written_and_leave_their_tensor():
    for placement in (Replicate(), Shard(0), Shard(1)):
        x = distribute_tensor(torch.ones(4, 5), kept_mesh((2,)), [placement])
        torch.unfold_copy(x, 1, 3, 1).add_(1)
        assert torch.equal(x.full_tensor(), torch.ones(4, 5))


@on_threads(3)
def test_infinities_at_the_end_of_what_is_interpolated_stay():
    x = torch.arange(8.0).reshape(1, 2, 4)
    x[0, 1, 3] = torch.inf
    laid = distribute_tensor(x, kept_mesh((3,)), [Shard(2)])
    made, expected = (F.interpolate(each, 5, mode="linear") for each in (laid, x))
    torch.testing.assert_close(made.full_tensor(), expected)


@on_threads(2)
def test_gradients_pass_into_what_is_given_for_a_norm():
    x = torch.arange(9.0).reshape(3, 3)
    grads = []
    for laid in (x, distribute_tensor(x, kept_mesh((2,)), [Shard(0)])):
        leaf = laid.clone().requires_grad_()
        out = torch.zeros_like(torch.linalg.norm(leaf).detach())
        torch.linalg.norm(leaf, out=out)
        out.sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1].full_tensor(), grads[0])


@on_threads(2)
def test_partial_sums_are_unchanged_by_an_operator_that_fills_a_copy():
    for fill in (torch.ops.aten.zero.default, lambda x: torch.fill(x, 1.5)):
        x = DTensor.from_local(torch.ones(4), kept_mesh((2,)), [Partial()])
        filled = fill(x).full_tensor()
        assert torch.equal(filled, fill(torch.ones(4)))
        assert torch.equal(x.full_tensor(), torch.full((4,), 2.0))


@on_threads(2)
def test_complex_numbers_that_there_are_none_of_have_an_extreme():
    x = distribute_tensor(torch.zeros(1, 1, 0, dtype=torch.complex128), kept_mesh((2,)), [Shard(2)])
    assert x.amax([1]).shape == (1, 0)
    with pytest.raises(IndexError):
        x.amin([2])


LOSSES = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "group_norm": lambda x, _: F.group_norm(x, x.shape[1] or 1),
    "interpolate": lambda x, _: F.interpolate(x, scale_factor=2.0),
}


@pytest.mark.parametrize("shape", [(1, 0, 3), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_no_elements_have_gradients_although_meta_kernels_divide_by_their_number(
    name: str, shape: tuple[int, ...]
):
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[str, str, tuple[int, ...]]:
        try:
            result = LOSSES[name](x, y)
            result.sin().sum().backward()
        except Exception as error:
            return type(error).__name__, "", ()
        assert x.grad is not None
        return "", str(tuple(result.shape)), tuple(x.grad.shape)

    zeros = torch.zeros(shape)
    expected = run(zeros.clone().requires_grad_(), zeros)

    def body():
        mesh = kept_mesh((2,))
        x, y = (distribute_tensor(zeros, mesh, [Shard(0)]) for _ in range(2))
        assert run(x.requires_grad_(), y) == expected

    run_threads(body, 2)


@on_threads(2)
def test_a_product_of_two_dtypes_without_elements_is_what_the_cpu_makes_of_it():
    mesh = kept_mesh((2,))
    x, y = torch.zeros(0, 2, 2), torch.zeros(2, 2, 3).double()
    expected = torch.einsum("abc,bcd->ad", x, y)
    result = torch.einsum(
        "abc,bcd->ad", *(distribute_tensor(each, mesh, [Replicate()]) for each in (x, y))
    )
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)


_INTO = {
    "inner of vectors": (torch.inner, (torch.rand(5), torch.rand(5))),
    "inner of a scalar": (torch.inner, (torch.rand(()), torch.rand(5))),
    "tensorsolve": (torch.linalg.tensorsolve, (torch.eye(6).reshape(2, 3, 6), torch.rand(2, 3))),
    "matrix_power 3": (torch.linalg.matrix_power, (torch.rand(3, 3), 3)),
    "diff": (torch.diff, (torch.rand(5),)),
}


@pytest.mark.parametrize("name", _INTO)
def test_gradients_pass_out_where_they_do_on_one_device(name: str):
    function, arguments = _INTO[name]

    def run(tensors: list[torch.Tensor], rest: list[int], out: torch.Tensor) -> str:
        try:
            function(
                *(each.requires_grad_() for each in tensors), *rest, out=out
            ).abs().sum().backward()
        except RuntimeError as error:
            return str(error).partition("(")[2]
        return "has gradients"

    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    rest = [each for each in arguments if isinstance(each, int)]
    empty = torch.zeros_like(function(*arguments))
    one = [each.clone() for each in tensors]
    expected = run(one, rest, empty.clone())

    def body():
        mesh = kept_mesh((2,))
        laid, out = (
            [distribute_tensor(each, mesh, [Replicate()]) for each in several]
            for several in (tensors, [empty])
        )
        assert run(laid, rest, *out) == expected
        for mine, alone in zip(laid, one, strict=True):
            assert (mine.grad is None) == (alone.grad is None)
            if alone.grad is not None:
                torch.testing.assert_close(mine.grad.full_tensor(), alone.grad)

    run_threads(body, 2)


@on_threads(2)
def test_a_copy_of_all_that_a_rank_holds_is_not_written_with_its_base():
    mesh = kept_mesh((2,))
    base = distribute_tensor(torch.arange(3.0).view(3, 1), mesh, [Shard(1)])
    column = base.select(1, 0)
    column.add_(DTensor.from_local(torch.tensor(1.0 + mesh.get_rank()), mesh, [Partial()]))
    assert torch.equal(column.full_tensor(), torch.arange(3.0, 6))
    assert torch.equal(base.full_tensor(), torch.arange(3.0, 6).view(3, 1))


@on_threads(2)
def test_a_pending_norm_is_not_written_with_what_may_be_negative():
    mesh = kept_mesh((2,))
    x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    for write in (lambda n: n.mul_(-2), lambda n: n.neg_()):
        with pytest.raises(RuleError, match="may be negative"):
            write(torch.linalg.vector_norm(x))
    norm = torch.linalg.vector_norm(x)
    torch.testing.assert_close(norm.add_(1).full_tensor(), torch.arange(4.0).norm() + 1)


def test_an_extreme_of_pending_sums_is_one_of_them_in_the_backward_pass_too():
    torch.manual_seed(0)
    full_tensors = [torch.randn(5, 5, dtype=torch.float64) for _ in range(10)]

    def body():
        mesh = kept_mesh((2, 2))
        for full in full_tensors:
            x = distribute_tensor(full, mesh, [Shard(1), Shard(1)]).requires_grad_()
            torch.linalg.norm(x, float("inf")).sum().backward()
            assert x.grad is not None
            assert int((x.grad.full_tensor() != 0).sum()) == 5
            assert bool(x.grad.full_tensor().isfinite().all())

    run_threads(body, 4)


@on_threads(2)
def test_a_result_is_written_to_the_real_numbers_that_a_complex_copy_views():
    mesh = kept_mesh((2,))
    base = distribute_tensor(torch.zeros(3, 2), mesh, [Shard(1)])
    ones = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    torch.add(ones, 1, out=torch.view_as_complex(base))
    assert torch.equal(base.full_tensor(), torch.tensor([[2.0, 0.0]] * 3))
    rows = distribute_tensor(torch.zeros(4), mesh, [Shard(0)]).unfold(0, 2, 1)
    with pytest.raises(RuleError, match=r"could not be propagated|share memory"):
        torch.add(ones[:1], 1, out=rows[0][:1])


@on_threads(2)
def test_distances_of_a_shard_that_is_not_contiguous():
    mesh = kept_mesh((2,))
    full = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    part = full.chunk(2, 1)[mesh.get_rank()]
    x = DTensor.from_local(part, mesh, [Shard(1)], shape=full.shape, stride=full.stride())
    torch.testing.assert_close(F.pdist(x).full_tensor(), F.pdist(full))


@on_threads(2)
def test_a_pool_without_a_meta_kernel_has_a_gradient_whatever_the_memory_layout():
    full = torch.rand(1, 1, 4, 5, 4, generator=torch.Generator().manual_seed(0))
    x = distribute_tensor(full, kept_mesh((2,)), [Replicate()]).requires_grad_()
    F.fractional_max_pool3d(x, (2, 2, 1), output_size=2).sum().backward()
    assert x.grad is not None
    gradient = x.grad.full_tensor()
    assert (gradient.shape, float(gradient.sum())) == (full.shape, 8.0)
