"""Rearrangements of images and points: windows as a dimension, shuffled pixels, grids, distances.

Windows of a sharded dimension need rows of neighbours, by a halo exchange (`rules.windows`).
Distances along sharded coordinates are norms of the ranks' norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.errors import RuleError, four_parts
from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.im2col import Columns
from dtensor_core.local.memory_layout import strided
from dtensor_core.local.operator import Local
from dtensor_core.local.windows import Windows, fitted
from dtensor_core.placement import Shard
from dtensor_core.redistribute.halo_exchange import Rows
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.families.view import structural
from dtensor_core.rules.row import Row, notation, whole_rule
from dtensor_core.rules.rule import Operand, Rule
from dtensor_core.rules.windows import exchanging_rows
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


def _unfold(call: Call) -> Rule:
    """x, dim, size, step -> windows of dim, whose elements are a new last dim."""
    shape = call.specs[0].shape
    if not shape:
        return structural(call, ((),), (((),),), {})
    dim = int(call.args[1]) % len(shape)
    count = call.outputs[0].shape[dim]
    return _windowed(call, dim, Windows(shape[dim], count, call.args[3], call.args[2]))


def _as_strided(call: Call) -> Rule:
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


def _placed(call: Call) -> Rule:
    """Select elements of a full tensor by position in memory, relative to its first element.

    Raises:
        RuleError: A position is not one of the tensor's elements.
    """
    spec, size, stride = call.specs[0], call.argument("size"), call.argument("stride")
    offset = call.argument("storage_offset") or 0
    reach = [sum((n - 1) * step for n, step in zip(s, t, strict=True))
             for s, t in ((spec.shape, spec.stride), (size, stride))]  # fmt: skip
    if 0 not in size and (0 in spec.shape or not _are_held(spec, reach, size, stride, offset)):
        raise RuleError(
            four_parts(
                asked=f"{call.op} with size {tuple(size)}, stride {tuple(stride)}, offset {offset}",
                found=f"{spec.text}, whose elements have strides {spec.stride}",
                why="it takes elements of memory that are not the tensor's; of a DTensor nobody "
                "knows what lies there",
                hint="call it on the tensor that this one is a view of; offsets count from a "
                "tensor's own first element",
            )
        )
    return replace(whole_rule(call), local=strided)


def _are_held(
    spec: Spec, reach: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int
) -> bool:
    """True if all positions are those of elements of the tensor."""
    own, wanted = reach
    if offset + wanted > own:
        return False
    if own + 1 == spec.shape.numel():
        return True
    held = torch.zeros(own + 1, dtype=torch.bool)
    held.as_strided(spec.shape, spec.stride).fill_(True)
    return bool(held.as_strided(size, stride, offset).all())


def _windowed(call: Call, dim: int, windows: Windows) -> Rule:
    shape = call.specs[0].shape
    whole = full_operand(shape)
    out = (*whole[:dim], (), *whole[dim + 1 :], ())
    copies = call.op is aten.unfold_copy.default

    def unfolded(count: int) -> Local:
        def local(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            if not count:
                none = x.narrow(dim, 0, 0).unsqueeze(-1)
                return none.expand(*none.shape[:-1], windows.reach)
            made = aten.unfold.default(x, dim, windows.reach, windows.step).narrow(dim, 0, count)
            return made.clone(memory_format=torch.contiguous_format) if copies else made

        return local

    def wanted(cut: Cut) -> Extent:
        return windows.seen(local_extent(windows.count, cut.num_shards, cut.coord))

    def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
        take = unfolded(local_extent(windows.count, cuts[dim].num_shards, cuts[dim].coord).size)
        return lambda x, *_, **__: take(rows([x])[0])

    local = unfolded(windows.count)
    rule = structural(call, (whole,), (out,), factor_sizes(shape), (f"d{dim}",), lambda *_: local)
    return exchanging_rows(rule, call, dim, {0: wanted}, [Shard(dim)], run)


def _unfold_backward(call: Call) -> Rule:
    """Elements of windows are added at their origin."""
    shape, dim = call.outputs[0].shape, int(call.args[2]) % max(len(call.outputs[0].shape), 1)
    whole = full_operand(shape)
    if not shape:
        return structural(call, (((),) * call.specs[0].ndim,), ((),), {})
    given = (*whole[:dim], (), *whole[dim + 1 :], ())
    out = (*whole[:dim], (), *whole[dim + 1 :])
    sizes = {name: size for name, size in factor_sizes(shape).items() if name != f"d{dim}"}
    rule = structural(call, (given,), (out,), sizes, local=_of_local_sizes)
    windows = Windows(shape[dim], call.specs[0].shape[dim], call.args[4], call.args[3])

    def owned(cut: Cut) -> Extent:
        return local_extent(windows.size, cut.num_shards, cut.coord)

    def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
        own = owned(cuts[dim])
        block = windows.seen(windows.seeing(own))

        def local(grad: torch.Tensor, input_sizes: Sequence[int], *args: Any) -> torch.Tensor:
            (grad,) = rows([grad])
            held = list(grad.shape[:-1])
            held[dim] = block.size
            made = grad.new_zeros(held)
            if 0 not in grad.shape:
                made = torch.ops.aten.unfold_backward.default(grad, held, *args)
            return fitted(made, dim, block, own)

        return local

    wants = {0: lambda cut: windows.seeing(owned(cut))}
    rule = exchanging_rows(replace(rule, algebra="linear"), call, dim, wants, [Shard(dim)], run)
    return rule


def _of_local_sizes(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the gradient of windows of this rank's part."""
    out = outputs[0]
    assert out is not None
    if 0 in inputs[0].local_shape:
        return lambda grad, *_: grad.new_zeros(out.local_shape)
    return lambda grad, _, *args: op(grad, list(out.local_shape), *args)


