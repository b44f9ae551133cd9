"""Training of models in a layout, recorded with fingerprints on thread ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import commtrace
from commtrace.analyze import Frames
from commtrace.analyze.run.frame import frames_of
from commtrace.tracefile import read_parts
from dtensor_core.experimental import implicit_replication
from dtensor_core.testing import kept_mesh, run_threads
from tests.values.layouts import Layout
from tests.values.models import BATCH, LENGTH, VOCABULARY

Fault = Callable[[nn.Module, int], AbstractContextManager[Any]]


def train(
    make: Callable[[], nn.Module],
    path: Path,
    *,
    layout: Layout | None = None,
    dtype: torch.dtype = torch.float32,
    num_steps: int = 2,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 0.1,
    max_norm: float | None = None,
    num_parts: int = 1,
    fault: Fault | None = None,
    level: str = "op",
    every: int = 1,
) -> None:
    """Train a model for some steps, recorded to a file of this rank.

    Args:
        make: makes the model.
        path: folder of the file.
        layout: of the model; without it, the layout of a single device.
        dtype: of the parameters.
        num_steps: number of steps.
        optimizer: class of the optimizer.
        lr: learning rate.
        max_norm: norm to which gradients are clipped.
        num_parts: parts of a step's batch, whose gradients are accumulated.
        fault: makes a context of forward and backward, from the model and the step.
        level: of the fingerprints.
        every: distance of the recorded steps.
    """
    torch.manual_seed(0)
    model, mesh = make().to(dtype), None
    generator = torch.Generator().manual_seed(1)
    if layout is not None:
        mesh = kept_mesh(tuple(layout.axes.values()), tuple(layout.axes))
        model = layout.placed(model, mesh)
    is_sgd = optimizer is torch.optim.SGD
    steps = optimizer(model.parameters(), lr=lr, **({"momentum": 0.9} if is_sgd else {}))  # type: ignore[call-arg]
    with commtrace.record(values=level, every=every) as recording:
        for step in range(num_steps):
            for _ in range(num_parts):
                tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
                fed = tokens if mesh is None or layout is None else layout.fed(tokens, mesh)
                in_step = fault(model, step) if fault is not None else nullcontext()
                around = layout.within if layout is not None else nullcontext
                with implicit_replication(), around(), in_step:
                    logits = model(fed)
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), fed.flatten())
                    recording.observe("loss", loss)
                    (loss / num_parts).backward()
            if max_norm is not None:
                norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                recording.observe("norm of gradients", norm)
            steps.step()
            steps.zero_grad()
            recording.step()
    rank = dist.get_rank() if dist.is_initialized() else 0
    recording.save(path / f"rank{rank}.json")


def recorded(make: Callable[[], nn.Module], **options: Any) -> Frames:
    """Train a model, on thread ranks if it has a layout, and return the recording."""
    layout: Layout | None = options.get("layout")
    return run_of(partial(train, make, **options), layout.num_ranks if layout else 0)


def run_of(program: Callable[[Path], None], num_ranks: int) -> Frames:
    """Run a program that saves its recordings to a folder, and return the recording.

    Without ranks, it is a process without a process group.
    """
    with tempfile.TemporaryDirectory() as folder:
        if not num_ranks:
            program(Path(folder))
        else:
            run_threads(program, num_ranks, Path(folder))
        return frames_of(read_parts(sorted(Path(folder).glob("*.json"))))
