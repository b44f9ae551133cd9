"""Attention over a sequence that ranks share, by `context_parallel`, and faults of its ring."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import commtrace
from commtrace.analyze import Frames
from dtensor_core import Replicate, Shard
from dtensor_core.experimental import attention, ring
from dtensor_core.testing import kept_mesh
from tests.values.programs import run_of

NUM_RANKS, BATCH, LENGTH, WIDTH, HEAD = 3, 2, 9, 8, 4
"""Parts of the sequence are not paired, since its length is no multiple of twice the ranks."""


class Core(nn.Module):
    """Causal attention of heads."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return [B, H, L, E]."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Model(nn.Module):
    """A layer of attention with a residual, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.core, self.head = Core(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        x = torch.tanh(self.first(x))
        q, k, v = (
            layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return self.head(x + self.o(self.core(q, k, v).transpose(1, 2).flatten(-2)))


def _train(is_parallel: bool, path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    x, target = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module") as recording:
        if not is_parallel:
            (model(x) - target).square().mean().backward()
        else:
            mesh = kept_mesh((NUM_RANKS,), ("cp",))
            for name, module in model.named_modules():
                recording.declare(module, mesh, [Shard(2 if name == "core" else 1)])
            for each in model.parameters():
                recording.declare(each, mesh, [Replicate()])
            with attention.context_parallel(mesh, buffers=[x, target], buffer_seq_dims=[1, 1]):
                ((model(x) - target).square().mean() / NUM_RANKS).backward()
            for each in model.parameters():
                dist.all_reduce(each.grad)  # type: ignore[arg-type]
        optimizer.step()
        recording.step()
    recording.save(path / f"rank{dist.get_rank() if is_parallel else 0}.json")


def recorded(method: str = "") -> Frames:
    """Return a recorded step, on ranks that rotate or gather keys and values, or on one device."""
    if not method:
        return run_of(partial(_train, False), 0)
    before = attention._cp_options.rotate_method
    attention.set_rotate_method(method)
    try:
        return run_of(partial(_train, True), NUM_RANKS)
    finally:
        attention.set_rotate_method(before)


# Faults: each makes a wrong function from the right one.


def _not_moved(_: Any) -> Any:
    return lambda flat, *args: flat.clone()


def _other_direction(original: Any) -> Any:
    return lambda flat, mesh, steps, name: original(flat, mesh, -steps, name)


def _changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a fault that changes the received tensor; its last element is a flag."""

    def fault(original: Any) -> Any:
        def moved(flat: torch.Tensor, *args: Any) -> torch.Tensor:
            arrived = original(flat, *args)
            return torch.cat([change(arrived[:-1]), arrived[-1:]])

        return moved

    return fault


def _exchanged(flat: torch.Tensor) -> torch.Tensor:
    return flat.roll(flat.numel() // 2)


def _off_by_one(flat: torch.Tensor) -> torch.Tensor:
    return flat.roll(1)


def _rounded(flat: torch.Tensor) -> torch.Tensor:
    return flat.bfloat16().float()


def _missing_on_a_rank(flat: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(flat) if dist.get_rank() == 1 else flat


def _not_rescaled(original: Any) -> Any:
    def block(q: Any, k: Any, v: Any, total: Any, largest: Any, sums: Any, *args: Any) -> Any:
        own, now, added = original(q, k, v, 0 * total, largest, 0 * sums, *args)
        return total + own, now, sums + added

    return block


def _without_largest(original: Any) -> Any:
    """Take the largest score of the block for the largest of all blocks."""

    def block(q: Any, k: Any, v: Any, total: Any, largest: Any, sums: Any, *args: Any) -> Any:
        return original(q, k, v, total, largest - 1, sums, *args)

    return block


def _scaled_by_ranks(original: Any) -> Any:
    def block(*args: Any) -> Any:
        *given, scale, dropout = args
        return original(*given, scale / NUM_RANKS, dropout)

    return block


def _positions_of_the_part(original: Any) -> Any:
    return lambda self, coord, length: original(self, 0, length)


def _positions_off_by_one(original: Any) -> Any:
    return lambda self, coord, length: original(self, coord, length) + (coord == 1)


def _not_sent_back(_: Any) -> Any:
    return staticmethod(lambda ctx, *grads: (grads[0], None, None))


def _sent_back_twice(original: Any) -> Any:
    return staticmethod(lambda ctx, *grads: (2 * original(ctx, *grads)[0], None, None))


def _sent_on(_: Any) -> Any:
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ring.rotated(grads[0].contiguous(), ctx.mesh, ctx.steps, "wrong"), None, None

    return staticmethod(backward)


def _reversed(original: Any) -> Any:
    return lambda parts, *args: original(parts[::-1], *args)


def _own_part_only(original: Any) -> Any:
    return lambda part, dim, mesh: [part] * len(original(part, dim, mesh))


def _one_position_less(original: Any) -> Any:
    return lambda query, before, *args, **options: original(
        query, max(before - 1, 0), *args, **options
    )


def _of_the_first_rank(original: Any) -> Any:
    return lambda query, before, *args, **options: original(query, 0, *args, **options)


def _with_gradient(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a fault that changes the gradient of a gathered tensor."""

    def fault(original: Any) -> Any:
        def pieces(part: torch.Tensor, *args: Any) -> Any:
            given = part.clone()
            if given.requires_grad:
                given.register_hook(change)
            return original(given, *args)

        return pieces

    return fault


def _doubled(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


def _shifted(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.roll(1, -2)


_ROTATION = ring._Rotation
FAULTS: dict[str, tuple[Any, str, Any, tuple[str, ...]]] = {
    # name: (owner, its function, the fault, modules of which one must be found)
    "block not moved": (ring, "rotated", _not_moved, ("core",)),
    "block of the other neighbour": (ring, "rotated", _other_direction, ("core",)),
    "keys and values exchanged": (ring, "rotated", _changed(_exchanged), ("core",)),
    "block off by one": (ring, "rotated", _changed(_off_by_one), ("core",)),
    "block in bfloat16": (ring, "rotated", _changed(_rounded), ("core",)),
    "block missing on a rank": (ring, "rotated", _changed(_missing_on_a_rank), ("core",)),
    "sums not rescaled": (ring, "_block", _not_rescaled, ("core",)),
    "sums rescaled twice": (ring, "_block", _without_largest, ("core",)),
    "scores divided by the ranks": (ring, "_block", _scaled_by_ranks, ("core",)),
    "mask of the part": (ring.Ring, "_positions", _positions_of_the_part, ("core",)),
    "mask off by one": (ring.Ring, "_positions", _positions_off_by_one, ("core",)),
    "gradients not sent back": (_ROTATION, "backward", _not_sent_back, ("k", "v")),
    "gradients sent back twice": (_ROTATION, "backward", _sent_back_twice, ("k", "v")),
    "gradients sent on": (_ROTATION, "backward", _sent_on, ("k", "v")),
    "parts in reverse order": (attention, "_in_order", _reversed, ("core",)),
    "own part only": (attention, "_pieces", _own_part_only, ("core",)),
    "one position less": (attention, "_causal", _one_position_less, ("core",)),
    "mask of the first rank": (attention, "_causal", _of_the_first_rank, ("core",)),
    "gradients doubled": (attention, "_pieces", _with_gradient(_doubled), ("k", "v")),
    "gradients shifted": (attention, "_pieces", _with_gradient(_shifted), ("k", "v")),
}
