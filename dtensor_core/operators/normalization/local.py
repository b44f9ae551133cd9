"""Normalizations of local shards, where the normalized elements are sharded.

Ranks share the moments of their shards, and in the backward pass two sums: two numbers per row,
group or channel, in a single all-gather. The global mean and deviation are combined from each
rank's (Chan, Golub, LeVeque 1979).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import (
    Local,
    LocalMaker,
    by_name,
    called_with,
    zeros,
)
from dtensor_core.redistribute.partial_combine import RankOrder
from dtensor_core.spec import Spec

# Makes the local operator of ranks that share moments, from their order and the results' specs.
Shared = Callable[[Local, RankOrder, Sequence[Spec]], Local]


Dims = tuple[int, ...]


def sharing(number: int, dims: Dims, shared: Shared | None) -> LocalMaker:
    """Use `shared` if argument `number` is sharded along dims that are normalized together.

    Otherwise a rank with an empty shard returns zeros.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        spec = inputs[number]
        order = RankOrder.along(op, spec, dims, outputs[0], 2 * max(spec.dtype.itemsize, 4))
        if order is not None and shared is not None:
            return shared(op, order, outputs)
        if 0 in spec.local_shape and spec.is_sharded():
            return zeros(op, outputs)  # pyright: ignore[reportArgumentType]
        return op

    return maker  # pyright: ignore[reportReturnType]


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Convert to the dtype in which moments are computed."""
    return x.float() if x.dtype.itemsize < 4 else x


def _moments(order: RankOrder, x: torch.Tensor, dims: Dims) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance over `dims`, which are kept."""
    variances, means = order.gather(*torch.var_mean(x, dims, correction=0, keepdim=True))
    parts = means.new_tensor(order.parts).view(-1, *[1] * x.ndim)
    mean = (means * parts).sum(0)
    return mean, ((variances + (means - mean).square()) * parts).sum(0)


def _mean_square(order: RankOrder, x: torch.Tensor, dims: Dims) -> torch.Tensor:
    (means,) = order.gather(x.square().mean(dims, keepdim=True))
    return (means * means.new_tensor(order.parts).view(-1, *[1] * x.ndim)).sum(0)


def _scaled(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _as(results: Sequence[torch.Tensor], outputs: Sequence[Spec]) -> tuple[torch.Tensor, ...]:
    """Convert results to the dtypes and local shapes of their specs."""
    return tuple(
        each.to(spec.dtype).reshape(spec.local_shape)
        for each, spec in zip(results, outputs, strict=True)
    )


def _requested(
    results: Sequence[torch.Tensor], wanted: Sequence[bool], outputs: Sequence[Spec]
) -> tuple[torch.Tensor | None, ...]:
    """Return the requested results, and None for the others."""
    found = iter(
        _as([r for r, is_wanted in zip(results, wanted, strict=True) if is_wanted], outputs)
    )
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)


def layer_norm_shared(dims: Dims) -> Shared:
    """Layer norm over `dims`, or rms norm, which has no mean."""

    def shared(op: Local, order: RankOrder, outputs: Sequence[Spec]) -> Local:
        def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            given = by_name(op, args, kwargs)
            x, filled, eps = given["input"], _wide(order.filled(given["input"])), given["eps"]
            moments: tuple[torch.Tensor, ...] = ()
            if len(outputs) == 2:
                variance = _mean_square(order, filled, dims)
                eps = torch.finfo(filled.dtype).eps if eps is None else eps
            else:
                mean, variance = _moments(order, filled, dims)
                x, moments = _wide(x) - mean, (mean,)
            rstd = (variance + eps).rsqrt()
            made = _scaled(_wide(x) * rstd, given["weight"], given.get("bias"))
            return _as((made, *moments, rstd), outputs)

        return norm

    return shared


