"""Random operators: every layout yields the numbers that one device would draw.

A row names the in-place operator that fills the global tensor; `sharded_rng` keeps this rank's part
of it. Operators whose number of draws depends on values of their argument run on replicated
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dtensor_core.layout import stride_like
from dtensor_core.operators.call import Call
from dtensor_core.operators.elementwise import OPAQUE
from dtensor_core.operators.local_operator import Local, LocalMaker
from dtensor_core.operators.operands import factor_sizes, full_operand, operand_of
from dtensor_core.operators.row import Row
from dtensor_core.operators.rule_builders import whole_rule
from dtensor_core.operators.sharding_rule import Candidate, Rule
from dtensor_core.placement import Partial, Replicate
from dtensor_core.sharded_rng import draw, embed
from dtensor_core.spec import Spec

aten = torch.ops.aten
_ELEMENTWISE = "elementwise, drawn for the whole"
_BY_VALUE = "whole: values decide how many numbers are drawn"
# Options of factories that the result's spec contains already.
_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory", "memory_format"))


@dataclass(frozen=True, slots=True)
class Sampler:
    """The in-place operator that fills a tensor, and its `grain` (see `draws`).

    `first` are arguments that precede those of the call.
    """

    fill: Callable[..., Any]
    grain: int | None = None
    first: tuple[Any, ...] = ()


def _by_one(fill: Callable[..., Any], *args: Any) -> Sampler:
    """Make a sampler that some builds of torch draw at once by MKL; then it has no grain."""

    def drawn(*counts: int) -> torch.Tensor:
        dice = torch.Generator("cpu").manual_seed(0)
        empty = [torch.empty(count, dtype=torch.float32, device="cpu") for count in counts]
        return torch.cat([fill(each, *args, generator=dice) for each in empty])

    with _disable_current_modes():  # a FakeTensorMode may be active during the import
        return Sampler(fill, 1 if torch.equal(drawn(64), drawn(32, 32)) else None)


# On CPU numbers are drawn one after the other, except by `normal_`, which works on 16 at a time and
# redraws the last 16. Source: ATen/native/cpu/DistributionTemplates.h.
_UNIFORM = Sampler(aten.uniform_.default, 1)
_NORMAL = Sampler(aten.normal_.default, 16)
_BERNOULLI = _by_one(aten.bernoulli_.float, 0.5)
_RANDOM_FROM = getattr(aten.random_, "from")
_SAMPLERS = {
    "uniform": _UNIFORM,
    "normal": _NORMAL,
    "normal_functional": _NORMAL,
    "exponential": _by_one(aten.exponential_.default),
    "cauchy": Sampler(aten.cauchy_.default, 1),
    "geometric": Sampler(aten.geometric_.default, 1),
    "log_normal": Sampler(aten.log_normal_.default, 1),
    "random": Sampler(aten.random_.default, 1),
    "random.from": Sampler(_RANDOM_FROM, 1),
    "random.to": Sampler(aten.random_.to, 1),
    "bernoulli.float": _BERNOULLI,
    "bernoulli.p": _BERNOULLI,
    "rand_like": _UNIFORM,
    "randn_like": _NORMAL,
    "randint_like": Sampler(_RANDOM_FROM, 1, (0,)),
    "randint_like.low_dtype": Sampler(_RANDOM_FROM, 1),
    "randint_like.low_generator_dtype": Sampler(_RANDOM_FROM, 1),
}


def _sampled(call: Call, sampler: Sampler) -> Rule:
    """Fill the argument itself, the tensor in `out=`, or a new tensor."""
    in_place = _writes_first(call)

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = _only(outputs)

        def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            options = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
            target = x if in_place else options.pop("out", None)
            bounds = [a.item() if isinstance(a, torch.Tensor) else a for a in args]

            def fill(whole: torch.Tensor) -> None:
                sampler.fill(whole, *sampler.first, *bounds, **options)

            part = _new_part(x, spec) if target is None else target
            return draw(fill, part, spec, sampler.grain, options.get("generator"))

        return run

    return _elementwise(call, maker)


def _parametrized(call: Call, functional: Local) -> Rule:
    """Draw numbers that are compared with parameters; those of other ranks are taken as 1."""
    in_place = _writes_first(call)

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = _only(outputs)

        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            specs = iter(inputs)
            wholes = [_whole(a, next(specs)) if isinstance(a, torch.Tensor) else a for a in args]
            target = args[0] if in_place else kwargs.get("out")
            options = {name: value for name, value in kwargs.items() if name != "out"}
            part = spec.part_of(functional(*wholes, **options))
            return part.contiguous() if target is None else target.copy_(part)

        return run

    return _elementwise(call, maker)


def _bernoulli(call: Call) -> Rule:
    return _parametrized(call, aten.bernoulli.default)


def _bernoulli_of_tensor(call: Call) -> Rule:
    return _parametrized(call, aten.bernoulli.Tensor)


def _multinomial(call: Call) -> Rule:
    """Rows of weights, [rows, classes] -> [rows, samples]; a single row is not sharded."""
    rule = _parametrized(call, aten.multinomial.default)
    classes, samples = ("classes",), ("samples",)
    rows = (("rows",),) * (call.specs[0].ndim - 1)
    sizes = {"classes": call.specs[0].shape[-1], "samples": call.outputs[0].shape[-1]}
    if rows:
        sizes["rows"] = call.specs[0].shape[0]
    return Rule(
        inputs=((*rows, classes),),
        outputs=((*rows, samples),),
        sizes=sizes,
        blocked=frozenset(("classes", "samples")),
        local=rule.local,
    )


def _normal_of_tensors(call: Call) -> Rule:
    """normal(mean, std): standard numbers, scaled and shifted.

    A scalar std is applied by the draw itself. Source: ATen/native/DistributionTemplates.h.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = _only(outputs)

        def run(
            mean: Any, std: Any = 1.0, *, generator: Any = None, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            like = mean if isinstance(mean, torch.Tensor) else std
            scale = std if not isinstance(std, torch.Tensor) else 1.0

            def fill(whole: torch.Tensor) -> None:
                whole.normal_(0.0, scale, generator=generator)

            part = draw(fill, _new_part(like, spec), spec, _NORMAL.grain, generator)
            part = part.mul_(std) if isinstance(std, torch.Tensor) else part
            part = part.add_(mean)
            return part if out is None else out.copy_(part)

        return run

    return _elementwise(call, maker)


def _dropout(call: Call) -> Rule:
    """native_dropout(x, p, train) -> (y, mask), with the mask drawn for the full tensor."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = inputs[0]

        def run(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
            if spec.local_shape == tuple(spec.shape) and x.stride() == spec.stride:
                return op(x, p, train)
            _, whole = op(_ones(x, spec), p, train)
            mask = spec.part_of(whole).contiguous()
            scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
            return x * mask * (scale if train else 1.0), mask

        return run

    return _elementwise(call, maker)


def _rrelu(call: Call) -> Rule:
    """rrelu_with_noise(x, noise, ...): drawn where x is not positive; noise keeps its layout."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = inputs[1]

        def run(x: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if spec.local_shape == tuple(spec.shape):
                return op(x, noise, *args, **kwargs)
            whole = embed(noise, spec, torch.zeros_like(x))
            result = spec.part_of(op(x, whole, *args, **kwargs)).contiguous()
            noise.copy_(spec.part_of(whole))
            return result

        return run

    if _writes_first(call):  # and written back from there
        return whole_rule(call)
    present = dict.fromkeys(call.specs[1].placements)
    return Rule(
        inputs=((), ()),
        outputs=((),),
        sizes={},
        extra=tuple(Candidate((Replicate(), p), (p,)) for p in present if not p.is_partial()),
        offers_whole=False,
        local=maker,
    )


def _elementwise(call: Call, local: LocalMaker) -> Rule:
    """Build an elementwise rule; a Partial argument of which only the shape is used stays."""
    shape = call.outputs[0].shape
    like = call.op._schema.name.endswith("_like") and len(call.specs) == 1
    partials = dict.fromkeys(p for p in call.specs[0].placements if isinstance(p, Partial))
    return Rule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(full_operand(shape),) * len(call.outputs),
        sizes=factor_sizes(shape),
        extra=tuple(Candidate((p,), (Replicate(),)) for p in partials) if like else (),
        local=local,
    )


def _writes_first(call: Call) -> bool:
    """True for an in-place operator."""
    alias = call.op._schema.arguments[0].alias_info
    return alias is not None and alias.is_write


def _only(outputs: Sequence[Spec | None]) -> Spec:
    (spec,) = outputs
    assert spec is not None
    return spec


def _new_part(like: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make an uninitialised tensor for this rank's part."""
    stride = stride_like(spec.local_shape, spec.stride)
    return like.new_empty_strided(spec.local_shape, stride, dtype=spec.dtype)


def _whole(part: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make a full tensor in the memory order of `spec`: this rank's part, and 1 elsewhere."""
    return embed(part, spec, _ones(part, spec))


def _ones(like: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make a full tensor of ones in the memory order that `empty_like` gives it."""
    given = torch.empty_strided(spec.shape, spec.stride, device="meta")
    return like.new_empty_strided(spec.shape, torch.empty_like(given).stride()).fill_(1)


def _row_of(sampler: Sampler) -> Row:
    def build(call: Call) -> Rule:
        return _sampled(call, sampler)

    return Row(build, _ELEMENTWISE)


ROWS = {name: _row_of(sampler) for name, sampler in _SAMPLERS.items()}
ROWS |= {
    "normal.Tensor_Tensor": Row(_normal_of_tensors, _ELEMENTWISE),
    "normal.Tensor_float": Row(_normal_of_tensors, _ELEMENTWISE),
    "normal.float_Tensor": Row(_normal_of_tensors, _ELEMENTWISE),
    "bernoulli": Row(_bernoulli, _ELEMENTWISE),
    "bernoulli.Tensor": Row(_bernoulli_of_tensor, _ELEMENTWISE),
    "multinomial": Row(_multinomial, "rows, drawn for the whole"),
    "native_dropout": Row(_dropout, "elementwise, mask drawn for the whole"),
    "rrelu_with_noise": Row(_rrelu, "whole, the noise as it lies"),
    "rrelu_with_noise_backward": OPAQUE,
    "_standard_gamma_grad": OPAQUE,
    "poisson": Row(whole_rule, _BY_VALUE),
    "binomial": Row(whole_rule, _BY_VALUE),
    "_standard_gamma": Row(whole_rule, _BY_VALUE),
    "_sample_dirichlet": Row(whole_rule, _BY_VALUE),
}
