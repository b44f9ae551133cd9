"""Attention kernels of all devices, some emulated on the CPU, and the cost of layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Partial, Placement, Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators import device_kernels
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

assert device_kernels.__doc__  # imported for the kernels that it registers

aten = torch.ops.aten
BATCH, HEADS, SEQUENCE, FEATURES, REPLICATED = Shard(0), Shard(1), Shard(2), Shard(3), Replicate()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def _flash(query: Any, key: Any, value: Any, causal: bool = False) -> Any:
    return aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)[0]


def _causal(query: Any, key: Any, value: Any) -> Any:
    return _flash(query, key, value, causal=True)


def _efficient(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_efficient_attention(query, key, value, None, True)[0]


def _cudnn(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(query, key, value, None, True)[0]


def _overrideable(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_fused_attention_overrideable(query, key, value)[0]


def _on_cpu(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]


def _causal_on_cpu(query: Any, key: Any, value: Any) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)[0]


KERNELS = [_flash, _causal, _efficient, _cudnn, _overrideable, _on_cpu, _causal_on_cpu]


def _heads(queries: int = 128) -> list[torch.Tensor]:
    """128 queries, because a kernel pads its logsumexp to a multiple of 32."""
    return [_t(4, 8, size, 6).requires_grad_() for size in (queries, 7, 7)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("queries", [128, 5])
def test_a_kernel_and_its_gradients_are_those_of_one_device(kernel: Any, queries: int) -> None:
    heads = [(each.double() if "cpu" in kernel.__name__ else each) for each in _heads(queries)]
    heads = [each.detach().requires_grad_() for each in heads]
    for layout in (BATCH, HEADS, SEQUENCE, FEATURES, REPLICATED, Partial()):
        assert_agrees(kernel, heads, [[layout]] * 3, tolerance=1e-4)
    assert_agrees(kernel, heads, [[SEQUENCE], [REPLICATED], [REPLICATED]], tolerance=1e-4)
    assert_agrees(kernel, heads, [[REPLICATED], [SEQUENCE], [SEQUENCE]], tolerance=1e-4)
    both = [[SEQUENCE, REPLICATED], [REPLICATED, SEQUENCE], [REPLICATED, SEQUENCE]]
    assert_agrees(kernel, heads, both, mesh_shape=(2, 2), tolerance=1e-4)
    assert_agrees(kernel, heads, [[BATCH, HEADS]] * 3, mesh_shape=(2, 2), tolerance=1e-4)


def _counted(kernel: Any, layouts: Any, mesh_shape: tuple[int, ...] = (4,)) -> Any:
    """Count collectives forward and backward; return layouts of the result and the gradients."""
    found: list[Any] = []

    @on_threads(torch.Size(mesh_shape).numel())
    def body() -> None:
        mesh = kept_mesh(mesh_shape)
        tensors = [laid_out(t, mesh, p) for t, p in zip(_heads(), layouts, strict=True)]
        with Collectives() as forward:
            out = kernel(*tensors)
        grad = DTensor.from_local(torch.ones_like(out._local_tensor), mesh, out.placements)
        with Collectives() as backward:
            # Not into `.grad`: there gradients have the layout of their tensors.
            gradients: Any = torch.autograd.grad(out, tensors, grad)
        found.append((dict(forward.counts), dict(backward.counts), out, gradients))

    body()
    forward, backward, out, gradients = found[0]
    return forward, backward, out.placements, [each.placements for each in gradients]


@pytest.mark.parametrize("kernel", KERNELS)
def test_batch_and_heads_send_nothing(kernel: Any) -> None:
    for layout in (BATCH, HEADS):
        expected = ({}, {}, (layout,), [(layout,)] * 3)
        assert _counted(kernel, [[layout]] * 3) == expected
    both = (BATCH, HEADS)
    assert _counted(kernel, [both] * 3, (2, 2)) == ({}, {}, both, [both] * 3)


@pytest.mark.parametrize("kernel", [each for each in KERNELS if each is not _causal])
def test_queries_that_are_sharded_meet_replicated_keys_and_values(kernel: Any) -> None:
    # Every query needs all keys and values: nothing is sent where they are replicated, otherwise
    # each of them is gathered once. Their gradients are sums over queries, so partial sums.
    layouts = [[SEQUENCE], [REPLICATED], [REPLICATED]]
    partial: tuple[Placement, ...] = (Partial(),)
    gradients = [(SEQUENCE,), partial, partial]
    assert _counted(kernel, layouts) == ({}, {}, (SEQUENCE,), gradients)


@pytest.mark.parametrize("kernel", [e for e in KERNELS if e not in (_causal, _overrideable)])
def test_keys_that_are_sharded_send_results_and_not_keys(kernel: Any) -> None:
    # Each rank attends to its keys and weights its result by its share of the sum of exponentials:
    # their logarithms are gathered, one number per query, and the results are summed. In backward
    # all is known, and a query's gradient is a sum over keys.
    gradients = [(Partial(),), (SEQUENCE,), (SEQUENCE,)]
    expected = ({"all_gather_into_tensor": 1, "all_reduce": 1}, {}, (REPLICATED,), gradients)
    assert _counted(kernel, [[REPLICATED], [SEQUENCE], [SEQUENCE]]) == expected


def test_one_key_that_one_rank_holds_is_everybody_s() -> None:
    heads = [_t(4, 8, size, 6).double().requires_grad_() for size in (5, 1, 1)]
    for kernel in (_on_cpu, _causal_on_cpu):
        assert_agrees(kernel, heads, [[REPLICATED], [SEQUENCE], [SEQUENCE]])


def test_masks_of_keys_that_are_sharded_may_hide_all_that_a_rank_holds() -> None:
    heads = [each.detach().double().requires_grad_() for each in _heads(5)]
    mask = torch.zeros(5, 7).double()
    mask[0, 2:], mask[1, :], mask[2, :5] = -torch.inf, -torch.inf, -torch.inf

    def attend(query: Any, key: Any, value: Any, mask: Any) -> Any:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, attn_mask=mask)[0]

    for of_mask in (Shard(1), REPLICATED):
        layouts = [[REPLICATED], [SEQUENCE], [SEQUENCE], [of_mask]]
        assert_agrees(attend, [*heads, mask], layouts)


def test_causal_queries_of_kernels_that_take_no_mask_are_sharded_otherwise() -> None:
    # The keys that a query sees depend on its position, which this kernel counts from its first
    # row. So the queries are resharded to another dim, for 1/4 of what gathering them would send,
    # and keys and values follow without communication.
    forward, _, layout, _ = _counted(_causal, [[SEQUENCE], [REPLICATED], [REPLICATED]])
    assert forward == {"all_to_all_single": 1}
    assert layout in ((BATCH,), (HEADS,))


@pytest.mark.parametrize("kernel", KERNELS)
def test_features_move_their_sharding_to_batch_or_heads(kernel: Any) -> None:
    # Scores are sums over features: each of three tensors sends 3/4 of its shard, once.
    forward, _, layout, _ = _counted(kernel, [[FEATURES]] * 3)
    assert forward == {"all_to_all_single": 3}
    assert layout in ((BATCH,), (HEADS,))


@pytest.mark.parametrize("kernel", [each for each in KERNELS if each is not _causal])
def test_short_keys_and_values_come_to_long_queries(kernel: Any) -> None:
    # 7 keys and values against 128 queries: gathering two tensors of 7 costs least.
    forward, _, layout, _ = _counted(kernel, [[SEQUENCE]] * 3)
    assert forward == {"all_gather_into_tensor": 2}
    assert layout == (SEQUENCE,)


def test_shards_drop_out_differently_and_replicas_alike() -> None:
    def body() -> Any:
        mesh = kept_mesh((2, 2))
        torch.manual_seed(0)
        query, key, value = (
            laid_out(torch.ones(4, 2, 8, 6), mesh, [BATCH, REPLICATED]) for _ in range(3)
        )
        out = aten._scaled_dot_product_flash_attention(query, key, value, 0.5)[0]
        again = aten._scaled_dot_product_flash_attention(query, key, value, 0.5)[0]
        return out.to_local(), again.to_local(), torch.get_rng_state()

    found = run_threads(body, 4)
    for rank, (out, again, state) in enumerate(found):
        assert torch.equal(out, found[rank ^ 1][0])
        assert not torch.equal(out, found[rank ^ 2][0])
        assert not torch.equal(out, again)
        assert torch.equal(state, found[0][2])
