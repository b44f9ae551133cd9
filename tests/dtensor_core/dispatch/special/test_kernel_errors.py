"""A call that a single device refuses is refused by every rank, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, missing_rule
from dtensor_core.dispatch.special import kernel_errors
from dtensor_core.experimental import implicit_replication
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.counting import Collectives


def gather(tensor: Any) -> None:
    tensor.full_tensor()


def reduced_by_too_long_a_source() -> None:
    mesh = kept_mesh((2, 3))
    x = DTensor.from_local(torch.ones(1).bfloat16(), mesh, [Replicate(), Partial("max")])
    index = distribute_tensor(torch.zeros(3, dtype=torch.int64), mesh, [Replicate()] * 2)
    source = distribute_tensor(torch.ones(6).bfloat16(), mesh, [Shard(0), Replicate()])
    gather(x.index_reduce(0, index, source, "amax", include_self=False))


def reduced_by_a_source_of_another_width() -> None:
    mesh = kept_mesh((6,))
    x = distribute_tensor(torch.ones(1, 2), mesh, [Shard(1)])
    index = distribute_tensor(torch.zeros(3, dtype=torch.int64), mesh, [Replicate()])
    gather(x.index_add_(0, index, distribute_tensor(torch.ones(3, 1), mesh, [Replicate()])))


def not_for_complex_numbers() -> None:
    x = distribute_tensor(torch.ones(5, dtype=torch.complex64), kept_mesh((6,)), [Shard(0)])
    gather(torch.atan2(x, x))


def not_in_place_for_complex_numbers() -> None:
    x = distribute_tensor(torch.ones(5, dtype=torch.complex64), kept_mesh((6,)), [Shard(0)])
    gather(x.clone().clamp_(max=x))


def interpolated_integers() -> None:
    x = distribute_tensor(torch.ones(1, 1, 4, 4).long(), kept_mesh((6,)), [Shard(0)])
    gather(F.interpolate(x, 8, mode="bilinear"))


def of_two_dtypes() -> None:
    x = distribute_tensor(torch.ones(5, 3), kept_mesh((6,)), [Shard(0)])
    y = distribute_tensor(torch.ones(3).double(), kept_mesh((6,)), [Shard(0)])
    gather(torch.mv(x, y))


def sharded(tensor: torch.Tensor, dim: int = 0) -> DTensor:
    """Shard a tensor of 5 rows or columns over 6 ranks; the last rank holds nothing."""
    return distribute_tensor(tensor, kept_mesh((6,)), [Shard(dim)])


def replicated(tensor: torch.Tensor) -> DTensor:
    return distribute_tensor(tensor, kept_mesh((6,)), [Replicate()])


def of_booleans() -> None:
    gather(F.relu(sharded(torch.ones(5, 3).bool())))


def by_an_option_that_there_is_not() -> None:
    x = sharded(torch.ones(5, 3))
    gather(torch.div(x, x, rounding_mode="none"))


def padded_by_less_than_nothing() -> None:
    x, weight = sharded(torch.ones(5, 3, 4)), replicated(torch.ones(3, 3, 3))
    gather(F.conv_transpose1d(x, weight, padding=-9))


def written_by_a_bool_of_no_dimension() -> None:
    x, at = sharded(torch.ones(5, 5), 1), replicated(torch.tensor(True))
    gather(x.index_put((at,), replicated(torch.ones(5)), accumulate=True))


def written_by_a_mask_with_too_many_values() -> None:
    x, mask = sharded(torch.ones(5, 5), 1), replicated(torch.arange(5) > 2)
    gather(x.index_put((mask,), replicated(torch.ones(6))))


def written_on_a_diagonal_of_another_length() -> None:
    gather(torch.diagonal_scatter(sharded(torch.ones(4, 5)), replicated(torch.ones(3)), 1))


def drawn_with_deviations_of_another_shape() -> None:
    gather(torch.normal(sharded(torch.ones(5, 0)), replicated(torch.ones(5, 2))))


def of_a_list_with_booleans() -> None:
    x = sharded(torch.ones(5).bool())
    torch._foreach_sub([sharded(torch.ones(5)), x], [sharded(torch.ones(5)), x])


def of_more_ones_than_elements() -> None:
    x, mask = sharded(torch.ones(5, 5), 1), replicated(torch.ones(5, 5).bool())
    gather(x.masked_scatter(mask, replicated(torch.ones(0))))


def unpacked_with_too_few_pivots() -> None:
    pivots = replicated(torch.ones(5, 3, dtype=torch.int32))
    gather(torch.lu_unpack(sharded(torch.ones(5, 4, 4)), pivots)[0])


def unpacked_with_pivots_of_fewer_matrices() -> None:
    pivots = replicated(torch.ones(2, 4, dtype=torch.int32))
    gather(torch.lu_unpack(sharded(torch.ones(5, 4, 4), 2), pivots)[0])


ABOUT_METADATA = (
    *(reduced_by_too_long_a_source, reduced_by_a_source_of_another_width),
    *(not_for_complex_numbers, not_in_place_for_complex_numbers, interpolated_integers),
    *(of_two_dtypes, of_booleans, by_an_option_that_there_is_not, padded_by_less_than_nothing),
    *(written_by_a_bool_of_no_dimension, written_by_a_mask_with_too_many_values),
    *(written_on_a_diagonal_of_another_length, of_more_ones_than_elements),
    *(drawn_with_deviations_of_another_shape, of_a_list_with_booleans),
    *(unpacked_with_too_few_pivots, unpacked_with_pivots_of_fewer_matrices),
)

# Positions that every rank knows, along a dim of which every rank holds all, and of size 1.
BEYOND = {
    "index": lambda x, at: x[[0, 9]],
    "index_put": lambda x, at: x.index_put((at,), x[0]),
    "index_put in place": lambda x, at: x.index_put_((at,), x[0].clone()),
    "index_select": lambda x, at: x.index_select(0, at),
    "index_add": lambda x, at: x.index_add(0, at, x[:2]),
    "index_copy": lambda x, at: x.index_copy(0, at, x[:2]),
    "index_fill in place": lambda x, at: x.index_fill_(0, at, 1.0),
    "embedding": lambda x, at: F.embedding(at, x),
    "take": lambda x, at: x.take(at * 9),
    "put": lambda x, at: x.put(at * 9, x[0, :2]),
}


def refusals(call: Callable[[], object]) -> list[str]:
    """Call on 6 ranks and return the errors, after a collective that none of them misses."""

    def refused() -> str:
        with Collectives() as issued, pytest.raises((RuntimeError, IndexError, TypeError)) as error:
            call()
        dist.barrier()
        return f"{type(error.value).__name__}: {error.value}, after {issued}"

    return run_threads(refused, 6, timeout_s=30)


@pytest.mark.parametrize("call", ABOUT_METADATA)
def test_every_rank_refuses_it_also_one_without_elements(call):
    assert len(set(refusals(call))) == 1


@pytest.mark.parametrize("shape", [(4, 5), (2, 1)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", BEYOND)
def test_every_rank_refuses_positions_out_of_range_also_one_without_elements(name, dim, shape):
    def call() -> None:
        at = distribute_tensor(torch.tensor([0, 9]), kept_mesh((6,)), [Replicate()])
        BEYOND[name](sharded(torch.ones(shape), dim), at)

    assert len(set(refusals(call))) == 1


def test_nothing_is_sent_for_a_call_that_the_kernel_refuses():
    def call() -> None:
        x = DTensor.from_local(torch.ones(1, 6), kept_mesh((6,)), [Shard(0)])
        torch.fmax(
            x, DTensor.from_local(torch.ones(6, 1, dtype=torch.cfloat), kept_mesh((6,)), [Shard(1)])
        )

    (refusal,) = set(refusals(call))  # a TypeError since torch 2.15
    assert refusal.endswith("Error: fmax not implemented for complex tensors., after {}")


def test_a_call_that_zeros_alone_do_not_pass_is_not_refused():
    def divided() -> torch.Tensor:
        x: Any = sharded(torch.arange(5))
        return (x // (x + 1)).full_tensor()

    assert not any(found.any() for found in run_threads(divided, 6))


def test_a_masked_write_whose_indices_are_sharded_is_not_refused():
    x, mask = torch.zeros(5, 5), torch.ones(4, 6) > 0
    rows, columns = torch.arange(4)[:, None], torch.arange(6)[None] % 5
    values = torch.arange(24.0).view(4, 6)
    op = torch.ops.aten._unsafe_masked_index_put_accumulate
    expected = op(x, mask, [rows, columns], values)

    def written() -> torch.Tensor:
        at = [sharded(rows, 1), replicated(columns)]
        with missing_rule("replicate"):
            return op(replicated(x), replicated(mask), at, replicated(values)).full_tensor()

    for found in run_threads(written, 6):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["poisson", "_standard_gamma", "binomial", "normal"])
def test_a_call_that_draws_is_tried_without_a_draw_from_its_generator(name):
    def drawn(spread: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        op = getattr(torch.ops.aten, name)
        ones = [torch.ones(5, 3)] * (2 if name in ("binomial", "normal") else 1)
        given = [sharded(each) for each in ones] if spread else ones
        made: Any = op(*given, generator=generator)
        return made.full_tensor() if spread else made

    one = drawn(False)
    for found in run_threads(drawn, 6, True):
        torch.testing.assert_close(found, one)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the operators that are tried on values of their own."""
    names: list[str] = []
    error = kernel_errors._error

    def noted(call: Any, *args: Any) -> Any:
        names.append(str(call.op))
        return error(call, *args)

    monkeypatch.setattr(kernel_errors, "_error", noted)
    return names


