"""Training steps on a single device and on a mesh: every loss and every gradient of every step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dtensor_core import DTensor, Placement, distribute_tensor
from dtensor_core.parallel import loss_parallel
from tests.dtensor_core.models.llama import Llama, LlamaArgs

STEPS, BATCH, LENGTH = 10, 4, 8


@dataclass(frozen=True, slots=True)
class Step:
    """Full tensors of a training step."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of a training.

    Attributes:
        accumulated: Number of batches whose gradients are summed in a step.
        clip: Maximum norm of the gradients; None does not clip.
        layout: Placements of tokens and targets; None makes them plain tensors.
    """

    steps: int = STEPS
    batch: int = BATCH
    length: int = LENGTH
    accumulated: int = 1
    clip: float | None = None
    layout: tuple[Placement, ...] | None = None
    loss_parallel: bool = False

    def data(self, step: int, vocabulary: int, mesh: Any) -> tuple[torch.Tensor, ...]:
        """Create tokens and the tokens after them, [B, L] each."""
        dice = torch.Generator().manual_seed(step)
        tokens = torch.randint(vocabulary, (self.batch, self.length + 1), generator=dice)
        both = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if self.layout is None or mesh is None:
            return both
        return tuple(distribute_tensor(each, mesh, self.layout) for each in both)


def llama(args: LlamaArgs) -> Llama:
    """Create a model in double precision, the same each time."""
    torch.manual_seed(0)
    model = Llama(args)
    for parameter in model.parameters():
        parameter.data = parameter.data.double()
    return model


def full_copy(tensor: Any) -> torch.Tensor:
    """Return a detached copy of a tensor, or of the full tensor of a DTensor."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token."""
    logits = model(tokens)
    if isinstance(logits, DTensor) and not isinstance(targets, DTensor):
        targets = DTensor.from_local(targets, logits.device_mesh)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(model: Llama, recipe: Recipe = Recipe(), mesh: Any = None) -> list[Step]:
    """Train with AdamW; returns the results of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    taken: list[Step] = []
    for step in range(recipe.steps):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part in range(recipe.accumulated):
            seed = step * recipe.accumulated + part
            tokens, targets = recipe.data(seed, model.args.vocab_size, mesh)
            with loss_parallel() if recipe.loss_parallel else nullcontext():
                loss = loss_of(model, tokens, targets) / recipe.accumulated
                loss.backward()
            total += full_copy(loss)
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        gradients = {name: full_copy(p.grad) for name, p in model.named_parameters()}
        taken.append(Step(total, gradients))
        optimizer.step()
    return taken


@cache
def on_one_device(args: LlamaArgs, recipe: Recipe = Recipe()) -> list[Step]:
    """Run the same training on a single device."""
    return train(llama(args), recipe)


def expect_same(taken: list[Step], expected: list[Step], tolerance: float = 1e-8) -> None:
    """Raise AssertionError for the first loss or gradient that differs."""
    assert len(taken) == len(expected)
    for number, (mine, theirs) in enumerate(zip(taken, expected, strict=True)):
        same(mine.loss, theirs.loss, tolerance, f"loss of step {number}")
        assert mine.gradients.keys() == theirs.gradients.keys()
        for name, gradient in mine.gradients.items():
            same(gradient, theirs.gradients[name], tolerance, f"{name}, step {number}")


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """Raise AssertionError if two tensors differ."""
    torch.testing.assert_close(
        found, expected, atol=tolerance, rtol=tolerance, msg=lambda text: f"{what}: {text}"
    )