def layer_norm_gradients(dims: Dims) -> Shared:
    """The gradients of layer and rms norm over `dims`."""

    def shared(op: Local, order: RankOrder, outputs: Sequence[Spec]) -> Local:
        count = math.prod(order.shape[dim] for dim in dims)
        leading = tuple(range(dims[0]))

        def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
            given = by_name(op, args, kwargs)
            grad, x, rstd = (_wide(given[each]) for each in ("grad_out", "input", "rstd"))
            normed = (x if given.get("mean") is None else x - given["mean"]) * rstd
            scaled = _scaled(grad, given["weight"], None)
            along = (scaled * normed).sum(dims, keepdim=True)
            if given.get("mean") is None:
                (along,) = order.sum(along)
            else:
                ones, along = order.sum(scaled.sum(dims, keepdim=True), along)
                scaled = scaled - ones / count
            of_x = rstd * (scaled - normed * (along / count))
            of_weight, of_bias = grad * normed, grad
            if leading:
                of_weight, of_bias = of_weight.sum(leading), of_bias.sum(leading)
            mask = given["output_mask"]
            return _requested((of_x, of_weight, of_bias)[: len(mask)], mask, outputs)

        return gradients

    return shared


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _dense(given: dict[str, Any]) -> dict[str, Any]:
    """Return the input, and its gradient if given, in a memory format of torch."""
    x = given["input"]
    form = _CHANNELS_LAST.get(x.ndim, torch.contiguous_format)
    if not x.is_contiguous(memory_format=form):
        form = torch.contiguous_format
    names = ("input", "grad_out")
    return {name: given[name].contiguous(memory_format=form) for name in names if name in given}


def _of_local_sizes(op: Local, spec: Spec) -> Local:
    """Make the operator with the sizes of the local input as arguments.

    torch's kernels need dense tensors, and a dense tensor's local parts may be in another order.
    """

    def local(*args: Any, **kwargs: Any) -> Any:
        given = by_name(op, args, kwargs)
        changed = _dense(given)
        if spec.local_shape != tuple(spec.shape) and 0 not in spec.local_shape:
            n, c, *places = spec.local_shape
            groups = given["group"] * c // spec.shape[1]
            changed |= {"N": n, "C": c, "HxW": math.prod(places), "group": groups}
        return called_with(op, args, kwargs, **changed)

    return local


