"""Normalisations of local parts, where what is normalised together is cut.

Ranks share the moments of what they hold, and in the backward pass two sums: two numbers of each
row, group or channel, in one all-gather. The mean and deviation of all are put together of those of
each rank (Chan, Golub, LeVeque 1979). Used by the rules of norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.local.operator import Local, LocalMaker, by_name, called_with, zeros
from dtensor_core.redistribute.merge import Line
from dtensor_core.spec import Spec

# What runs where ranks share: made of the ranks' line and the results' specs.
Shared = Callable[[Local, Line, Sequence[Spec]], Local]


Dims = tuple[int, ...]


def sharing(
    number: int, dims: Dims, shared: Shared | None, alone: LocalMaker | None = None
) -> LocalMaker:
    """`shared` where argument `number` is cut along dims that are normalised together.

    A rank that holds nothing of it has nothing to add otherwise.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        spec = inputs[number]
        line = Line.along(op, spec, dims, outputs[0], 2 * max(spec.dtype.itemsize, 4))
        if line is not None and shared is not None:
            return shared(op, line, outputs)
        if 0 in spec.local_shape and spec.is_sharded():
            return zeros(op, outputs)  # pyright: ignore[reportArgumentType]
        return op if alone is None else alone(op, inputs, outputs)

    return maker  # pyright: ignore[reportReturnType]


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In the type in which moments are computed."""
    return x.float() if x.dtype.itemsize < 4 else x


def _moments(line: Line, x: torch.Tensor, dims: Dims) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over `dims`, which are kept."""
    variances, means = line.gather(*torch.var_mean(x, dims, correction=0, keepdim=True))
    parts = means.new_tensor(line.parts).view(-1, *[1] * x.ndim)
    mean = (means * parts).sum(0)
    return mean, ((variances + (means - mean).square()) * parts).sum(0)


def _mean_square(line: Line, x: torch.Tensor, dims: Dims) -> torch.Tensor:
    (means,) = line.gather(x.square().mean(dims, keepdim=True))
    return (means * means.new_tensor(line.parts).view(-1, *[1] * x.ndim)).sum(0)


def _scaled(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _as(results: Sequence[torch.Tensor], outputs: Sequence[Spec]) -> tuple[torch.Tensor, ...]:
    """Results in the types and shapes that they are to have."""
    return tuple(
        each.to(spec.dtype).reshape(spec.local_shape)
        for each, spec in zip(results, outputs, strict=True)
    )


def _asked(
    results: Sequence[torch.Tensor], wanted: Sequence[bool], outputs: Sequence[Spec]
) -> tuple[torch.Tensor | None, ...]:
    """The results that are wanted, None for the others."""
    found = iter(
        _as([r for r, is_wanted in zip(results, wanted, strict=True) if is_wanted], outputs)
    )
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)


def layer_norm_shared(dims: Dims) -> Shared:
    """Layer norm over `dims`, or rms norm, which has no mean."""

    def shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
        def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            given = by_name(op, args, kwargs)
            x, filled, eps = given["input"], _wide(line.filled(given["input"])), given["eps"]
            moments: tuple[torch.Tensor, ...] = ()
            if len(outputs) == 2:
                variance = _mean_square(line, filled, dims)
                eps = torch.finfo(filled.dtype).eps if eps is None else eps
            else:
                mean, variance = _moments(line, filled, dims)
                x, moments = _wide(x) - mean, (mean,)
            rstd = (variance + eps).rsqrt()
            made = _scaled(_wide(x) * rstd, given["weight"], given.get("bias"))
            return _as((made, *moments, rstd), outputs)

        return norm

    return shared


def layer_norm_gradients(dims: Dims) -> Shared:
    """The gradients of layer and rms norm over `dims`."""

    def shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
        count = math.prod(line.shape[dim] for dim in dims)
        leading = tuple(range(dims[0]))

        def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
            given = by_name(op, args, kwargs)
            grad, x, rstd = (_wide(given[each]) for each in ("grad_out", "input", "rstd"))
            normed = (x if given.get("mean") is None else x - given["mean"]) * rstd
            scaled = _scaled(grad, given["weight"], None)
            along = (scaled * normed).sum(dims, keepdim=True)
            if given.get("mean") is None:
                (along,) = line.sum(along)
            else:
                ones, along = line.sum(scaled.sum(dims, keepdim=True), along)
                scaled = scaled - ones / count
            of_x = rstd * (scaled - normed * (along / count))
            of_weight, of_bias = grad * normed, grad
            if leading:
                of_weight, of_bias = of_weight.sum(leading), of_bias.sum(leading)
            mask = given["output_mask"]
            return _asked((of_x, of_weight, of_bias)[: len(mask)], mask, outputs)

        return gradients

    return shared