def test_a_call_is_tried_once_and_not_if_it_is_large_or_all_ranks_are_alike(tried):
    def call(*shape: int) -> None:
        x = distribute_tensor(torch.ones(shape), kept_mesh((2,)), [Shard(0)])
        torch.atan2(x, x)

    run_threads(call, 2, 1, 1 << 19)
    run_threads(call, 2, 34, 7)
    assert not tried
    run_threads(call, 2, 35, 7)
    run_threads(call, 2, 35, 7)
    assert tried == ["aten.atan2.default"]


PLAIN = {
    "where": lambda x, t: torch.where(t > 0, x, t),
    "addr": lambda x, t: torch.addr(t, x[:, 0], x[0]),
    "grid_sample": lambda x, t: F.grid_sample(
        t[None, None], x[None, :, None, :2], align_corners=False
    ),
    "index": lambda x, t: x[(t[0] > 0).long()],
    "cross_entropy": lambda x, t: F.cross_entropy(x, t.softmax(1)),
    "mm": lambda x, t: t.t() @ x,
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
def test_the_gradients_of_a_call_with_plain_arguments_are_those_of_one_device(name, placement):
    """The arguments are allowed where the call is made; its backward comes after that."""
    generator = torch.Generator().manual_seed(0)
    full, plain = (torch.rand((4, 3), generator=generator).double() - 0.5 for _ in range(2))
    one = full.clone().requires_grad_()
    PLAIN[name](one, plain).square().sum().backward()

    def gradient() -> torch.Tensor:
        x = distribute_tensor(full, kept_mesh((3,)), [placement]).requires_grad_()
        with implicit_replication():
            made = PLAIN[name](x, plain)
        made.square().sum().backward()
        assert isinstance(x.grad, DTensor)
        return x.grad.full_tensor()

    for found in run_threads(gradient, 3):
        torch.testing.assert_close(found, one.grad)
