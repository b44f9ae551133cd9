"""Sliding windows as a new dimension (unfold, as_strided), and image patches as columns.

Windows of a sharded dimension need rows of neighbours, by a halo exchange (`operators.rules.halo`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.errors import RuleError
from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.memory_layout import strided
from dtensor_core.operators.kernels.windows import Windows, fitted
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import exchanging_rows
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import replicated_rule, structural_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.operators.unfold.local import Columns, with_local_sizes
from dtensor_core.placement import Shard
from dtensor_core.redistribute.halo_exchange import Rows
from dtensor_core.spec import Spec

aten = torch.ops.aten


def _unfold(call: Call) -> ShardingRule:
    """x, dim, size, step -> windows of dim, whose elements are a new last dim."""
    shape = call.specs[0].shape
    if not shape:
        return structural_rule(((),), (((),),), {})
    dim = int(call.args[1]) % len(shape)
    count = call.outputs[0].shape[dim]
    return _windowed(call, dim, Windows(shape[dim], count, call.args[3], call.args[2]))


def _as_strided(call: Call) -> ShardingRule:
    """Windows of the last dim, as `stft` takes them; any other call runs on the full tensor."""
    spec, (size, stride) = call.specs[0], (call.argument("size"), call.argument("stride"))
    if call.argument("storage_offset") or not spec.ndim or len(size) != spec.ndim + 1:
        return _placed(call)
    step, rest = divmod(stride[-2], spec.stride[-1]) if spec.stride[-1] else (0, 0)
    leading = (tuple(size[:-2]), tuple(stride[:-2])) == (spec.shape[:-1], spec.stride[:-1])
    windows = Windows(spec.shape[-1], size[-2], step, size[-1])
    inside = (windows.count - 1) * step + windows.reach <= windows.size
    if rest or step < 1 or stride[-1] != spec.stride[-1] or not leading or not inside:
        return _placed(call)
    return _windowed(call, spec.ndim - 1, windows)


def _placed(call: Call) -> ShardingRule:
    """Select elements of a full tensor by position in memory, relative to its first element.

    Raises:
        RuleError: A position holds no element of the tensor.
    """
    spec, size, stride = call.specs[0], call.argument("size"), call.argument("stride")
    offset = call.argument("storage_offset") or 0
    reach = [sum((n - 1) * step for n, step in zip(s, t, strict=True))
             for s, t in ((spec.shape, spec.stride), (size, stride))]  # fmt: skip
    if 0 not in size and (0 in spec.shape or not _are_elements(spec, reach, size, stride, offset)):
        raise RuleError(
            f"{call.op} with size {tuple(size)}, stride {tuple(stride)}, offset {offset}",
            found=f"{spec.text}, whose elements have strides {spec.stride}",
            why="some positions are outside of the tensor's elements, which are all that a "
            "DTensor stores",
            hint="call it on the tensor that this is a view of",
        )
    return replace(replicated_rule(call), local=strided)


def _are_elements(
    spec: Spec, reach: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int
) -> bool:
    """True if all positions hold elements of the tensor."""
    own, wanted = reach
    if offset + wanted > own:
        return False
    if own + 1 == spec.shape.numel():
        return True
    marked = torch.zeros(own + 1, dtype=torch.bool)
    marked.as_strided(spec.shape, spec.stride).fill_(True)
    return bool(marked.as_strided(size, stride, offset).all())


def _windowed(call: Call, dim: int, windows: Windows) -> ShardingRule:
    shape = call.specs[0].shape
    full = full_operand(shape)
    out = (*full[:dim], (), *full[dim + 1 :], ())
    copies = call.op is aten.unfold_copy.default

    def unfolded(count: int) -> Local:
        def local(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            if not count:
                none = x.narrow(dim, 0, 0).unsqueeze(-1)
                return none.expand(*none.shape[:-1], windows.reach)
            made = aten.unfold.default(x, dim, windows.reach, windows.step).narrow(dim, 0, count)
            return made.clone(memory_format=torch.contiguous_format) if copies else made

        return local

    def wanted(shard: AxisSharding) -> Extent:
        return windows.rows_read(local_extent(windows.count, shard.num_shards, shard.coord))

    def run(op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
        take = unfolded(local_extent(windows.count, shards[dim].num_shards, shards[dim].coord).size)
        return lambda x, *_, **__: take(rows([x])[0])

    local = unfolded(windows.count)
    rule = structural_rule((full,), (out,), factor_sizes(shape), (f"d{dim}",), lambda *_: local)
    return exchanging_rows(rule, call, dim, {0: wanted}, [Shard(dim)], run)


def _unfold_backward(call: Call) -> ShardingRule:
    """Elements of windows are added at their origin."""
    shape, dim = call.outputs[0].shape, int(call.args[2]) % max(len(call.outputs[0].shape), 1)
    full = full_operand(shape)
    if not shape:
        return structural_rule((((),) * call.specs[0].ndim,), ((),), {})
    given = (*full[:dim], (), *full[dim + 1 :], ())
    out = (*full[:dim], (), *full[dim + 1 :])
    sizes = {name: size for name, size in factor_sizes(shape).items() if name != f"d{dim}"}
    rule = structural_rule((given,), (out,), sizes, local=with_local_sizes)
    windows = Windows(shape[dim], call.specs[0].shape[dim], call.args[4], call.args[3])

    def owned(shard: AxisSharding) -> Extent:
        return local_extent(windows.size, shard.num_shards, shard.coord)

    def run(op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
        own = owned(shards[dim])
        block = windows.rows_read(windows.windows_reading(own))

        def local(grad: torch.Tensor, input_sizes: Sequence[int], *args: Any) -> torch.Tensor:
            (grad,) = rows([grad])
            sizes = list(grad.shape[:-1])
            sizes[dim] = block.size
            made = grad.new_zeros(sizes)
            if 0 not in grad.shape:
                made = torch.ops.aten.unfold_backward.default(grad, sizes, *args)
            return fitted(made, dim, block, own)

        return local

    wants = {0: lambda shard: windows.windows_reading(owned(shard))}
    rule = exchanging_rows(replace(rule, algebra="linear"), call, dim, wants, [Shard(dim)], run)
    return rule


def _columns(call: Call) -> ShardingRule:
    """Patches of an image as columns, and back; a channel has a row per position in a patch."""
    is_im2col = call.op._schema.name.endswith("im2col")
    image, columns = (call.specs[0].shape, call.outputs[0].shape)[:: 1 if is_im2col else -1]
    samples: Operand = (("n",),) * (len(image) - 3)
    operands = (*samples, ("c",), (), ()), (*samples, ("c", "k"), ())
    sizes = {"n": image[0]} if samples else {}
    sizes |= {"c": image[-3], "k": columns[-2] // image[-3]}
    inputs, outputs = operands if is_im2col else operands[::-1]
    rule = ShardingRule(
        (inputs,), (outputs,), sizes, frozenset("k"), terms=((0,),), algebra="linear"
    )
    kernel, step, gap, pad = (
        call.argument(name) for name in ("kernel_size", "stride", "dilation", "padding")
    )
    rows, width = (
        (size + 2 * pad[n] - gap[n] * (kernel[n] - 1) - 1) // step[n] + 1
        for n, size in ((0, image[-2]), (-1, image[-1]))
    )
    if 0 in image:
        return rule
    windows = Windows(image[-2], rows, step[0], gap[0] * (kernel[0] - 1) + 1, pad[0])
    dim = len(image) - 2
    found = Columns(windows, width, dim)
    forward, backward = (found.rows_read, found.to_columns), (found.windows_reading, found.to_image)
    wanted, run = forward if is_im2col else backward
    return exchanging_rows(rule, call, dim, {0: wanted}, [Shard(dim)], run)


ROWS = {
    "unfold": Row(_unfold, "windows of dim, others sharded freely", "structural"),
    "as_strided": Row(_as_strided, "windows of the last dim, others sharded freely", "structural"),
    "as_strided_copy": Row(_placed, "replicated; positions in memory"),
    "as_strided_scatter": Row(_placed, "replicated; positions in memory"),
    "unfold_copy": Row(_unfold, "windows of dim, others sharded freely", "structural"),
    "unfold_backward": Row(_unfold_backward, "windows of dim, others sharded freely", "linear"),
    "im2col": Row(_columns, "n c .. -> n (c k) ..", "linear"),
    "col2im": Row(_columns, "n (c k) .. -> n c ..", "linear"),
}
