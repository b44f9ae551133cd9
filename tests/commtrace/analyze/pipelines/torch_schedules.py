"""Training with schedules of torch.distributed.pipelining whose stages take known times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import commtrace
from commtrace.analyze import Frames, load
from commtrace.tracefile import read_parts
from tests.commtrace.analyze.pipelines.programs import BACKWARD, FORWARD, INPUT, WEIGHT, Act

NUM_RANKS, NUM_MICRO_BATCHES = 4, 4
FORWARD_MS, INPUT_MS, WEIGHT_MS = 40, 60, 30
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


Timed = tuple[Act, int]
"""An action, and how long it took in ns, by the clock of the test."""


@dataclass(frozen=True)
class Case:
    """A schedule, and its faults; times are in ms.

    Attributes:
        chunks: Stages of each rank.
        slower: Factors of the times of stages.
        extra: Time that the forward pass of a stage and a micro-batch takes beside the usual.
        send_late: Time before a stage sends its outputs.
        receive_late: Time before a stage issues the receives of its inputs.
    """

    schedule: str
    chunks: int = 1
    slower: Mapping[int, float] = field(default_factory=dict)
    extra: Mapping[tuple[int, int], int] = field(default_factory=dict)
    send_late: Mapping[int, int] = field(default_factory=dict)
    receive_late: Mapping[int, int] = field(default_factory=dict)


class _Wait(torch.autograd.Function):
    """Identity that takes some time of a stage's action in the forward and the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Layer, ahead: float, back: float) -> torch.Tensor:
        ctx.layer, ctx.back = layer, back
        layer.wait(ahead)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.layer.wait(ctx.back)
        return grads[0], None, None, None


class Layer(nn.Module):
    """A layer whose time does not depend on the machine, as long as that is fast enough.

    What an action of its stage has taken already, since `begin`, is a part of the time.
    """

    def __init__(self, factor: float, extra: Mapping[int, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.factor, self.extra = factor, extra
        self.begin()

    def begin(self, micro_batch: int = -1) -> None:
        self.micro_batch = micro_batch
        self.until = time.perf_counter()

    def wait(self, milliseconds: float) -> None:
        self.until += milliseconds * self.factor / 1000
        time.sleep(max(0.0, self.until - time.perf_counter()))

    def forward(self, x: torch.Tensor) -> Any:
        weight: Any = _Wait.apply(self.weight, self, 0, WEIGHT_MS)
        ahead = FORWARD_MS + self.extra.get(self.micro_batch, 0)
        return _Wait.apply(x @ weight, self, ahead, INPUT_MS)


class _Stage(pipelining.PipelineStage):
    """A stage that may do something else before it sends, or before it receives."""

    send_late = receive_late = 0
    timed: list[Timed]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._timed(fwd_chunk_id, FORWARD):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._timed(bwd_chunk_id, BACKWARD if kwargs.get("full_backward", True) else INPUT):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._timed(bwd_chunk_id, WEIGHT):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def _timed(self, micro_batch: int, kind: str) -> Iterator[None]:
        layer: Any = self.submod
        layer.begin(micro_batch)
        begin = time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - begin
        self.timed.append((Act(self.stage_index, micro_batch, kind), took))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        time.sleep(self.send_late / 1000)
        return super().get_fwd_send_ops(fwd_chunk_id)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        time.sleep(self.receive_late / 1000)
        return super().get_fwd_recv_ops(fwd_chunk_id)


def stages_of(schedule: str, chunks: int, rank: int, size: int) -> list[int]:
    """Stages of a rank."""
    if schedule in V_SHAPED:
        return [rank, 2 * size - 1 - rank]
    return [rank + size * chunk for chunk in range(chunks)]


def _stage(case: Case, number: int, num_stages: int, timed: list[Timed]) -> _Stage:
    extra = {mb: time for (stage, mb), time in case.extra.items() if stage == number}
    layer = Layer(case.slower.get(number, 1.0), extra)
    stage = _Stage(layer, number, num_stages, torch.device("cpu"))
    stage.timed = timed
    stage.send_late = case.send_late.get(number, 0)
    stage.receive_late = case.receive_late.get(number, 0)
    return stage


def train(cases: Mapping[str, Case], folder: str) -> dict[str, list[Timed]]:
    """Record a step of each case, and return this rank's actions in order, with their times."""
    rank, size = dist.get_rank(), dist.get_world_size()
    times: dict[str, list[Timed]] = {}
    for name, case in cases.items():
        torch.manual_seed(0)
        timed = times[name] = []
        numbers = stages_of(case.schedule, case.chunks, rank, size)
        stages = [_stage(case, number, size * case.chunks, timed) for number in numbers]
        made = getattr(pipelining, case.schedule)(
            stages if case.chunks > 1 else stages[0], NUM_MICRO_BATCHES,
            loss_fn=nn.functional.mse_loss,
        )  # fmt: skip
        batch = 2 * NUM_MICRO_BATCHES
        given = (torch.randn(batch, 4),) if any(each.is_first for each in stages) else ()
        target = {"target": torch.randn(batch, 4)} if any(each.is_last for each in stages) else {}
        dist.barrier()
        with commtrace.record() as recording:
            made.step(*given, **target)
            recording.step()
        recording.save(Path(folder) / f"{name}-{rank}.json")
    return times


def recorded(name: str, folder: str) -> Frames:
    """The recording of a case."""
    return load(read_parts(sorted(Path(folder).glob(f"{name}-*.json"))))
