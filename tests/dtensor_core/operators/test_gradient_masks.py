"""Backward passes that compute some gradients only, for every subset of the tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, run_threads
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

REPLICATED = Replicate()
aten = torch.ops.aten


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


INDICES = torch.arange(12).reshape(4, 3) % 7
# The function of a layer, and the shapes of its tensors, data first.
LAYERS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(3, 5, 6), (5, 6), (5, 6)]),
    "rms norm": (lambda x, w: F.rms_norm(x, w.shape, w), [(3, 5, 6), (5, 6)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [(3, 8, 5), (8,), (8,)]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [(5, 6, 3), (6,), (6,)],
    ),
    "batch norm of known moments": (
        lambda x, w, b: F.batch_norm(x, b.detach(), w.detach().abs(), w, b),
        [(5, 6, 3), (6,), (6,)],
    ),
    "batch norm without parameters": (
        lambda x, w: F.batch_norm(x, None, None, None, None, training=True) * w,
        [(5, 6, 3), (6, 1)],
    ),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        [(5, 6, 3), (6,), (6,)],
    ),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        [(3, 4, 8, 5), (6, 4, 3, 3), (6,)],
    ),
    "convolution of groups": (
        lambda x, w, b: F.conv1d(x, w, b, groups=2),
        [(3, 4, 8), (6, 2, 3), (6,)],
    ),
    "transposed convolution": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, padding=1),
        [(3, 4, 8, 5), (4, 6, 3, 3), (6,)],
    ),
    "linear": (F.linear, [(3, 5, 4), (6, 4), (6,)]),
    "prelu": (F.prelu, [(3, 6, 4), (6,)]),
    "embedding bag": (
        lambda w, s: F.embedding_bag(INDICES, w, per_sample_weights=s, mode="sum"),
        [(7, 4), (4, 3)],
    ),
    "attention with a mask": (
        F.scaled_dot_product_attention,
        [(2, 4, 5, 4), (2, 4, 5, 4), (2, 4, 5, 4), (2, 4, 5, 5)],
    ),
    "samples of a grid": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        [(2, 3, 5, 4), (2, 4, 4, 2)],
    ),
}


def _needs(number: int) -> Iterator[tuple[bool, ...]]:
    return (each for each in itertools.product((True, False), repeat=number) if any(each))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_right_whichever_tensors_need_one(name: str) -> None:
    layer, shapes = LAYERS[name]
    rest = [[REPLICATED]] * (len(shapes) - 1)
    for needed in _needs(len(shapes)):
        tensors = [
            (_t(*shape) + 2 * (len(shape) == 1)).requires_grad_(need)
            for shape, need in zip(shapes, needed, strict=True)
        ]
        for sharding in (Shard(0), Shard(1), Partial(), REPLICATED):
            assert_agrees(layer, tensors, [[sharding], *rest])
        assert_agrees(layer, tensors, [[REPLICATED], [Shard(0)], *rest[1:]])


X, GRAD, W = _t(5, 6, 3, 4), _t(5, 6, 3, 4) * 2, _t(6) + 2
MEAN, RSTD = X.mean((0, 2, 3)), (X.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
RUNNING = _t(6), _t(6).abs() + 0.1
RESERVE = torch.empty(0, dtype=torch.uint8)
OF_GROUPS = _t(3, 8, 5)
OF_ROWS = _t(3, 5, 6)
CONVOLVED = [1], [1], [1]
# An operator, its number of results, and its arguments; `...` stands for the mask.
MASKED: dict[str, tuple[Any, int, tuple[Any, ...]]] = {
    "batch norm": (
        aten.native_batch_norm_backward.default,
        3,
        (GRAD, X, W, *RUNNING, MEAN, RSTD, True, 1e-5, ...),
    ),
    "batch norm of known moments": (
        aten.native_batch_norm_backward.default,
        3,
        (GRAD, X, W, *RUNNING, None, None, False, 1e-5, ...),
    ),
    "batch norm with a reserve": (
        aten.batch_norm_backward.default,
        3,
        (GRAD, X, W, *RUNNING, MEAN, RSTD, True, 1e-5, ..., RESERVE),
    ),
    "group norm": (
        aten.native_group_norm_backward.default,
        3,
        (
            OF_GROUPS * 2,
            OF_GROUPS,
            *aten.native_group_norm(OF_GROUPS, None, None, 3, 8, 5, 4, 1e-5)[1:],
            *(_t(8), 3, 8, 5, 4, ...),
        ),
    ),
    "layer norm": (
        aten.native_layer_norm_backward.default,
        3,
        (
            OF_ROWS * 2,
            OF_ROWS,
            [5, 6],
            *aten.native_layer_norm(OF_ROWS, [5, 6], None, None, 1e-5)[1:],
            *(_t(5, 6), _t(5, 6), ...),
        ),
    ),
    "convolution": (
        aten.convolution_backward.default,
        3,
        (_t(3, 6, 8), _t(3, 4, 8), _t(6, 4, 3), [6], *CONVOLVED, False, [0], 1, ...),
    ),
    "transposed convolution": (
        aten.convolution_backward.default,
        3,
        (_t(3, 6, 8), _t(3, 4, 8), _t(4, 6, 3), [6], *CONVOLVED, True, [0], 1, ...),
    ),
    "samples of a grid": (
        aten.grid_sampler_2d_backward.default,
        2,
        (_t(2, 3, 4, 4), _t(2, 3, 5, 4), _t(2, 4, 4, 2).tanh(), 0, 0, False, ...),
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_every_mask_gives_the_results_of_one_device(name: str) -> None:
    op, number, given = MASKED[name]
    for mask in _needs(number):
        args = [list(mask) if each is ... else each for each in given]
        expected = op(*args)

        def body(args: Any = args, mask: Any = mask, expected: Any = expected) -> None:
            mesh = kept_mesh((4,))
            for sharding in (Shard(0), Shard(1), Shard(2), REPLICATED):
                shardings = [sharding, sharding] + [REPLICATED] * len(args)
                mine = [
                    laid_out(each, mesh, [shardings[n]]) if isinstance(each, torch.Tensor) else each
                    for n, each in enumerate(args)
                ]
                for found, wanted, asked in zip(op(*mine), expected, mask, strict=True):
                    assert (found is None) == (wanted is None)
                    if asked:
                        torch.testing.assert_close(found.full_tensor(), wanted)

        run_threads(body, 4)
