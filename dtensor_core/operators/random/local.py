"""Draws of a rank's part of the numbers that a single device would draw.

`sharded_rng` keeps this rank's part of a draw that fills the global tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.layout import stride_like
from dtensor_core.operators.kernels.local_operator import Local, LocalMaker
from dtensor_core.sharded_rng import draw, embed
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload, no_dispatch_modes

aten = torch.ops.aten
# Options of factories that the result's spec contains already.
_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory", "memory_format"))


@dataclass(frozen=True, slots=True)
class Sampler:
    """The in-place operator that fills a tensor, and its `grain` (see `sharded_rng`).

    `first` are arguments that precede the call's.
    """

    fill: Callable[..., Any]
    grain: int | None = None
    first: tuple[Any, ...] = ()


def _one_by_one(fill: Callable[..., Any], *args: Any) -> Sampler:
    """Make a sampler that some builds of torch draw at once by MKL; then it has no grain."""

    def drawn(*counts: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(0)
        empty = [torch.empty(count, dtype=torch.float32, device="cpu") for count in counts]
        return torch.cat([fill(each, *args, generator=generator) for each in empty])

    with no_dispatch_modes():  # a FakeTensorMode may be active during the import
        return Sampler(fill, 1 if torch.equal(drawn(64), drawn(32, 32)) else None)


# On CPU numbers are drawn one after the other, except by `normal_`, which works on 16 at a time and
# redraws the last 16. Source: ATen/native/cpu/DistributionTemplates.h.
_UNIFORM = Sampler(aten.uniform_.default, 1)
_NORMAL = Sampler(aten.normal_.default, 16)
_BERNOULLI = _one_by_one(aten.bernoulli_.float, 0.5)
_RANDOM_FROM = getattr(aten.random_, "from")
SAMPLERS = {
    "uniform": _UNIFORM,
    "normal": _NORMAL,
    "normal_functional": _NORMAL,
    "exponential": _one_by_one(aten.exponential_.default),
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


def sampling(sampler: Sampler) -> LocalMaker:
    """Fill the argument itself, the tensor in `out=`, or a new tensor."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec, in_place = _only(outputs), writes_first(op)  # pyright: ignore[reportArgumentType]

        def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            options = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
            target = x if in_place else options.pop("out", None)
            bounds = [a.item() if isinstance(a, torch.Tensor) else a for a in args]

            def fill(full: torch.Tensor) -> None:
                sampler.fill(full, *sampler.first, *bounds, **options)

            part = _new_part(x, spec) if target is None else target
            return draw(fill, part, spec, sampler.grain, options.get("generator"))

        return run

    return maker


def comparing(functional: Local) -> LocalMaker:
    """Draw numbers that are compared with parameters; other ranks' parameters count as 1."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec, in_place = _only(outputs), writes_first(op)  # pyright: ignore[reportArgumentType]

        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            specs = iter(inputs)
            full = [_full(a, next(specs)) if isinstance(a, torch.Tensor) else a for a in args]
            target = args[0] if in_place else kwargs.get("out")
            options = {name: value for name, value in kwargs.items() if name != "out"}
            part = spec.part_of(functional(*full, **options))
            return part.contiguous() if target is None else target.copy_(part)

        return run

    return maker


def normal(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Draw standard numbers, scaled by std and shifted by mean.

    A scalar std is applied by the draw itself. Source: ATen/native/DistributionTemplates.h.
    """
    spec = _only(outputs)

    def run(
        mean: Any, std: Any = 1.0, *, generator: Any = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        like = mean if isinstance(mean, torch.Tensor) else std
        scale = std if not isinstance(std, torch.Tensor) else 1.0

        def fill(full: torch.Tensor) -> None:
            full.normal_(0.0, scale, generator=generator)

        part = draw(fill, _new_part(like, spec), spec, _NORMAL.grain, generator)
        part = part.mul_(std) if isinstance(std, torch.Tensor) else part
        part = part.add_(mean)
        return part if out is None else out.copy_(part)

    return run


def dropout(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make (y, mask) of native_dropout(x, p, train), with the mask drawn for the full tensor."""
    spec = inputs[0]

    def run(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        if spec.local_shape == tuple(spec.shape) and x.stride() == spec.stride:
            return op(x, p, train)
        _, full = op(_ones(x, spec), p, train)
        mask = spec.part_of(full).contiguous()
        # With p of 1 nothing is kept, and the quotient would be a division by zero.
        scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
        return x * mask * (scale if train else 1.0), mask

    return run


def rrelu(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make rrelu_with_noise(x, noise, ...): x is replicated; noise keeps its layout."""
    spec = inputs[1]

    def run(x: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if spec.local_shape == tuple(spec.shape):
            return op(x, noise, *args, **kwargs)
        full = embed(noise, spec, torch.zeros_like(x))
        # All ranks draw for the full tensor, since values decide how many numbers are drawn.
        result = spec.part_of(op(x, full, *args, **kwargs)).contiguous()
        noise.copy_(spec.part_of(full))
        return result

    return run


def writes_first(op: OpOverload) -> bool:
    """True for an in-place operator."""
    alias = op._schema.arguments[0].alias_info
    return alias is not None and alias.is_write


def _only(outputs: Sequence[Spec | None]) -> Spec:
    (spec,) = outputs
    assert spec is not None
    return spec


def _new_part(like: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make an uninitialised tensor for this rank's part."""
    stride = stride_like(spec.local_shape, spec.stride)
    return like.new_empty_strided(spec.local_shape, stride, dtype=spec.dtype)


def _full(part: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make a full tensor in the memory order of `spec`: this rank's part, and 1 elsewhere."""
    return embed(part, spec, _ones(part, spec))


def _ones(like: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make a full tensor of ones in the memory order that `empty_like` gives it."""
    given = torch.empty_strided(spec.shape, spec.stride, device="meta")
    return like.new_empty_strided(spec.shape, torch.empty_like(given).stride()).fill_(1)
