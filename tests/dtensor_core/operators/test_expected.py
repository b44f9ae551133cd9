"""Communication of the most used operators by layout, forward and backward, derived by hand.

`"S0 R -> S1 | S0 P"` has the layouts of the arguments, of the result, and of the arguments'
gradients, if any. One process plays rank 1 of four; what it puts into each collective is
counted in elements. Kernels of other devices are in `test_attention_kernels`; `interpolate`, `stft`
and `unfold` in `test_spatial`, `F.unfold` in `test_im2col`, other paddings in `test_padding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtensor_core import Partial, Placement, Replicate, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from tests.dtensor_core.counting import Messages
from tests.dtensor_core.operators.agreement import laid_out

RANKS = 4
Sent = list[tuple[str, int]]
# The layouts, and the messages forward and backward; no messages by default.
Expected = tuple[str] | tuple[str, Sent, Sent]
_sdpa: Callable[..., Any] = F.scaled_dot_product_attention


def _t(*shape: int) -> torch.Tensor:
    return torch.ones(shape).requires_grad_()


def _at(size: int, *shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % size


def _gather(*counts: int) -> Sent:
    return [("all_gather", count) for count in counts]


def _move(*counts: int) -> Sent:
    return [("all_to_all", count) for count in counts]


def _reduce(*counts: int) -> Sent:
    return [("all_reduce", count) for count in counts]


def _by_math(*args: Any, **options: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return _sdpa(*args, **options)


CASES: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor], Sequence[Expected]]] = {}


def _case(
    name: str, call: Callable[..., Any], tensors: Sequence[torch.Tensor], *expected: Expected
) -> None:
    CASES[name] = call, tensors, expected


# Samples, heads and queries are independent. Sharded keys and values are gathered, of each a shard
# of 4 * 8 * 16 * 16, and once more for the gradients, which are partial sums.
QKV = [_t(4, 8, 64, 16)] * 3
FREE: tuple[Expected, ...] = (
    ("S0 S0 S0 -> S0 | S0 S0 S0",),
    ("S1 S1 S1 -> S1 | S1 S1 S1",),
    ("S2 R R -> S2 | S2 P P",),
)
KEYS: Expected = ("S2 S2 S2 -> S2 | S2 P P", _gather(8192, 8192), _gather(8192, 8192))
_case("attention", _sdpa, QKV, *FREE, KEYS)
_case("causal attention", partial(_sdpa, is_causal=True), QKV, *FREE, KEYS)
_case("causal attention by math", partial(_by_math, is_causal=True), QKV, *FREE, KEYS)
_case("attention with dropout", partial(_sdpa, dropout_p=0.5), QKV, *FREE[:2])
_case(
    "grouped-query attention",
    partial(_sdpa, enable_gqa=True),
    [QKV[0], *[_t(4, 4, 64, 16)] * 2],
    *FREE,
)
_case(
    "attention with a mask",
    _sdpa,
    [*QKV, torch.zeros(4, 8, 64, 64)],
    ("S0 S0 S0 S0 -> S0 | S0 S0 S0",),
    ("S1 S1 S1 S1 -> S1 | S1 S1 S1",),
    ("S2 R R S2 -> S2 | S2 P P",),
)
_case(
    "attention with a mask for all heads",
    _sdpa,
    [*QKV, torch.zeros(64, 64)],
    ("S0 S0 S0 R -> S0 | S0 S0 S0",),
    ("S1 S1 S1 R -> S1 | S1 S1 S1",),
    ("S2 R R S0 -> S2 | S2 P P",),
)

# Rows are normalized independently. Along a sharded row of 16 * 64, ranks share two numbers (one
# for RMS), and as many in backward.
_case(
    "layer_norm",
    lambda x, w, b: F.layer_norm(x, (32,), w, b),
    [_t(16, 64, 32), _t(32), _t(32)],
    ("S0 R R -> S0 | S0 P P",),
    ("S1 R R -> S1 | S1 P P",),
    ("S2 R R -> S2 | S2 S0 S0", _gather(2 * 16 * 64), _gather(2 * 16 * 64)),
    ("S2 S0 S0 -> S2 | S2 S0 S0", _gather(2 * 16 * 64), _gather(2 * 16 * 64)),
)
_case(
    "rms_norm",
    lambda x, w: F.rms_norm(x, (32,), w),
    [_t(16, 64, 32), _t(32)],
    ("S0 R -> S0 | S0 P",),
    ("S1 R -> S1 | S1 P",),
    ("S2 R -> S2 | S2 S0", _reduce(16 * 64), _reduce(16 * 64)),
    ("S2 S0 -> S2 | S2 S0", _reduce(16 * 64), _reduce(16 * 64)),
)
# A rank has two of the 8 groups of channels; other shardings send two numbers for each of 16 * 8
# groups.
_case(
    "group_norm",
    lambda x, w, b: F.group_norm(x, 8, w, b),
    [_t(16, 32, 64), _t(32), _t(32)],
    ("S0 R R -> S0 | S0 P P",),
    ("S1 R R -> S1 | S1 S0 S0",),
    ("S1 S0 S0 -> S1 | S1 S0 S0",),
    ("S2 R R -> S2 | S2 P P", _gather(2 * 16 * 8), _gather(2 * 16 * 8)),
)
# Two numbers of each channel; those of the gradient are the gradients of weight and bias.
_case(
    "batch_norm",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    [_t(16, 32, 64), _t(32), _t(32)],
    ("S0 R R -> S0 | S0 R R", _gather(2 * 32), _gather(2 * 32)),
    ("S1 R R -> S1 | S1 S0 S0",),
    ("S1 S0 S0 -> S1 | S1 S0 S0",),
    ("S2 R R -> S2 | S2 R R", _gather(2 * 32), _gather(2 * 32)),
)

# Each rank looks up the rows that it holds. With sharded indices the gradients of rows are partial
# sums. With replicated indices and gradients each rank computes all of them, because no argument is
# sharded.
TABLE = [_at(128, 16, 32), _t(128, 64)]
_case(
    "embedding",
    F.embedding,
    TABLE,
    ("S0 R -> S0 | P",),
    ("S1 R -> S1 | P",),
    ("R S0 -> P | R",),
    ("R S1 -> S2 | S1",),
)
for mode in ("sum", "mean"):
    _case(
        f"embedding_bag, {mode}",
        partial(F.embedding_bag, mode=mode),
        TABLE,
        ("S0 R -> P | P",),  # a bag may cross the end of a shard: its parts are partial sums
        ("S1 R -> P | P",),
        ("R S0 -> P | R",),
        ("R S1 -> S1 | S1",),
    )
_case(
    "embedding_bag, max",
    partial(F.embedding_bag, mode="max"),
    TABLE,
    # The row of a maximum is found among all of a bag: indices are gathered, 512 / 4.
    ("S0 R -> R | R", _gather(128), _gather(128)),
    ("S1 R -> R | R", _gather(128), _gather(128)),
    ("R S0 -> S1 | S1", _move(128 * 64 // RANKS), []),
    ("R S1 -> S1 | S1",),
)
# The count of targets is one number. With sharded classes each row has one, forward and backward.
_case(
    "cross_entropy",
    F.cross_entropy,
    [_t(64, 128), _at(128, 64)],
    ("S0 S0 -> P | S0", _reduce(1), []),
    ("S1 R -> P | S1", _gather(64), _gather(64)),
)
_case(
    "cross_entropy of pixels",
    F.cross_entropy,
    [_t(8, 128, 64), _at(128, 8, 64)],
    ("S0 S0 -> P | S0", _reduce(1), []),
    ("S1 R -> P | S1", _gather(8 * 64), _gather(8 * 64)),
    ("S2 S1 -> P | S2", _reduce(1), []),
)


def _convolution(name: str, call: Callable[..., Any], *size: int) -> None:
    """Windows of 3 need a row of either neighbour, 8 samples of 16 channels.

    The gradient of x needs rows of the result, of 32 channels, and the gradient of the weight needs
    rows of x again. A sum over input channels leaves partial sums.
    """
    transposed = "transpose" in name
    row = 8 * 16 * torch.Size(size[1:]).numel()
    weight = (16, 32) if transposed else (32, 16)
    own, other = ("S0", "S1") if transposed else ("S1", "S0")
    rows: Expected = ("S2 R -> S2 | S2 P", _move(2 * row), _move(2 * (2 * row) + 2 * row))
    _case(
        name,
        partial(call, padding=1),
        [_t(8, 16, *size), _t(*weight, *[3] * len(size))],
        ("S0 R -> S0 | S0 P",),
        (f"S1 {own} -> P | S1 {own}",),
        rows,
        (f"R {other} -> S1 | P {other}",),
    )


_convolution("conv1d", F.conv1d, 64)
_convolution("conv2d", F.conv2d, 64, 32)
_convolution("conv3d", F.conv3d, 32, 8, 8)
_convolution("conv_transpose1d", F.conv_transpose1d, 64)
_convolution("conv_transpose2d", F.conv_transpose2d, 64, 32)
_convolution("conv_transpose3d", F.conv_transpose3d, 32, 8, 8)
# By columns: one has 8 * 16 * 64 elements.
_case(
    "conv2d of columns",
    partial(F.conv2d, padding=1),
    [_t(8, 16, 64, 32), _t(32, 16, 3, 3)],
    ("S3 R -> S3 | S3 P", _move(2 * 8 * 16 * 64), _move(6 * 8 * 16 * 64)),
)

# A rank writes what lands in its rows. With sharded sources the sums are partial.
SCATTERED = [_t(64, 32), _at(64, 48, 32), _t(48, 32)]


def _scattered(x: Any, index: Any, source: Any, reduce: str) -> Any:
    return x.scatter_reduce(0, index, source, reduce)


_case(
    "scatter_reduce, sum",
    partial(_scattered, reduce="sum"),
    SCATTERED,
    ("S1 S1 S1 -> S1 | S1 S1",),
    ("S0 R R -> S0 | S0 P",),
    ("R S0 S0 -> P | R S0",),
)
_case(
    "scatter_reduce, mean",
    partial(_scattered, reduce="mean"),
    SCATTERED,
    ("S1 S1 S1 -> S1 | S1 S1",),
    # Sources read gradient and count of their target row, and divide.
    ("S0 R R -> S0 | S0 R", [], _reduce(48 * 32, 48 * 32)),
)
_case(
    "scatter_reduce, amax",
    partial(_scattered, reduce="amax"),
    SCATTERED,
    ("S1 S1 S1 -> S1 | S1 S1",),
)


def _put(x: Any, index: Any, values: Any, accumulate: bool) -> Any:
    return x.index_put((index,), values, accumulate)


PUT = [_t(64, 32), _at(64, 48), _t(48, 32)]
_case(
    "index_put, adding",
    partial(_put, accumulate=True),
    PUT,
    ("S1 R S1 -> S1 | S1 S1",),
    ("S0 R R -> S0 | S0 P",),
    ("R S0 S0 -> P | R S0",),
)
_case(
    "index_put",
    partial(_put, accumulate=False),
    PUT,
    ("S1 R S1 -> S1 | S1 S1",),
    ("S0 R R -> S0 | S0 P",),
    # The last of the writers to a row wins: indices are gathered, 48 / 4, and values are resharded
    # by columns. Gradients of x and of the values need the indices once each.
    ("R S0 S0 -> S1 | S1 S1", [*_gather(12), *_move(12 * 32)], _gather(12, 12)),
)

# Three of each rank's values, of 4 bytes, and their places, of 8.
_case(
    "topk",
    lambda x: x.topk(3, 0)[0],
    [_t(256, 32)],
    ("S0 -> R | R", _gather(3 * 32 * (4 + 8)), []),
    ("S1 -> S1 | S1",),
)
# Any element may have to go to any rank, which is known only after comparing: the sizes of the
# messages depend on the data. So a shard moves once, to a layout with unsharded columns; a single
# column is gathered.
_case(
    "sort",
    lambda x: x.sort(0)[0],
    [_t(256, 32)],
    ("S0 -> S1 | S1", _move(64 * 32), []),
    ("S1 -> S1 | S1",),
)
_case("sort of a line", lambda x: x.sort()[0], [_t(256)], ("S0 -> R | R", _gather(64), []))
# The last row. The gradient sums from the end: autograd flips it, sums and flips, and moves the
# shard once to a layout with unsharded columns; a single column is moved by the two flips.
_case(
    "cumsum",
    lambda x: x.cumsum(0),
    [_t(256, 32)],
    ("S0 -> S0 | S1", _gather(32), _move(64 * 32)),
    ("S1 -> S1 | S1",),
    ("P -> P | R",),
)
_case(
    "cumsum of a line",
    lambda x: x.cumsum(0),
    [_t(256)],
    ("S0 -> S0 | S0", _gather(1), [*_move(64), *_gather(1), *_move(64)]),
)
# 72 rows, 18 a rank: rank 1 now has rows 10 to 27 of x, and sends 28 to 31; backward sends 10 to
# 15.
ROW = 8 * 64
for dim, pads in ((1, (0, 0, 8, 0)), (2, (8, 0))):
    _case(
        f"pad of dim {dim}",
        partial(F.pad, pad=pads),
        [_t(8, 64, 64)],
        ("S0 -> S0 | S0",),
        (f"S{3 - dim} -> S{3 - dim} | S{3 - dim}",),
        (f"S{dim} -> S{dim} | S{dim}", _move(4 * ROW), _move(6 * ROW)),
    )

# A letter of both operands may be sharded in both; one that the result lacks leaves partial sums.
_case(
    "einsum of matrices",
    partial(torch.einsum, "bij,bjk->bik"),
    [_t(8, 64, 32), _t(8, 32, 16)],
    ("S0 S0 -> S0 | S0 S0",),
    ("S1 R -> S1 | S1 P",),
    ("S2 S1 -> P | S2 S1",),
    ("R S2 -> S2 | P S2",),
)
_case(
    "einsum of scores",
    partial(torch.einsum, "bhqd,bhkd->bhqk"),
    [_t(8, 4, 64, 32), _t(8, 4, 16, 32)],
    ("S0 S0 -> S0 | S0 S0",),
    ("S1 S1 -> S1 | S1 S1",),
    ("S2 R -> S2 | S2 P",),
    ("S3 S3 -> P | S3 S3",),
    ("R S2 -> S3 | P S2",),
)
_case(
    "einsum of a product of lines",
    partial(torch.einsum, "i,j->ij"),
    [_t(64), _t(32)],
    ("S0 R -> S0 | S0 P",),
    ("R S0 -> S1 | P S0",),
)


def _placement(text: str) -> Placement:
    return {"R": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:]))


@pytest.mark.parametrize("name", CASES)
def test_a_layout_sends_what_mathematics_asks_for(name: str) -> None:
    call, tensors, expected = CASES[name]
    with fake_world(RANKS, rank=1):
        mesh = init_device_mesh("cpu", (RANKS,))
        for text, *sent in expected:
            there, back = sent or ([], [])
            arguments, rest = text.split(" -> ")
            made, gradients = rest.split(" | ")
            given = [
                laid_out(each, mesh, [_placement(layout)])
                for each, layout in zip(tensors, arguments.split(), strict=True)
            ]
            with Messages() as messages:
                result = call(*given)
            assert (text, messages.all) == (text, there)
            assert result.placements == (_placement(made),)
            layout = Replicate() if made == "P" else _placement(made)
            grad: Any = torch.ones_like(result)
            grad = grad.redistribute(placements=[layout])
            wanted = [each for each in given if each.requires_grad]
            with Messages() as messages:
                found: Any = torch.autograd.grad(result, wanted, grad)
            assert (text, messages.all) == (text, back)
            placements = [_placement(each) for each in gradients.split()]
            assert (text, [each.placements for each in found]) == (text, [(p,) for p in placements])
