"""Pooling: samples and channels are cut freely; of spatial dims neighbours send what windows see.

An adaptive pool has windows of one size where the size of the result divides that of the argument;
otherwise, and where windows are random, spatial dims must be whole. Indices count in the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.operator import Local
from dtensor_core.placement import Shard
from dtensor_core.redistribute.exchange import Rows
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.batched import batched
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.rules.windows import Part, Windows, exchanging_rows, fitted


@dataclass(frozen=True)
class _Pool:
    """The windows of each spatial dim that has any, of which the first is dim `first`.

    `sizes` are those of the spatial dims; `size_at` is the position of an argument that has the
    sizes of the result.
    """

    windows: Mapping[int, Windows]
    first: int
    sizes: Sequence[int]
    ceil: bool = False
    size_at: int | None = None

    def count(self, dim: int, rows: int) -> int:
        """How many windows an operator makes of so many rows."""
        windows = self.windows[dim]
        behind = rows + windows.pad
        room = behind + windows.pad - windows.reach + (windows.step - 1 if self.ceil else 0)
        count = room // windows.step + 1
        return count - 1 if self.ceil and (count - 1) * windows.step >= behind else count


def _fixed(call: Call, own: int) -> _Pool:
    """Windows of given kernel, stride, padding and dilation."""
    x, out = (call.argument("self"), call.outputs[0])
    if call.op._schema.name.endswith("_backward"):
        out = call.argument("grad_output")
    first = x.ndim - own
    kernel = _each(call.argument("kernel_size"), own)
    stride = _each(call.argument("stride") or kernel, own)
    pads, dilation = (_each(call.argument(*it), own) for it in (("padding", 0), ("dilation", 1)))
    windows = {
        first + n: Windows(
            x.shape[first + n],
            out.shape[first + n],
            stride[n],
            dilation[n] * (kernel[n] - 1) + 1,
            pads[n],
        )
        for n in range(own)
    }
    return _Pool(windows, first, x.shape[first:], bool(call.argument("ceil_mode")))


def _each(values: Any, number: int) -> list[int]:
    given = [values] if isinstance(values, int) else [*values]
    return given * (number // len(given))


def _adaptive(call: Call, own: int) -> _Pool:
    """Windows of one size, where the result's size divides that of the argument."""
    x, out = (call.argument("self"), call.outputs[0])
    backward = call.op._schema.name.endswith("_backward")
    if backward:
        out = call.argument("grad_output")
    first = x.ndim - own
    windows: dict[int, Windows] = {}
    for dim in range(first, x.ndim):
        size, count = x.shape[dim], out.shape[dim]
        if count and size % count == 0:
            windows[dim] = Windows(size, count, size // count, size // count)
    return _Pool(windows, first, x.shape[first:], size_at=None if backward else 1)


def _pooling(own: int, windows_of: Callable[[Call, int], _Pool], **options: Any) -> Row:
    """A pool that `own` dims are pooled by; what it returns besides are indices."""
    base = batched(own, **options)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)

        def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
            return _pooled(pool, op, rows, cuts)

        for dim in pool.windows:
            wants = {0: lambda cut, dim=dim: _part(pool, dim, cut).needs}
            placements = [Shard(dim)] * len(call.outputs)
            rule = exchanging_rows(rule, call, dim, wants, placements, run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _part(pool: _Pool, dim: int, cut: Cut) -> Part:
    windows = pool.windows[dim]
    return Part.within(windows, local_extent(windows.count, cut.num_shards, cut.coord))


def _pooled(pool: _Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    parts = {dim: _part(pool, dim, cut) for dim, cut in cuts.items()}

    def local(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        (x,) = rows([x])
        for dim, part in parts.items():
            x = fitted(x, dim, part.needs, part.block)
        given = [x, *args]
        if pool.size_at is not None:
            sizes = [*given[pool.size_at]]
            for dim, part in parts.items():
                sizes[dim - pool.first] = part.own.size
            given[pool.size_at] = sizes
        made = op(*given, **kwargs)
        if 0 in x.shape:
            return made
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        for dim, part in parts.items():
            results = [fitted(each, dim, part.made, part.own) for each in results]
        if isinstance(made, torch.Tensor):
            return results[0]
        starts = {dim: part.block.offset for dim, part in parts.items()}
        results[1] = _moved(results[1], pool, x.shape[pool.first :], pool.sizes, starts)
        return tuple(results)

    return local


def _moved(
    indices: torch.Tensor,
    pool: _Pool,
    before: Sequence[int],
    after: Sequence[int],
    starts: Mapping[int, int],
) -> torch.Tensor:
    """Indices into dims of other sizes, of which some start elsewhere."""
    if list(before) == list(after) and not any(starts.values()):
        return indices
    made, stride = torch.zeros_like(indices), 1
    for number in reversed(range(len(before))):
        place = indices % before[number] + starts.get(pool.first + number, 0)
        indices = indices // before[number]
        made, stride = made + place * stride, stride * after[number]
    return made


def _unpooling(own: int, windows_of: Callable[[Call, int], _Pool]) -> Row:
    """The gradient of a pool: that of an average is an operator, that of a maximum has indices."""
    base = batched(own, linear=True)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)
        way = _spread if len(call.specs) == 2 else _scattered

        def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
            return way(pool, op, rows, cuts)

        def wanted(dim: int, cut: Cut) -> Extent:
            windows = pool.windows[dim]
            return windows.seeing(local_extent(windows.size, cut.num_shards, cut.coord))

        for dim in pool.windows:
            wants: dict[int, Callable[[Cut], Extent]] = dict.fromkeys(
                range(len(call.specs)), lambda cut, dim=dim: wanted(dim, cut)
            )
            wants[1] = lambda cut: Extent(0, 0)  # of the pooled tensor only the shape is read
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _spread(pool: _Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    """The gradient of an average."""
    owns = _owns(pool, cuts)
    seeing = {dim: pool.windows[dim].seeing(own) for dim, own in owns.items()}
    parts = {dim: Part.within(pool.windows[dim], each) for dim, each in seeing.items()}

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        grad, _ = rows([grad, x])
        if 0 in grad.shape or 0 in x.shape:
            return grad.new_zeros(x.shape)
        shape = list(x.shape)
        for dim, part in parts.items():
            shape[dim] = part.block.size
            count = pool.count(dim, part.block.size)
            grad = fitted(grad, dim, seeing[dim], Extent(part.made.offset, count))
        made = op(grad, x.new_empty(shape), *args)
        for dim, part in parts.items():
            made = fitted(made, dim, part.block, owns[dim])
        return made

    return local


def _scattered(pool: _Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    """The gradient of a maximum: each element goes to where its index says."""
    owns = _owns(pool, cuts)
    blocks = {
        dim: pool.windows[dim].seen(pool.windows[dim].seeing(own)) for dim, own in owns.items()
    }

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        grad, _, indices = rows([grad, x, args[-1]])
        if 0 in grad.shape or 0 in x.shape:
            return grad.new_zeros(x.shape)
        shape = list(x.shape)
        for dim, block in blocks.items():
            shape[dim] = block.size
        sizes = shape[pool.first :]
        starts = {dim: -block.offset for dim, block in blocks.items()}
        indices = _moved(indices, pool, pool.sizes, sizes, starts)
        made = grad.new_zeros([*shape[: pool.first], math.prod(sizes)])
        made = made.scatter_add(-1, indices.flatten(pool.first), grad.flatten(pool.first))
        made = made.reshape(shape)
        for dim, block in blocks.items():
            made = fitted(made, dim, block, owns[dim])
        return made

    return local


def _owns(pool: _Pool, cuts: Mapping[int, Cut]) -> dict[int, Extent]:
    return {
        dim: local_extent(pool.windows[dim].size, cut.num_shards, cut.coord)
        for dim, cut in cuts.items()
    }


def _rows(own: int) -> dict[str, Row]:
    """The pools of two or three dims."""
    random = batched(own, random_samples=1)
    unpool = batched(own, linear=True)
    return {
        f"avg_pool{own}d": _pooling(own, _fixed, linear=True),
        f"_adaptive_avg_pool{own}d": _pooling(own, _adaptive, linear=True),
        f"max_pool{own}d_with_indices": _pooling(own, _fixed),
        f"adaptive_max_pool{own}d": _pooling(own, _adaptive),
        f"avg_pool{own}d_backward": _unpooling(own, _fixed),
        f"_adaptive_avg_pool{own}d_backward": _unpooling(own, _adaptive),
        f"max_pool{own}d_with_indices_backward": _unpooling(own, _fixed),
        f"adaptive_max_pool{own}d_backward": _unpooling(own, _adaptive),
        f"fractional_max_pool{own}d": random,
        f"fractional_max_pool{own}d_backward": unpool,
        f"max_unpool{own}d": unpool,
    }


ROWS = _rows(2) | _rows(3)