class _Groups:
    """Channel groups that are shared by ranks, and each rank's share of them.

    Every rank reports the same number of groups, in `slots`: as many as any rank may have. The
    first slot is for the group of its first channel.

    Attributes:
        mine: The slot of each channel of this rank.
        ids: The group of every rank's slots, numbered as in `moments`.
    """

    def __init__(self, order: RankOrder, x: torch.Tensor, number: int, moments: Spec) -> None:
        shape, self._order = order.shape, order
        self.each, self.number = shape[1] // number, moments.local_shape[1]
        base = moments.extents(1)[0].offset
        starts = [order.offset(1, coords) for coords in order.coords]
        channels_of_ranks = [
            range(at, at + each[1]) for at, each in zip(starts, order.shapes, strict=True)
        ]
        firsts = [channels[0] // self.each for channels in channels_of_ranks]
        lasts = [channels[-1] // self.each for channels in channels_of_ranks]
        self.slots = max(map(operator.sub, lasts, firsts)) + 1
        channel = torch.arange(x.shape[1], device=x.device) + order.offset(1)
        group = channel // self.each
        self.mine = (group - order.offset(1) // self.each).clamp(0, self.slots - 1)
        self.groups = (group - base).clamp(0, self.number - 1)
        ids = [[first + slot - base for slot in range(self.slots)] for first in firsts]
        # A slot beyond the last group is empty; it adds 0, to whichever group it is clamped to.
        self.ids = torch.tensor(ids, device=x.device).clamp(0, self.number - 1)
        counts = [
            [sum(c // self.each == first + slot for c in channels) for slot in range(self.slots)]
            for channels, first in zip(channels_of_ranks, firsts, strict=True)
        ]
        places = [[math.prod(each[2:])] for each in order.shapes]
        self.count = self.each * math.prod(shape[2:])
        numbers = _wide(x.new_tensor(counts)) * x.new_tensor(places)
        self.parts = numbers / self.count

    def added(self, of_channels: torch.Tensor) -> torch.Tensor:
        """Sum channels into slots: [n, c] to [n, slots]."""
        made = of_channels.new_zeros(len(of_channels), self.slots)
        return made.index_add(1, self.mine, of_channels)

    def joined(self, of_ranks: torch.Tensor) -> torch.Tensor:
        """Sum ranks' slots into groups: [ranks, n, slots] to [n, groups]."""
        made = of_ranks.new_zeros(of_ranks.shape[1], self.number)
        return made.index_add(1, self.ids.flatten(), of_ranks.transpose(0, 1).flatten(1))

    def moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and variance of every group, [n, groups]."""
        variance, mean = torch.var_mean(_flat(x), 2, correction=0)
        # A slot that this rank has no channel of must not divide by 0.
        counts = self.added(torch.ones_like(mean[:1])).clamp(min=1)
        means = self.added(mean) / counts
        spread = variance + (mean - means[:, self.mine]).square()
        means, variances = self._order.gather(means, self.added(spread) / counts)
        parts = self.parts.unsqueeze(1)
        mean = self.joined(means * parts)
        apart = means - mean[:, self.ids].transpose(0, 1)
        return mean, self.joined((variances + apart.square()) * parts)

    def sums(self, *of_channels: torch.Tensor) -> list[torch.Tensor]:
        """Return sums of [n, c] over each channel's group."""
        found = self._order.gather(*(self.added(each) for each in of_channels))
        return [self.joined(each)[:, self.groups] for each in found]


def sharing_groups(way: Callable[[Local, RankOrder, Sequence[Spec], Spec], Local]) -> LocalMaker:
    """Use group norm or its gradients in the form `way` if any ranks share a group."""
    backward = way is group_norm_gradients

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        spec, moments = (inputs[1], inputs[2]) if backward else (inputs[0], outputs[1])
        apart = [axis for axis, each in enumerate(moments.placements) if each.sharded_dim == 1]
        summary_bytes = 2 * max(spec.dtype.itemsize, 4)
        order = RankOrder.along(op, spec, range(1, spec.ndim), outputs[0], summary_bytes, apart)
        if order is not None:
            return way(op, order, outputs, moments)
        if 0 in spec.local_shape and spec.is_sharded():
            return zeros(op, outputs)  # pyright: ignore[reportArgumentType]
        return _of_local_sizes(op, spec)

    return maker  # pyright: ignore[reportReturnType]


def group_norm_shared(op: Local, order: RankOrder, outputs: Sequence[Spec], moments: Spec) -> Local:
    """Group norm with sharded positions, or with sharded channels of a group."""

    def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        given = by_name(op, args, kwargs)
        x, filled = _wide(given["input"]), _wide(order.filled(given["input"]))
        groups = _Groups(order, filled, given["group"], moments)
        places = [1] * (x.ndim - 2)
        mean, variance = groups.moments(filled)
        rstd = (variance + given["eps"]).rsqrt()
        its = groups.groups[: x.shape[1]]
        mine = (each[:, its].view(*x.shape[:2], *places) for each in (mean, rstd))
        weight, bias = _per_channel(given["weight"], places), _per_channel(given["bias"], places)
        return _as((_scaled((x - next(mine)) * next(mine), weight, bias), mean, rstd), outputs)

    return norm


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Reshape to [n, c, places]."""
    return x.unsqueeze(-1).flatten(2)


def _per_channel(tensor: torch.Tensor | None, places: Sequence[int]) -> torch.Tensor | None:
    return None if tensor is None else _wide(tensor).view(-1, *places)


def group_norm_gradients(
    op: Local, order: RankOrder, outputs: Sequence[Spec], moments: Spec
) -> Local:
    """The gradients of group norm with sharded positions or channels of a group."""

    def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        given = by_name(op, args, kwargs)
        grad, x = _wide(given["grad_out"]), _wide(given["input"])
        groups = _Groups(order, x, given["group"], moments)
        places = [1] * (x.ndim - 2)
        mean, rstd = (
            _wide(given[n])[:, groups.groups].view(*x.shape[:2], *places) for n in ("mean", "rstd")
        )
        weight = _per_channel(given["weight"], places)
        normed, scaled = (x - mean) * rstd, _scaled(grad, weight, None)
        ones, along = groups.sums(_flat(scaled).sum(2), _flat(scaled * normed).sum(2))
        ones, along = (each.view(*x.shape[:2], *places) / groups.count for each in (ones, along))
        of_x = rstd * (scaled - ones - normed * along)
        others = (0, *range(2, x.ndim))
        results = (of_x, (grad * normed).sum(others), grad.sum(others))
        return _requested(results, given["output_mask"], outputs)

    return gradients


def known_moments(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Batch norm with running stats: ranks share nothing, and no moments are saved."""
    if 0 not in inputs[0].local_shape or not inputs[0].is_sharded():
        return op

    def nothing(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        others = (x.new_empty(0, dtype=spec.dtype) for spec in outputs[1:] if spec is not None)
        return x.clone(), *others

    return nothing


def batch_norm_shared(dims: Dims) -> Shared:
    """Batch norm over `dims` (samples and positions); may update running stats."""

    def shared(op: Local, order: RankOrder, outputs: Sequence[Spec]) -> Local:
        count = math.prod(order.shape[dim] for dim in dims)
        places = [1] * (len(order.shape) - 2)

        def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            given = by_name(op, args, kwargs)
            mean, variance = _moments(order, _wide(order.filled(given["input"])), dims)
            rstd = (variance + given["eps"]).rsqrt()
            weight, bias = (
                each if each is None else each.view(-1, *places)
                for each in (given["weight"], given["bias"])
            )
            made = _scaled((_wide(given["input"]) - mean) * rstd, weight, bias)
            running: list[torch.Tensor] = []
            # Running variances are unbiased, whereas the normalization uses the biased one.
            spread = variance * count / max(count - 1, 1)
            for name, now in (("running_mean", mean), ("running_var", spread)):
                if given.get(name) is not None:
                    before = given[name]
                    after = before + given["momentum"] * (now.view(-1) - before)
                    running.append(after.to(before.dtype))
                    if op._schema.is_mutable:  # pyright: ignore[reportFunctionMemberAccess]
                        before.copy_(running[-1])
            reserve = given["input"].new_empty(0, dtype=torch.uint8)
            has_reserve = len(outputs) in (4, 6)
            results = [made, mean, rstd, *([reserve] if has_reserve else []), *running]
            return _as(results[: len(outputs)], outputs)

        return norm

    return shared


def batch_norm_gradients(dims: Dims) -> Shared:
    """The gradients of batch norm over `dims`."""

    def shared(op: Local, order: RankOrder, outputs: Sequence[Spec]) -> Local:
        count = math.prod(order.shape[dim] for dim in dims)
        places = [1] * (len(order.shape) - 2)

        def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
            given = by_name(op, args, kwargs)
            rstd: Any = given.get("save_invstd", given.get("save_var"))
            mean, rstd = (_wide(each).view(-1, *places) for each in (given["save_mean"], rstd))
            grad, x = _wide(given["grad_out"]), _wide(given["input"])
            normed = (x - mean) * rstd
            ones, along = order.sum(grad.sum(dims, True), (grad * normed).sum(dims, True))
            of_x = rstd * (grad - ones / count - normed * (along / count))
            if given["weight"] is not None:
                of_x = of_x * given["weight"].view(-1, *places)
            return _requested((of_x, along, ones), given["output_mask"], outputs)

        return gradients

    return shared
