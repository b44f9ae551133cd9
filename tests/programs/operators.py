"""The operators of programs: each function draws its arguments and returns an expression.

An expression is Python over the names of a program. It is usually valid; if a single device refuses
it, another is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.programs.draw import Draw
from tests.programs.given import text_of

Operator = Callable[[Draw], str]

_ANYWHERE = (
    *("neg", "abs", "square", "sin", "cos", "tanh", "sigmoid", "exp", "erf", "atan", "relu"),
    *("sign", "positive", "asinh", "expm1", "isfinite"),
)
_NEAR = ("log", "sqrt", "rsqrt", "reciprocal", "log1p", "log2", "lgamma")
_ACTIVATIONS = (
    *("gelu", "silu", "softplus", "leaky_relu", "elu", "hardtanh", "relu6", "logsigmoid"),
    *("hardswish", "mish", "selu", "softsign", "tanhshrink"),
)
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "hypot")
_METHODS = ("abs", "exp", "tanh", "neg", "sigmoid", "relu")


def has_dims(value: torch.Tensor) -> bool:
    return value.ndim > 0


def has_elements(value: torch.Tensor) -> bool:
    return value.ndim > 0 and value.numel() > 0


def small(value: torch.Tensor) -> bool:
    return 0 < value.ndim < 4 and value.numel() < 500


def unary(d: Draw) -> str:
    x = d.tensor()
    return d.one_of(
        (
            f"torch.{d.one_of(_ANYWHERE)}({x})",
            f"torch.{d.one_of(_NEAR)}({x}.abs() + 0.5)",
            f"F.{d.one_of(_ACTIVATIONS)}({x})",
            f"{x}.clamp(-0.45, 0.85)",
            f"torch.{d.one_of(('floor', 'ceil', 'round', 'trunc', 'frac'))}({x})",
            f"torch.nan_to_num({x})",
        )
    )


def scalar(d: Draw) -> str:
    x, s = d.tensor(), d.scalar()
    return d.one_of(
        (
            f"{x} + {s}",
            f"{s} - {x}",
            f"{x} * {s}",
            f"{x} / {s}",
            f"{s} / ({x}.abs() + 1)",
            f"{x} ** 2",
            f"torch.add({x}, {s}, alpha=2)",
            f"{x}.abs() ** 1.5",
            f"{x} // {s}",
            f"torch.remainder({x}, {abs(s)})",
        )
    )


def binary(d: Draw) -> str:
    x = d.tensor()
    y = d.partner(x)
    return d.one_of(
        (
            f"{x} + {y}",
            f"{x} - {y}",
            f"{x} * {y}",
            f"{x} / ({y}.abs() + 1)",
            f"torch.{d.one_of(_BINARY)}({x}, {y})",
            f"torch.add({x}, {y}, alpha=-0.5)",
            f"torch.lerp({x}, {y}, 0.25)",
            f"torch.addcmul({x}, {y}, {d.partner(x)}, value=0.5)",
            f"torch.addcdiv({x}, {y}, {d.partner(x)}.abs() + 1)",
            f"{x}.pow(2) - {y}",
        )
    )


def in_place(d: Draw) -> str:
    x, s = d.tensor(), d.scalar()
    y = d.new(d.reduced(d.values[x].shape)) if d.chance(0.5) else d.partner(x)
    made = d.one_of((x, f"({x} * 1)", f"({x} + 0)", f"{x}.clone()"))
    return made + d.one_of(
        (
            f".add_({y})",
            f".mul_({y})",
            f".sub_({s})",
            f".mul_({s})",
            f".div_({s})",
            f".add_({y}, alpha=0.5)",
            ".zero_()",
            f".fill_({s})",
            f".copy_({y})",
            f".{d.one_of(_METHODS)}_()",
            ".clamp_(min=-0.35)",
            f".masked_fill_({mask(d, x)}, {s})",
            f".addcmul_({y}, {y}, value=0.5)",
            f".lerp_({y}, 0.25)",
        )
    )


def mask(d: Draw, x: str) -> str:
    """A mask that broadcasts to a tensor."""
    shape = d.reduced(d.values[x].shape)
    if d.chance(0.5):
        return d.new(shape, torch.bool)
    return f"({d.new(shape)} > 0.37)"


def matrix(d: Draw) -> str:
    if d.chance(0.3):
        return d.one_of((vector_products, einsum, einsum, linear, linear))(d)
    x = d.tensor(lambda v: v.ndim >= 2 and v.numel() < 500)
    *batch, _, k = d.values[x].shape
    wide, dtype = d.size(), d.values[x].dtype
    forms = [
        f"{x} @ {d.new((k, wide), dtype)}",
        f"torch.matmul({x}, {d.new((k,), dtype)})",
        f"torch.matmul({x}, {d.new((*d.reduced(batch), k, wide), dtype)})",
        f"torch.matmul({d.new((wide, d.values[x].shape[-2]), dtype)}, {x})",
    ]
    if d.values[x].ndim == 3:
        y = d.new((batch[0], k, wide), dtype)
        forms += [
            f"torch.bmm({x}, {y})",
            f"torch.baddbmm({d.new((wide,), dtype)}, {x}, {y}, beta=0.5, alpha=2)",
        ]
    if d.values[x].ndim == 2:
        y = d.new((k, wide), dtype)
        forms += [
            f"torch.mm({x}, {y})",
            f"torch.addmm({d.new((wide,), dtype)}, {x}, {y}, alpha=0.5)",
        ]
    return d.one_of(forms)


def vector_products(d: Draw) -> str:
    x = d.tensor(ndim=1)
    n = d.values[x].shape[0]
    return d.one_of(
        (
            f"torch.dot({x}, {d.new((n,))})",
            f"torch.outer({x}, {d.new((d.size(),))})",
            f"torch.mv({d.new((d.size(), n))}, {x})",
            f"{x} @ {d.new((n, d.size()))}",
        )
    )


def linear(d: Draw) -> str:
    x = d.tensor(small)
    k, wide, dtype = d.values[x].shape[-1], d.size(), d.values[x].dtype
    bias = f", {d.new((wide,), dtype)}" if d.chance(0.5) else ""
    return f"F.linear({x}, {d.new((wide, k), dtype)}{bias})"


def einsum(d: Draw) -> str:
    x = d.tensor(lambda v: 2 <= v.ndim <= 3 and v.numel() < 300)
    names = "abc"[: d.values[x].ndim]
    sizes = dict(zip(names, d.values[x].shape, strict=True)) | {"d": d.size()}
    right = d.one_of((names[-1] + "d", names, names[0] + names[-1], names[-2:] + "d"))
    out = "".join(n for n in dict.fromkeys(names + right) if d.chance(0.6))
    y = d.new(tuple(sizes[n] for n in right))
    return f"torch.einsum('{names},{right}->{out}', {x}, {y})"


def reshape(d: Draw) -> str:
    x = d.tensor(lambda v: v.numel() > 0)
    value = d.values[x]
    forms = [
        f"{x}.reshape({d.factors(value.numel())})",
        f"{x}.reshape(-1)",
        f"{x}.flatten()",
        f"{x}.unsqueeze({d.dice.randrange(-value.ndim - 1, value.ndim + 1)})",
        f"{x}.squeeze()",
    ]
    if value.ndim:
        at = d.dice.randrange(value.ndim)
        shape = list(value.shape)
        apart = [*shape[:at], *d.factors(shape[at]), *shape[at + 1 :]]
        forms += [
            f"{x}.reshape({apart})",
            f"{x}.view({apart})",
            f"{x}.unflatten({at}, {[*d.factors(shape[at]), 1]})",
            f"{x}.squeeze({at})",
        ]
    if value.ndim > 1:
        start = d.dice.randrange(value.ndim - 1)
        forms += [
            f"{x}.flatten({start}, {d.dice.randrange(start + 1, value.ndim)})",
            f"{x}.flatten({start}, {start + 1})",
            f"{x}.reshape({[*value.shape[:start], -1, *value.shape[start + 2 :]]})",
        ]
    return d.one_of(forms)


def permuted(d: Draw) -> str:
    x = d.tensor(has_dims)
    order = list(range(d.values[x].ndim))
    d.dice.shuffle(order)
    forms = [
        f"{x}.permute({order})",
        f"{x}.transpose({d.dim(x)}, {d.dim(x)})",
        f"{x}.movedim({d.dim(x)}, {d.dim(x)})",
        f"{x}.flip({d.dims(x)})",
        f"{x}.roll({d.dice.randint(-3, 3)}, {d.dim(x)})",
        f"{x}.contiguous()",
    ]
    if d.values[x].ndim > 1:
        forms += [f"{x}.mT", f"{x}.swapaxes(0, 1)"]
    return d.one_of(forms)


def expanded(d: Draw) -> str:
    x = d.tensor(lambda v: v.ndim < 4 and v.numel() < 200)
    value = d.values[x]
    ones = [d.size() if size == 1 else d.one_of((size, -1)) for size in value.shape]
    return d.one_of(
        (
            f"{x}.expand({[d.size(), *value.shape]})",
            f"{x}.expand({ones})" if ones else f"{x}.expand(3)",
            f"{x}.unsqueeze(0).expand({[d.size(), *value.shape]})",
            f"{x}.repeat({[d.dice.randint(1, 2) for _ in range(value.ndim)] or 2})",
            f"torch.broadcast_to({x}, {(2, *value.shape)})",
            f"{x}.repeat_interleave(2, {d.dim(x) if value.ndim else 0})",
        )
    )


def sliced(d: Draw) -> str:
    x = d.tensor(has_elements)
    dim = d.dice.randrange(d.values[x].ndim)
    size = d.values[x].shape[dim]
    start = d.dice.randrange(size)
    stop = d.dice.randint(start, size)
    before = ":, " * dim
    return d.one_of(
        (
            f"{x}[{before}{start}:{stop}]",
            f"{x}[{before}{start}]",
            f"{x}[{before}-1]",
            f"{x}[{before}{start}::2]",
            f"{x}[..., None]",
            f"{x}[..., :{max(d.values[x].shape[-1] - 1, 1)}]",
            f"{x}.select({dim}, {start})",
            f"{x}.narrow({dim}, {start}, {stop - start})",
            f"{x}[{start % d.values[x].shape[0]}]",
            f"torch.tril({x}.reshape({d.values[x].shape[0]}, -1))",
            f"torch.diagonal({x}.reshape({d.values[x].shape[0]}, -1))",
        )
    )


def divided(d: Draw) -> str:
    x = d.tensor(has_elements)
    dim, parts = d.dim(x), d.dice.randint(1, 4)
    size = d.values[x].shape[dim]
    first = d.dice.randint(0, size)
    return d.one_of(
        (
            f"{x}.chunk({parts}, {dim})",
            f"{x}.split({parts}, {dim})",
            f"{x}.split({[first, size - first]}, {dim})",
            f"{x}.unbind({dim})",
            f"torch.tensor_split({x}, {parts}, {dim})",
        )
    )


def joined(d: Draw) -> str:
    x = d.tensor(has_dims)
    dim, shape = d.dim(x), list(d.values[x].shape)
    twin = d.new(shape)
    shape[dim] = d.size()
    other = d.new(shape)
    return d.one_of(
        (
            f"torch.cat([{x}, {other}], {dim})",
            f"torch.cat([{other}, {x}, {x}], {dim})",
            f"torch.stack([{x}, {twin}], {d.dice.randint(0, len(shape))})",
            f"torch.stack([{twin}, {x}], -1)",
            f"torch.vstack([{x}, {twin}])",
        )
    )


def reduced(d: Draw) -> str:
    x = d.tensor()
    value = d.values[x]
    if value.ndim == 0 or d.chance(0.15):
        name = d.one_of(("sum", "mean", "max", "min", "amax", "var", "std", "norm", "prod"))
        return f"{x}.{name}()"
    dims = d.dims(x)
    tail = f"{dims}, keepdim={d.chance(0.5)}"
    one = f"{d.dim(x)}, keepdim={d.chance(0.5)}"
    return d.one_of(
        (
            f"{x}.sum({tail})",
            f"{x}.mean({tail})",
            f"{x}.mean({one})",
            f"{x}.amax({tail})",
            f"{x}.amin({tail})",
            f"{x}.var({tail})",
            f"{x}.var({dims}, correction=0)",
            f"{x}.std({dims}, correction=0)",
            f"{x}.logsumexp({tail})",
            f"torch.linalg.vector_norm({x}, {d.one_of((1, 2, 3, float('inf')))}, {tail})".replace(
                "inf", "float('inf')"
            ),
            f"{x}.norm(dim={dims[0]})",
            f"{x}.max({one})",
            f"{x}.min({one})",
            f"{x}.argmax({one})",
            f"{x}.argmin({one})",
            f"{x}.prod({one})",
            f"{x}.any({one})",
            f"({x} > 0.37).all({one})",
            f"({x} > 0.37).sum({one})",
            f"torch.count_nonzero({x} > 0.37, {dims})",
            f"torch.aminmax({x}, dim={dims[0]})",
            f"{x}.sum_to_size({[1 if d.chance(0.5) else s for s in value.shape]})",
        )
    )


def normalised(d: Draw) -> str:
    x = d.tensor(has_elements)
    dim, last = d.dim(x), d.values[x].shape[-1]
    m = mask(d, x)
    return d.one_of(
        (
            f"torch.softmax({x}, {dim})",
            f"torch.log_softmax({x}, {dim})",
            f"F.softmax({x}.masked_fill({m}, float('-inf')), {dim})",
            f"F.layer_norm({x}, ({last},))",
            f"F.layer_norm({x}, ({last},), {d.new((last,))}, {d.new((last,))})",
            f"F.rms_norm({x}, ({last},), {d.new((last,))})",
            f"F.layer_norm({x}, {tuple(d.values[x].shape[-2:])})",
            f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 0.01) * {d.new((last,))}",
            f"F.normalize({x}, dim={dim})",
            f"F.glu(torch.cat([{x}, {x}], {dim}), {dim})",
        )
    )


def chosen(d: Draw) -> str:
    x = d.tensor()
    y, m, s = d.partner(x), mask(d, x), d.scalar()
    return d.one_of(
        (
            f"torch.where({m}, {x}, {y})",
            f"torch.where({m}, {x}, {s})",
            f"torch.where({m}, {s}, {x})",
            f"{x}.masked_fill({m}, {s})",
            f"{x} * {m}",
            f"torch.where({x} > 0.37, {x}, {y})",
        )
    )


def indexed(d: Draw) -> str:
    x = d.tensor(lambda v: has_elements(v) and v.numel() < 500)
    dim, shape = d.dice.randrange(d.values[x].ndim), d.values[x].shape
    size = shape[dim]
    flat = d.new((d.size(),), torch.int64, size)
    like = list(shape)
    like[dim] = d.size()
    index = d.new(like, torch.int64, size)
    added = d.new([*shape[:dim], *d.values[flat].shape, *shape[dim + 1 :]])
    square = d.new((2, d.size()), torch.int64, size)
    before = ":, " * dim
    return d.one_of(
        (
            f"torch.gather({x}, {dim}, {index})",
            f"torch.take_along_dim({x}, {index}, {dim})",
            f"{x}.index_select({dim}, {flat})",
            f"{x}[{before}{flat}]",
            f"{x}[{before}{square}]",
            f"{x}.scatter({dim}, {index}, {d.scalar()})",
            f"{x}.scatter_add({dim}, {index}, {d.new(like)})",
            f"{x}.index_add({dim}, {flat}, {added})",
            f"F.embedding({square}, {x}.reshape({size}, -1))"
            if dim == 0
            else f"{x}[{before}{flat}]",
            f"F.one_hot({flat}, {size}) * {d.scalar()}",
        )
    )


def ordered(d: Draw) -> str:
    x = d.tensor(has_elements)
    dim = d.dim(x)
    size = d.values[x].shape[dim]
    # topk may break ties differently, and then another element has the gradient.
    of_topk = "" if _all_differ(d.values[x]) else ".values.detach()"
    return d.one_of(
        (
            f"{x}.cumsum({dim})",
            f"{x}.cumsum({dim})",
            f"{x}.sort({dim}, descending={d.chance(0.5)})",
            f"{x}.topk({d.dice.randint(1, size)}, {dim}){of_topk}",
            f"{x}.argsort({dim})",
            f"torch.cumprod({x}, {dim})",
            f"{x}.cummax({dim})",
            f"torch.logcumsumexp({x}, {dim})",
            f"{x}.kthvalue({d.dice.randint(1, size)}, {dim})",
            f"{x}.diff(dim={dim})",
            f"{x}.median({dim})",
        )
    )


def _all_differ(value: torch.Tensor) -> bool:
    return not value.is_complex() and value.unique().numel() == value.numel()


def converted(d: Draw) -> str:
    x = d.tensor()
    other = d.of_dtype(torch.int64, torch.bool)
    forms = [
        f"{x}.to(torch.float64)",
        f"{x}.double()",
        f"{x}.to(torch.int64)",
        f"{x}.bool()",
        f"({x} > 0.37)",
        f"({x} <= -0.37).to({x}.dtype)",
        f"{x}.type_as({d.tensor()})",
    ]
    if d.dtype is torch.float32:
        forms += [f"{x}.to(torch.float32)", f"{x}.float()"]
    if other:
        forms += [
            f"{other}.to(torch.float64)",
            f"{other} * {d.scalar()}",
            f"{other} + 1",
            f"~({other} > 1)",
            f"{other}.sum()",
            f"{other}.double().mean()",
        ]
    return d.one_of(forms)


def compared(d: Draw) -> str:
    x = d.tensor()
    y = d.partner(x)
    name = d.one_of(("gt", "lt", "ge", "ne"))
    return d.one_of((f"torch.{name}({x}, {y})", f"({x} > {y}) & ({x} > 0.37)", f"{x} != {y}"))


def laid_out(d: Draw) -> str:
    x = d.one_of(list(d.tensors()))
    placements = d.layout(d.values[x].ndim, torch.bool, pending=False)
    return f"redistribute({x}, '{text_of(placements)}')"


def kept(d: Draw) -> str:
    x = d.tensor()
    return d.one_of(
        (
            f"{x}.clone()",
            f"{x}.contiguous()",
            f"{x}.detach() * 2",
            f"torch.zeros_like({x}) + 1",
            f"torch.ones_like({x})",
            f"torch.full_like({x}, 1.5)",
            f"{x}.new_zeros({list(d.values[x].shape)}) + {x}",
            f"{x}.new_ones(3)",
        )
    )


def padded(d: Draw) -> str:
    x = d.tensor(small)
    amounts = [d.dice.randint(0, 2), d.dice.randint(0, 2)]
    return d.one_of(
        (
            f"F.pad({x}, {amounts})",
            f"F.pad({x}, {amounts}, value=0.5)",
            f"{x}.unfold({d.dim(x)}, 1, 1)",
            f"F.mse_loss({x}, {d.new(d.values[x].shape)})",
            f"F.l1_loss({x}, {d.new(d.values[x].shape)}, reduction='sum')",
            f"F.smooth_l1_loss({x}, {d.new(d.values[x].shape)})",
            f"F.cross_entropy({x}.reshape(-1, {d.values[x].shape[-1]}),"
            f" {d.new((d.values[x].shape[:-1].numel(),), torch.int64, d.values[x].shape[-1])})",
            f"F.binary_cross_entropy_with_logits({x}, {d.new(d.values[x].shape)}.sigmoid())",
        )
    )


FAMILIES: dict[Operator, int] = {
    unary: 3,
    scalar: 2,
    binary: 4,
    in_place: 2,
    matrix: 4,
    reshape: 4,
    permuted: 3,
    expanded: 2,
    sliced: 3,
    divided: 2,
    joined: 2,
    reduced: 4,
    normalised: 2,
    chosen: 2,
    indexed: 2,
    ordered: 2,
    converted: 2,
    compared: 1,
    laid_out: 3,
    kept: 1,
    padded: 1,
}
