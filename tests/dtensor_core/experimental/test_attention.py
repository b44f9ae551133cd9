"""Context parallelism: values and gradients of the full sequence, and their communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtensor_core.debug import CommDebugMode
from dtensor_core.experimental import context_parallel
from dtensor_core.experimental._attention import (
    _cp_options,
    context_parallel_unshard,
    set_rotate_method,
)
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.drop_in.counted import functional

RANKS = 3
HEADS, SIZE = 4, 8


def data(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, h, length, SIZE, generator=generator) for h in (HEADS, 2, 2)]


def attend(q: Any, k: Any, v: Any, *, is_causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [12, 9])
def test_shards_attend_as_the_full_sequence_does(length: int, is_causal: bool) -> None:
    full_tensors = [each.requires_grad_() for each in data(length)]
    wanted = attend(*full_tensors, is_causal=is_causal)
    wanted.square().sum().backward()

    @on_threads(RANKS)
    def body() -> None:
        mesh, parts = kept_mesh((RANKS,)), data(length)
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            mine = [each.clone().requires_grad_() for each in parts]
            assert [each.shape[2] for each in mine] == [length // RANKS] * 3
            with CommDebugMode() as counter:
                out = attend(*mine, is_causal=is_causal)
                out.square().sum().backward()
            found = [out, *(each.grad for each in mine)]
        assert counter.get_comm_counts() == {
            functional.all_gather_into_tensor: 2,
            functional.reduce_scatter_tensor: 2,
        }
        joined = context_parallel_unshard(mesh, found, [2] * 4)  # pyright: ignore
        for got, want in zip(joined, [wanted, *(each.grad for each in full_tensors)], strict=True):
            torch.testing.assert_close(got, want)
        for buffer, before in zip(parts, data(length), strict=True):
            assert torch.equal(buffer, before)

    body()


@pytest.fixture
def rotating() -> Iterator[None]:
    """Rotate keys and values by all-to-all."""
    set_rotate_method("alltoall")
    yield
    set_rotate_method("allgather")


@pytest.mark.usefixtures("rotating")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [24, 12])
def test_keys_and_values_rotate_by_all_to_all(length: int, ranks: int, is_causal: bool) -> None:
    full_tensors = [each.requires_grad_() for each in data(length)]
    wanted = attend(*full_tensors, is_causal=is_causal)
    wanted.square().sum().backward()

    @on_threads(ranks)
    def body() -> None:
        mesh, parts = kept_mesh((ranks,)), data(length)
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            mine = [each.clone().requires_grad_() for each in parts]
            with CommDebugMode() as forward:
                out = attend(*mine, is_causal=is_causal)
            with CommDebugMode() as backward:
                out.square().sum().backward()
            found = [out, *(each.grad for each in mine)]
        for counter in (forward, backward):
            counted = {functional.all_to_all_single: ranks - 1} if ranks > 1 else {}
            assert counter.get_comm_counts() == counted
        joined = context_parallel_unshard(mesh, found, [2] * 4)  # pyright: ignore
        for got, want in zip(joined, [wanted, *(each.grad for each in full_tensors)], strict=True):
            torch.testing.assert_close(got, want)

    body()


@pytest.mark.usefixtures("rotating")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_context_parallel_keeps_the_requested_scale_and_dtype(dtype: torch.dtype) -> None:
    full_tensors = [each.to(dtype) for each in data(12)]
    wanted = F.scaled_dot_product_attention(*full_tensors, scale=0.7, enable_gqa=True)

    @on_threads(RANKS)
    def body() -> None:
        mesh, parts = kept_mesh((RANKS,)), [each.to(dtype) for each in data(12)]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            out = F.scaled_dot_product_attention(*parts, scale=0.7, enable_gqa=True)
        assert out.dtype is dtype
        (found,) = context_parallel_unshard(mesh, [out], [2])
        near = 1e-2 if dtype is torch.bfloat16 else 1e-9
        torch.testing.assert_close(found, wanted, atol=near, rtol=near)

    body()


@pytest.mark.usefixtures("rotating")
def test_a_rotation_has_second_derivatives() -> None:
    full_tensors = [each.double().requires_grad_() for each in data(6)]

    def twice(*tensors: Any) -> list[torch.Tensor]:
        out = attend(*tensors, is_causal=True)
        first = torch.autograd.grad(out.sin().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(each.sin().sum() for each in first), tensors))

    with sdpa_kernel(SDPBackend.MATH):
        wanted = twice(*full_tensors)

    @on_threads(RANKS)
    def body() -> None:
        mesh, parts = kept_mesh((RANKS,)), [each.double() for each in data(6)]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            found = twice(*(each.clone().requires_grad_() for each in parts))
        for got, want in zip(context_parallel_unshard(mesh, found, [2] * 3), wanted, strict=True):
            torch.testing.assert_close(got, want)

    body()


@pytest.mark.parametrize("way", ["allgather", "alltoall"])
@pytest.mark.parametrize("masked", [(1,), (0, 2), (0, 1, 2)])
def test_a_mask_of_any_rank_is_refused_on_all(way: str, masked: tuple[int, ...]) -> None:
    set_rotate_method(way)

    def body() -> str:
        mesh, x = kept_mesh((RANKS,)), torch.ones(1, 1, 6, 4)
        mask = torch.ones(2, 2) if dist.get_rank() in masked else None
        with (
            pytest.raises(NotImplementedError, match="attention with a mask") as caught,
            context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]),
        ):
            F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        assert x.shape == (1, 1, 6, 4)
        return str(caught.value)

    try:
        (error_text,) = set(run_threads(body, RANKS))
    finally:
        set_rotate_method("allgather")
    assert f"a mask on rank {', '.join(map(str, masked))} of the mesh's 3" in error_text


@on_threads(RANKS)
def test_ranks_hold_a_piece_of_the_head_and_one_of_the_tail() -> None:
    mesh, rank = kept_mesh((RANKS,)), dist.get_rank()
    positions, tokens = torch.arange(12), torch.arange(12).expand(2, 12).contiguous()
    with context_parallel(
        mesh,
        buffers=[positions, tokens],
        buffer_seq_dims=[0, 1],
        no_restore_buffers={tokens},
    ):
        first, last = 2 * rank, 12 - 2 * (rank + 1)
        assert positions.tolist() == [first, first + 1, last, last + 1]
        assert tokens.tolist() == [positions.tolist()] * 2
    assert positions.tolist() == list(range(12))
    assert tokens.shape == (2, 4)


def test_pieces_are_in_sequence_order_without_load_balance(monkeypatch) -> None:
    monkeypatch.setattr(_cp_options, "enable_load_balance", False)

    @on_threads(RANKS)
    def body() -> None:
        mesh, positions = kept_mesh((RANKS,)), torch.arange(12)
        with context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]):
            assert positions.tolist() == list(range(4 * dist.get_rank(), 4 * dist.get_rank() + 4))
            assert context_parallel_unshard(mesh, [positions], [0])[0].tolist() == list(range(12))

    body()


@on_threads(RANKS)
def test_dropout_draws_apart_for_parts() -> None:
    mesh = kept_mesh((RANKS,))
    q = torch.zeros(1, 1, 6, 6)
    value = torch.eye(6).expand(1, 1, 6, 6).contiguous()
    torch.manual_seed(0)
    with context_parallel(mesh, buffers=[q, value], buffer_seq_dims=[2, 2]):
        out = F.scaled_dot_product_attention(q, q, value, dropout_p=0.5)
    masks = context_parallel_unshard(mesh, [out], [2])[0][0, 0].chunk(RANKS)
    assert not torch.equal(masks[0], masks[1]) or not torch.equal(masks[1], masks[2])


@on_threads(RANKS)
def test_what_cannot_be_is_refused_and_leaves_the_buffers() -> None:
    mesh, x = kept_mesh((RANKS,)), torch.ones(1, 1, 6, 4)
    with pytest.raises(ValueError, match="`seq_dims` must have the same number of elements"):
        context_parallel(mesh, buffers=[x], buffer_seq_dims=[]).__enter__()
    with pytest.raises(ValueError, match="must be a subset of `buffers`"):
        context_parallel(mesh, no_restore_buffers={x}).__enter__()
    with pytest.raises(ValueError, match="a sequence of 4 over 3 ranks"):
        context_parallel(mesh, buffers=[x], buffer_seq_dims=[3]).__enter__()
    with (
        pytest.raises(NotImplementedError, match="attention with a mask"),
        context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]),
    ):
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(2, 2))
    assert x.shape == (1, 1, 6, 4)


@on_threads(4)
def test_a_sequence_is_sharded_along_one_axis() -> None:
    with pytest.raises(ValueError, match="a sequence is sharded along a single axis"):
        context_parallel(kept_mesh((2, 2))).__enter__()


def test_unknown_rotate_methods_are_refused() -> None:
    set_rotate_method("alltoall")
    set_rotate_method("allgather")
    with pytest.raises(NotImplementedError, match="'pigeon'"):
        set_rotate_method("pigeon")