def of_local_sizes(number: int) -> LocalMaker:
    """The operator with the sizes of the local input, which it is told."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = inputs[number]
        if spec.local_shape == tuple(spec.shape) or 0 in spec.local_shape:
            return op

        def local(*args: Any, **kwargs: Any) -> Any:
            n, c, *places = spec.local_shape
            groups = by_name(op, args, kwargs)["group"] * c // spec.shape[1]
            return called_with(op, args, kwargs, N=n, C=c, HxW=math.prod(places), group=groups)

        return local

    return maker


def _by_group(x: torch.Tensor, given: dict[str, Any], line: Line) -> torch.Tensor:
    """[n, c, s..] or [c] as [n, g, r, s..] or [g, r, 1..], in a wide type."""
    each = line.shape[1] // given["group"]
    if x.ndim == 1:
        return _wide(x).view(len(x) // each, each, *[1] * (len(line.shape) - 2))
    return _wide(x).reshape(x.shape[0], x.shape[1] // each, each, *x.shape[2:])


def group_norm_shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
    """Group norm, where places are cut."""

    def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        given = by_name(op, args, kwargs)
        x, filled, weight, bias = (
            each if each is None else _by_group(each, given, line)
            for each in (
                given["input"],
                line.filled(given["input"]),
                given["weight"],
                given["bias"],
            )
        )
        assert x is not None
        assert filled is not None
        mean, variance = _moments(line, filled, tuple(range(2, x.ndim)))
        rstd = (variance + given["eps"]).rsqrt()
        return _as((_scaled((x - mean) * rstd, weight, bias), mean, rstd), outputs)

    return norm


def group_norm_gradients(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
    """The gradients of group norm, where places are cut."""

    def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        given = by_name(op, args, kwargs)
        grad, x = (_by_group(given[each], given, line) for each in ("grad_out", "input"))
        mean, rstd = (
            _wide(given[n]).view(*x.shape[:2], *[1] * (x.ndim - 2)) for n in ("mean", "rstd")
        )
        weight = None if given["weight"] is None else _by_group(given["weight"], given, line)
        dims = tuple(range(2, x.ndim))
        count = x.shape[2] * math.prod(line.shape[2:])
        normed, scaled = (x - mean) * rstd, _scaled(grad, weight, None)
        ones, along = line.sum(scaled.sum(dims, True), (scaled * normed).sum(dims, True))
        of_x = rstd * (scaled - ones / count - normed * (along / count))
        others = (0, *dims[1:])
        results = (of_x, (grad * normed).sum(others), grad.sum(others))
        return _asked(results, given["output_mask"], outputs)

    return gradients


def known_moments(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """With running stats nothing is shared, and no moments are kept."""
    if 0 not in inputs[0].local_shape or not inputs[0].is_sharded():
        return op

    def nothing(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        others = (x.new_empty(0, dtype=spec.dtype) for spec in outputs[1:] if spec is not None)
        return x.clone(), *others

    return nothing


def batch_norm_shared(dims: Dims) -> Shared:
    """Batch norm over `dims`: samples and places; it may move running stats."""

    def shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
        count = math.prod(line.shape[dim] for dim in dims)
        places = [1] * (len(line.shape) - 2)

        def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            given = by_name(op, args, kwargs)
            mean, variance = _moments(line, _wide(line.filled(given["input"])), dims)
            rstd = (variance + given["eps"]).rsqrt()
            weight, bias = (
                each if each is None else each.view(-1, *places)
                for each in (given["weight"], given["bias"])
            )
            made = _scaled((_wide(given["input"]) - mean) * rstd, weight, bias)
            running: list[torch.Tensor] = []
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

    def shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
        count = math.prod(line.shape[dim] for dim in dims)
        places = [1] * (len(line.shape) - 2)

        def gradients(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
            given = by_name(op, args, kwargs)
            rstd: Any = given.get("save_invstd", given.get("save_var"))
            mean, rstd = (_wide(each).view(-1, *places) for each in (given["save_mean"], rstd))
            grad, x = _wide(given["grad_out"]), _wide(given["input"])
            normed = (x - mean) * rstd
            ones, along = line.sum(grad.sum(dims, True), (grad * normed).sum(dims, True))
            of_x = rstd * (grad - ones / count - normed * (along / count))
            if given["weight"] is not None:
                of_x = of_x * given["weight"].view(-1, *places)
            return _asked((of_x, along, ones), given["output_mask"], outputs)

        return gradients

    return shared