def _columns(call: Call) -> Rule:
    """Patches of an image as columns, and back; a channel has one row per position in a patch."""
    forth = call.op._schema.name.endswith("im2col")
    image, columns = (call.specs[0].shape, call.outputs[0].shape)[:: 1 if forth else -1]
    samples: Operand = (("n",),) * (len(image) - 3)
    operands = (*samples, ("c",), (), ()), (*samples, ("c", "k"), ())
    sizes = {"n": image[0]} if samples else {}
    sizes |= {"c": image[-3], "k": columns[-2] // image[-3]}
    inputs, outputs = operands if forth else operands[::-1]
    rule = Rule((inputs,), (outputs,), sizes, frozenset("k"), terms=((0,),), algebra="linear")
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
    wanted, run = (found.seen, found.taken) if forth else (found.seeing, found.put_back)
    return exchanging_rows(rule, call, dim, {0: wanted}, [Shard(dim)], run)


def _pixels(call: Call) -> Rule:
    """Channels (c u v), rows h, columns w <-> c, (h u), (w v)."""
    forth = call.op._schema.name.endswith("pixel_shuffle")
    factor = int(call.args[1])
    packed = call.specs[0].shape if forth else call.outputs[0].shape
    leading = full_operand(packed[:-3])
    sizes = factor_sizes(packed[:-3])
    sizes |= {"c": packed[-3] // factor**2, "u": factor, "v": factor}
    sizes |= {"h": packed[-2], "w": packed[-1]}
    operands = (
        (*leading, ("c", "u", "v"), ("h",), ("w",)),
        (*leading, ("c",), ("h", "u"), ("w", "v")),
    )
    inputs, outputs = operands if forth else operands[::-1]
    return structural(call, (inputs,), (outputs,), sizes, "uv")


def _channel_shuffle(call: Call) -> Rule:
    """The channels (g c) become (c g)."""
    shape, groups = call.specs[0].shape, int(call.args[1])
    whole = full_operand(shape)
    sizes = {**factor_sizes(shape), "g": groups, "c": shape[1] // groups}
    del sizes["d1"]
    inputs, outputs = ((whole[0], each, *whole[2:]) for each in (("g", "c"), ("c", "g")))
    return structural(call, (inputs,), (outputs,), sizes, "g")


def _rot90(call: Call) -> Rule:
    """Half a turn flips two dims; a quarter turn flips one of them and then swaps them."""
    shape = call.specs[0].shape
    turns = int(call.argument("k")) % 4
    one, other = (dim % len(shape) for dim in call.argument("dims"))
    whole = full_operand(shape)
    out = list(whole)
    if turns % 2:
        out[one], out[other] = out[other], out[one]
    flipped = ((), (f"d{other}",), (f"d{one}", f"d{other}"), (f"d{one}",))[turns]
    return structural(call, (whole,), (tuple(out),), factor_sizes(shape), flipped)


def _cross(call: Call) -> Rule:
    """Bilinear; the dim of size three is replicated."""
    shape = call.outputs[0].shape
    dim = int(call.argument("dim", -1)) % len(shape)
    return Rule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(full_operand(shape),),
        sizes=factor_sizes(shape),
        blocked=frozenset([f"d{dim}"]),
        terms=((0, 1),),
        algebra="linear",
    )


def _affine_grid(call: Call) -> Rule:
    """One grid per sample."""
    out = call.outputs[0].shape
    return Rule(
        inputs=((("n",), (), ()),),
        outputs=((("n",), *((),) * (len(out) - 1)),),
        sizes={"n": out[0]},
        terms=((0,),),
        algebra="linear",
        local=lambda op, inputs, outputs: (
            lambda theta, size, *rest: op(theta, [theta.shape[0], *size[1:]], *rest)
        ),
    )


def _sampled(text: str) -> Row:
    """Samples of an image at the points of a grid; linear in the image, or in the gradient."""
    row = notation(text)

    def build(call: Call) -> Rule:
        rule = row.build(call)
        assert rule is not None
        outputs = rule.outputs[-len(call.outputs) :]  # the grid's is made even if unwanted
        return replace(rule, outputs=outputs, terms=((0,),), local=_or_zeros)

    return replace(row, build=build, terms=((0,),))


def _or_zeros(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Return zeros on a rank with an empty argument, which kernels refuse."""
    if not any(0 in spec.local_shape and 0 not in spec.shape for spec in inputs):
        return op
    made = [spec.local_shape for spec in outputs if spec is not None]

    def nothing(*args: Any) -> Any:
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        found = [depending(given[0].new_zeros(shape), *given) for shape in made]
        several = len(op._schema.returns)  # pyright: ignore[reportFunctionMemberAccess]
        return (None,) * (several - len(found)) + tuple(found) if several > 1 else found[0]

    return nothing


def _distances(*roles: str) -> Row:
    """Distances by a norm between points with coordinates m in the last dim, or their gradient."""
    backward = len(roles) > 3

    def build(call: Call) -> Rule:
        shapes = [*(spec.shape for spec in call.specs), call.outputs[0].shape]
        batch = shapes[-1][: len(shapes[-1]) - len(roles[-1])]
        operands: list[Operand] = []
        sizes = factor_sizes(batch)
        for shape, role in zip(shapes, roles, strict=True):
            last = len(shape) - len(role)
            operands.append((*operand_of(shape[:last], batch), *((name,) for name in role)))
            sizes |= dict(zip(role, shape[last:], strict=True))
        exponent = float(call.argument("p", 2.0))
        return Rule(
            inputs=tuple(operands[:-1]),
            outputs=tuple(operands[-1:]),
            sizes=sizes,
            # Pairs of points within one set are numbered.
            blocked=frozenset("xy"),
            reduce=_NORMS.get(exponent, f"norm{exponent:g}") if not backward else "sum",
            terms=((0,),) if backward else (),
            algebra="linear" if backward else "opaque",
            local=_or_zeros,
        )

    text = f"{', '.join(' '.join(role) for role in roles[:-1])} -> {' '.join(roles[-1])}"
    return Row(
        build, text.replace("x", "x!").replace("y", "y!"), "linear" if backward else "opaque"
    )


_NORMS = {math.inf: "max", 0.0: "sum"}
_SAMPLERS = {
    "grid_sampler_2d": "n c 1 1, n p q 1 -> n c p q",
    "grid_sampler_3d": "n c 1 1 1, n p q r 1 -> n c p q r",
    "grid_sampler_2d_backward": "n c p q, n c 1 1, n p q 1 -> n c 1 1, n p q 1",
    "grid_sampler_3d_backward": "n c p q r, n c 1 1 1, n p q r 1 -> n c 1 1 1, n p q r 1",
}

ROWS = {
    "unfold": Row(_unfold, "windows of dim, others cut freely", "structural"),
    "as_strided": Row(_as_strided, "windows of the last dim, others cut freely", "structural"),
    "as_strided_copy": Row(_placed, "whole, places as they are told"),
    "as_strided_scatter": Row(_placed, "whole, places as they are told"),
    "unfold_copy": Row(_unfold, "windows of dim, others cut freely", "structural"),
    "unfold_backward": Row(_unfold_backward, "windows of dim, others cut freely", "linear"),
    "im2col": Row(_columns, "n c .. -> n (c k) ..", "linear"),
    "col2im": Row(_columns, "n (c k) .. -> n c ..", "linear"),
    "pixel_shuffle": Row(_pixels, "(c u! v!) h w -> c (h u!) (w v!)", "structural"),
    "pixel_unshuffle": Row(_pixels, "c (h u!) (w v!) -> (c u! v!) h w", "structural"),
    "channel_shuffle": Row(_channel_shuffle, "n (g! c) .. -> n (c g!) ..", "structural"),
    "rot90": Row(_rot90, "the dims that are flipped whole", "structural"),
    "linalg_cross": Row(_cross, "dim whole", "linear", ((0, 1),)),
    "affine_grid_generator": Row(_affine_grid, "n 1 1 -> n ..", "linear"),
    "_pdist_forward": _distances("xm", "y"),
    "_pdist_backward": _distances("y", "xm", "y", "xm"),
    "_cdist_forward": _distances("pm", "rm", "pr"),
    "_cdist_backward": _distances("pr", "pm", "rm", "pr", "pm"),
}
ROWS |= {name: _sampled(text) for name, text in _SAMPLERS.items()}
