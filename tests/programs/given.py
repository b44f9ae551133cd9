"""Input tensors of a program: values, memory and layout, all determined by a seed.

`values` are "normal": numbers that a nudge moves; "exact": multiples of 1/4, whose bits do not
depend on the order of summation; or "special": exact, with infinities, nan and zeros of both signs
among them. `memory` is the tensor's memory layout on a single device: "dense", "permuted", "gapped"
(every second element of something larger, not from its beginning) or "expanded" (one dim of
stride 0). A `sample` is a tensor of torch's operator database instead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from dtensor_core import Partial, Placement, Replicate, Shard, _StridedShard
from tests.programs.database import Sampled, sampled

MEMORIES = ("dense", "permuted", "gapped", "expanded")
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_SPECIAL = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0)


@dataclass(frozen=True, slots=True)
class Given:
    """An input tensor; a shard keeps the memory layout of the full tensor unless `tight`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    high: int  # integers lie in [0, high)
    seed: int
    requires_grad: bool
    placements: tuple[Placement, ...]
    values: str = "normal"
    memory: str = "dense"
    tight: bool = True
    sample: Sampled | None = None

    def source(self) -> str:
        """The Python expression that creates this; defaults are omitted."""
        usual = Given(self.name, self.shape, self.dtype, 5, 0, False, ())
        options = [
            f"{name}={getattr(self, name)!r}"
            for name in ("values", "memory", "tight", "sample")
            if getattr(self, name) != getattr(usual, name)
        ]
        return (
            f"Given({self.name!r}, {self.shape}, {self.dtype}, high={self.high}, seed={self.seed}, "
            f"requires_grad={self.requires_grad}, "
            f'placements=placements_of("{text_of(self.placements)}")'
            f"{''.join(', ' + option for option in options)})"
        )

    def full(self, nudge: float = 0.0, turn: int = 0) -> torch.Tensor:
        """Return the full tensor on one device; values that are not exact are off by about `nudge`.

        Each `turn` perturbs them in another way; a reduction determines neither the sign of a zero
        nor the bits of a nan.
        """
        if self.sample is not None:
            summed = any(p.is_partial("sum") or p.is_partial("avg") for p in self.placements)
            return _moved(sampled(self.sample), nudge, self.seed + turn, summed=summed)
        if self.memory == "expanded" and self.shape:
            dim = self.seed % len(self.shape)
            one = tuple(min(size, 1) if n == dim else size for n, size in enumerate(self.shape))
            narrow = replace(self, shape=one, memory="dense")
            return narrow.full(nudge, turn).expand(self.shape)
        return self._placed(self._numbers(nudge, turn))

    def _numbers(self, nudge: float, turn: int) -> torch.Tensor:
        dice = torch.Generator().manual_seed(self.seed)
        if self.dtype is torch.bool:
            return torch.rand(self.shape, generator=dice) < 0.6
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            return torch.randint(max(self.high, 1), self.shape, generator=dice).to(self.dtype)
        if self.dtype.is_complex:
            parts = replace(self, shape=(*self.shape, 2), dtype=torch.float64, memory="dense")
            return torch.view_as_complex(parts._numbers(nudge, turn)).to(self.dtype)
        if self.values == "normal":
            full = torch.randn(self.shape, generator=dice, dtype=torch.float64)
            if nudge:
                dice.manual_seed(self.seed + 1 + turn)
                full += torch.randn(self.shape, generator=dice, dtype=torch.float64) * nudge
            return full.to(self.dtype)
        full = torch.randint(-12, 13, self.shape, generator=dice).to(torch.float64) / 4
        if self.values == "special":
            kinds = torch.tensor(_SPECIAL, dtype=torch.float64)
            chosen = kinds[torch.randint(len(_SPECIAL), self.shape, generator=dice)]
            full = torch.where(torch.rand(self.shape, generator=dice) < 0.15, chosen, full)
        full = full.to(self.dtype)
        if turn and any(placement.is_partial() for placement in self.placements):
            dice.manual_seed(self.seed + turn)
            drawn = torch.randn(self.shape, generator=dice, dtype=torch.float64)
            full = torch.where(full == 0, full.copysign(drawn), full)
            return with_other_bits(full, drawn < 0)
        return full

    def _placed(self, full: torch.Tensor) -> torch.Tensor:
        """Copy the values into the memory layout `memory`."""
        if self.memory == "permuted":
            order = list(range(full.ndim))
            random.Random(self.seed).shuffle(order)
            back = sorted(range(full.ndim), key=order.__getitem__)
            return full.permute(order).contiguous().permute(back)
        if self.memory == "gapped" and full.ndim:
            size = [n * 2 + 1 if dim == full.ndim - 1 else n for dim, n in enumerate(full.shape)]
            room = full.new_zeros(size)[..., 1::2]
            room.copy_(full)
            return room
        return full


def _moved(full: torch.Tensor, nudge: float, seed: int, *, summed: bool) -> torch.Tensor:
    """A tensor of the database, each number perturbed in proportion; zeros stay.

    If it is `summed`, small numbers are perturbed by the error of their terms.
    """
    if not nudge or not (full.is_floating_point() or full.is_complex()):
        return full
    dice = torch.Generator().manual_seed(seed)
    off = torch.randn(full.shape, generator=dice, dtype=torch.float64) * nudge
    scale = full.abs().clamp(min=1) * full.sgn() if summed else full
    return (full + scale * off).to(full.dtype)


def with_other_bits(tensor: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Change the sign and the payload of each nan that was drawn, in place."""
    bits = tensor.data.view(_BITS[tensor.dtype.itemsize])
    bits[tensor.isnan() & drawn] ^= torch.iinfo(bits.dtype).min | 1
    return tensor


def placements_of(text: str) -> tuple[Placement, ...]:
    """Parse placements: `"R S1 Psum T0x2"`, the last a strided shard of dim 0 in 2 blocks."""
    return tuple(_placement(word) for word in text.split())


def text_of(placements: tuple[Placement, ...]) -> str:
    """Format placements as `placements_of` reads them."""
    return " ".join(_word(placement) for placement in placements)


def _word(placement: Placement) -> str:
    if isinstance(placement, Shard):
        return f"S{placement.dim}"
    if isinstance(placement, _StridedShard):
        return f"T{placement.dim}x{placement.split_factor}"
    return f"P{placement.reduce_op}" if isinstance(placement, Partial) else "R"


def _placement(word: str) -> Placement:
    if word[0] == "S":
        return Shard(int(word[1:]))
    if word[0] == "T":
        dim, factor = word[1:].split("x")
        return _StridedShard(int(dim), split_factor=int(factor))
    return Replicate() if word == "R" else Partial(word[1:])
