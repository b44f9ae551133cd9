"""Attention and its surroundings match one device, without communication if sharded by heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtensor_core import Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _heads(groups: int = 8) -> list[torch.Tensor]:
    shapes = ((4, 8, 5, 6), (4, groups, 7, 6), (4, groups, 7, 6))
    return [(_t(*shape) + n).requires_grad_() for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("layout", [Shard(0), Shard(1), Shard(2), Shard(3), Replicate()], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_and_its_gradients_are_those_of_one_device(backend: str, layout: Any) -> None:
    def attend(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        mask = tensors[3] if len(tensors) > 3 else None
        return F.scaled_dot_product_attention(*tensors[:3], attn_mask=mask, **options)

    heads, layouts = _heads(), [[layout]] * 3
    with sdpa_kernel(BACKENDS[backend]):  # process-wide, so shared by threads
        assert_agrees(attend, heads, layouts)
        assert_agrees(lambda *x: attend(*x, is_causal=True), heads, layouts)
        assert_agrees(attend, [*heads, _t(5, 7)], [*layouts, [Replicate()]])
        assert_agrees(attend, [*heads, _t(4, 1, 5, 7) > -1], [*layouts, [Replicate()]])
        for groups in (1, 2, 4):
            assert_agrees(lambda *x: attend(*x, enable_gqa=True), _heads(groups), layouts)


@pytest.mark.parametrize("mask", [_t(5, 6), _t(5, 6) > -1], ids=["added", "of bools"])
def test_a_rank_without_keys_takes_part_in_masked_attention(mask: torch.Tensor) -> None:
    queries, keys = _t(2, 3, 5, 6), _t(2, 3, 6, 6)

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors[:3], attn_mask=tensors[3])

    layouts = [[Replicate()], [Shard(2)], [Shard(2)], [Replicate()]]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert_agrees(attend, [queries, keys, keys + 1, mask], layouts)


SILENT = [
    (backend, layout, groups)
    for backend in BACKENDS
    for layout in (Shard(0), Shard(1))
    for groups in (4, 8)
    # The math form repeats grouped heads by a gather, which communicates if they are sharded.
    if (backend, layout, groups) != ("math", Shard(1), 4)
]


@pytest.mark.parametrize(("backend", "layout", "groups"), SILENT)
def test_attention_on_batch_and_heads_sends_nothing(backend: str, layout: Any, groups: int) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        query, key, value = (laid_out(t, mesh, [layout]) for t in _heads(groups))
        with Collectives() as issued:
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=groups == 4
            )
            out.sin().backward(laid_out(torch.ones(4, 8, 5, 6).double(), mesh, [layout]))
        assert issued == {}
        assert out.placements == (layout,)
        assert key.grad is not None
        assert key.grad.placements == (layout,)

    with sdpa_kernel(BACKENDS[backend]):
        body()


@pytest.mark.parametrize("layout", [Shard(0), Shard(1), Shard(2), Shard(3)], ids=str)
def test_rotary_embeddings_are_those_of_one_device(layout: Any) -> None:
    def rotate(x: torch.Tensor, cos: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        halves = torch.cat((-second, first), -1)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        turned = torch.view_as_real(pairs * torch.view_as_complex(turn)[None, :, None]).flatten(3)
        return turned * torch.cat((cos, cos), -1)[None, :, None] + halves

    angles = torch.outer(torch.arange(5.0).double(), torch.arange(4.0).double())
    turn = torch.view_as_real(torch.polar(torch.ones(5, 4).double(), angles)).contiguous()
    replicated = [Replicate()]
    assert_agrees(
        rotate,
        [_t(4, 5, 8, 8).requires_grad_(), angles.cos(), turn],
        [[layout], replicated, replicated],
    )


def test_masks_and_ranges_mix_under_implicit_replication() -> None:
    from dtensor_core.experimental import implicit_replication

    @on_threads(4)
    def body() -> None:
        scores = _t(4, 5, 5)
        x = laid_out(scores, kept_mesh((4,)), [Shard(0)])
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        with implicit_replication():
            masked = x.masked_fill(mask, -torch.inf).softmax(-1) * torch.arange(5.0).double()
            found = torch.where(mask, masked, x.tril(-1)).full_tensor()  # pyright: ignore
        wanted = scores.masked_fill(mask, -torch.inf).softmax(-1) * torch.arange(5.0).double()
        torch.testing.assert_close(found, torch.where(mask, wanted, scores.tril(-1)))

    body()
