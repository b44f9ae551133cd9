"""Normalisations: every dimension may be cut.

What is normalised together has one mean and one deviation. Where it is cut, ranks share their own,
and in the backward pass two sums: two numbers of each row, group or channel, in one all-gather.
The mean and deviation of all are put together of those of each rank (Chan, Golub, LeVeque 1979).
Gradients of weight and bias are sums over what they are spread over: addends where that is cut, but
for those of a batch norm, whose ranks know both sums.

    layer, rms    x [a.., n..], weight [n..]                    -> y, mean and rstd [a.., 1..]
    group         x [n, (g r), s..], weight [(g r)]             -> y, mean and rstd [n, g]
    batch         x [n, c, s..], weight and running stats [c]   -> y, mean and rstd [c]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.redistribute.merge import Line
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.local import by_name, called_with, zeros
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import LocalMaker, Operand, Rule
from dtensor_core.spec import Spec

Local = Callable[..., Any]
# What runs where ranks share: made of the ranks' line and the results' specs.
Shared = Callable[[Local, Line, Sequence[Spec]], Local]
Dims = tuple[int, ...]


def _sharing(
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


def _kept(results: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(each for each, is_wanted in zip(results, wanted, strict=True) if is_wanted)


# Layer and rms norm: the last dims are normalised.


def _layer(call: Call) -> tuple[Operand, Operand, Dims]:
    """Operands of the input and of moments, and the dims that are normalised."""
    ndim = call.argument("input").ndim
    dims = tuple(range(ndim - len(call.argument("normalized_shape")), ndim))
    whole = full_operand(call.argument("input").shape)
    return whole, tuple(() if dim in dims else names for dim, names in enumerate(whole)), dims


def _layer_norm(call: Call) -> Rule:
    """x, weight?, bias? -> y, mean, rstd; rms: x, weight? -> y, rstd."""
    whole, moments, dims = _layer(call)
    return Rule(
        inputs=(whole, *((whole[dims[0] :],) * (len(call.specs) - 1))),
        outputs=(whole, *((moments,) * (len(call.outputs) - 1))),
        sizes=factor_sizes(call.specs[0].shape),
        settled=frozenset((1, 2)),
        local=_sharing(0, dims, _layer_norm_shared(dims)),
    )


def _layer_norm_shared(dims: Dims) -> Shared:
    def shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
        def norm(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            given = by_name(op, args, kwargs)
            x, filled, eps = given["input"], _wide(line.filled(given["input"])), given["eps"]
            moments: tuple[torch.Tensor, ...] = ()
            if len(outputs) == 2:
                variance = _mean_square(line, filled, dims)
                eps = torch.finfo(x.dtype).eps if eps is None else eps
            else:
                mean, variance = _moments(line, filled, dims)
                x, moments = _wide(x) - mean, (mean,)
            rstd = (variance + eps).rsqrt()
            made = _scaled(_wide(x) * rstd, given["weight"], given.get("bias"))
            return _as((made, *moments, rstd), outputs)

        return norm

    return shared


def _layer_norm_backward(call: Call) -> Rule:
    """grad, x, mean?, rstd, weight?, bias? -> grad_x?, grad_weight?, grad_bias?."""
    whole, moments, dims = _layer(call)
    operands = {"grad_out": whole, "input": whole, "mean": moments, "rstd": moments}
    mask = call.argument("output_mask")
    return Rule(
        inputs=tuple(operands.get(name, whole[dims[0] :]) for name in call.names),
        outputs=_kept((whole, whole[dims[0] :], whole[dims[0] :])[: len(mask)], mask),
        sizes=factor_sizes(call.specs[1].shape),
        local=_sharing(1, dims, _layer_norm_gradients(dims)),
    )


def _layer_norm_gradients(dims: Dims) -> Shared:
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


# Group norm: the channels of a group, and all places, are normalised together.


def _channels(call: Call) -> tuple[Operand, dict[str, int], Dims]:
    """The operand of the input, its sizes, and the dims of places."""
    shape, groups = call.argument("input").shape, call.argument("group")
    places = full_operand(shape)[2:]
    sizes = {"n": shape[0], "g": groups, "r": shape[1] // groups}
    sizes |= {name: shape[dim] for dim, (name,) in enumerate(places, 2)}
    return (("n",), ("g", "r"), *places), sizes, tuple(range(2, len(shape)))


def _group_norm(call: Call) -> Rule:
    """x, weight?, bias? -> y, mean, rstd."""
    whole, sizes, places = _channels(call)
    moments = (("n",), ("g",))
    return Rule(
        inputs=(whole, *(((whole[1],),) * (len(call.specs) - 1))),
        outputs=(whole, moments, moments),
        sizes=sizes,
        blocked=frozenset("r"),
        settled=frozenset((1, 2)),
        local=_sharing(0, places, _group_norm_shared, _of_local_sizes(0)),
    )


def _group_norm_backward(call: Call) -> Rule:
    """grad, x, mean, rstd, weight? -> grad_x?, grad_weight?, grad_bias?."""
    whole, sizes, places = _channels(call)
    moments, weight = (("n",), ("g",)), (whole[1],)
    operands = {"mean": moments, "rstd": moments, "weight": weight}
    return Rule(
        inputs=tuple(operands.get(name, whole) for name in call.names),
        outputs=_kept((whole, weight, weight), call.argument("output_mask")),
        sizes=sizes,
        blocked=frozenset("r"),
        local=_sharing(1, places, _group_norm_gradients, _of_local_sizes(1)),
    )


def _of_local_sizes(number: int) -> LocalMaker:
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


def _group_norm_shared(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
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


def _group_norm_gradients(op: Local, line: Line, outputs: Sequence[Spec]) -> Local:
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


# Batch norm: all samples and places are normalised together, and counted.


def _batch(call: Call) -> tuple[dict[str, Operand], Dims]:
    """The operands by name, `weight` for those that have one number a channel."""
    whole = full_operand(call.argument("input").shape)
    dims = tuple(dim for dim in range(len(whole)) if dim != 1)
    every = dict.fromkeys(("input", "grad_out"), whole)
    return every | {"reserve": ((),), "weight": (whole[1],)}, dims


def _batch_norm(call: Call) -> Rule:
    """x, weight?, bias?, running_mean?, running_var? -> y, mean, rstd and more."""
    operands, dims = _batch(call)
    shape = call.specs[0].shape
    each = operands["weight"]
    training = call.argument("training", "with_update" in call.op._schema.name)
    return Rule(
        inputs=tuple(operands.get(name, each) for name in call.names),
        outputs=(
            operands["input"],
            *(
                each if training and meta.shape == shape[1:2] else ((),)
                for meta in call.outputs[1:]
            ),
        ),
        sizes=factor_sizes(shape),
        settled=frozenset(range(1, len(call.outputs))),
        local=_sharing(0, dims, _batch_norm_shared(dims)) if training else _known_moments,
    )


def _known_moments(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """With running stats nothing is shared, and no moments are kept."""
    if 0 not in inputs[0].local_shape or not inputs[0].is_sharded():
        return op

    def nothing(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        others = (x.new_empty(0, dtype=spec.dtype) for spec in outputs[1:] if spec is not None)
        return x.clone(), *others

    return nothing


def _batch_norm_shared(dims: Dims) -> Shared:
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


def _batch_norm_backward(call: Call) -> Rule:
    """grad, x, weight?, running stats?, mean?, rstd? -> grad_x?, grad_weight?, grad_bias?."""
    operands, dims = _batch(call)
    each = operands["weight"]
    training = call.argument("train", call.argument("update"))
    if not training:
        operands |= dict.fromkeys(("save_mean", "save_invstd", "save_var"), ((),))
    outputs = _kept((operands["input"], each, each), call.argument("output_mask"))
    return Rule(
        inputs=tuple(operands.get(name, each) for name in call.names),
        outputs=outputs,
        sizes=factor_sizes(call.specs[1].shape),
        settled=frozenset(n for n, out in enumerate(outputs) if training and out is each),
        local=_sharing(1, dims, _batch_norm_gradients(dims) if training else None),
    )


def _batch_norm_gradients(dims: Dims) -> Shared:
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


def _weight_norm(call: Call) -> Rule:
    """A weight over its norm, and gradients: cut along `dim`, in which each slice has one norm."""
    shape = call.specs[0].shape
    dim = call.argument("dim", 0) % len(shape)
    each = tuple((f"d{dim}",) if number == dim else () for number in range(len(shape)))

    def operand(other: Sequence[int]) -> Operand:
        return full_operand(shape) if tuple(other) == tuple(shape) else each

    return Rule(
        inputs=tuple(operand(spec.shape) for spec in call.specs),
        outputs=tuple(operand(meta.shape) for meta in call.outputs),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{number}" for number in range(len(shape)) if number != dim),
    )


def _each(names: str, build: Callable[[Call], Rule], text: str) -> dict[str, Row]:
    return dict.fromkeys(names.split(), Row(build, text))


ROWS = {
    **_each(
        "_weight_norm_interface _weight_norm_interface_backward", _weight_norm, "dim may be cut"
    ),
    **_each("native_layer_norm", _layer_norm, "x.. n, n, n -> x.. n, x.. 1, x.. 1"),
    **_each("_fused_rms_norm", _layer_norm, "x.. n, n -> x.. n, x.. 1"),
    **_each(
        "native_layer_norm_backward _fused_rms_norm_backward",
        _layer_norm_backward,
        "x.. n, x.. n, x.. 1, x.. 1, n, n -> x.. n, n, n",
    ),
    **_each(
        "native_group_norm", _group_norm, "n (g r!) s.., (g r!), (g r!) -> n (g r!) s.., n g, n g"
    ),
    **_each(
        "native_group_norm_backward",
        _group_norm_backward,
        "n (g r!) s.., n (g r!) s.., n g, n g, (g r!) -> n (g r!) s.., (g r!), (g r!)",
    ),
    **_each(
        "_native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update "
        "_batch_norm_with_update_functional",
        _batch_norm,
        "n c s.., c, c, c, c -> n c s.., c, c",
    ),
    **_each(
        "native_batch_norm_backward batch_norm_backward",
        _batch_norm_backward,
        "n c s.., n c s.., c, c, c, c, c -> n c s.., c, c",
    ),
}
