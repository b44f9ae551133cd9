"""Stage, micro-batch, direction, module and phase of what pipeline stages do."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

import commtrace
from commtrace.analyze import Frames, load
from commtrace.errors import UsageError
from commtrace.recorder.attribution.pipeline_stages import METHODS
from commtrace.recorder.events import buffer
from commtrace.torch_internals.pipelining import pipeline_classes
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_processes, run_threads

CHUNKS = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleLoopedBFS": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
    "ScheduleDualPipeV": 2,
}
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
NUM_RANKS, NUM = 2, 4


class _Summed(torch.autograd.Function):
    """Identity that communicates in both passes, in a group of its own rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        dist.all_reduce(torch.ones(1), group=group)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dist.all_reduce(torch.ones(1), group=ctx.group)
        return grads[0], None


class Inner(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.linear, self.group = nn.Linear(4, 4), group

    def forward(self, x: torch.Tensor) -> Any:
        return _Summed.apply(self.linear(x), self.group)


class Layer(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.inner = Inner(group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


def train(names: Mapping[str, int], folder: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [dist.new_group([each]) for each in range(size)][rank]
    for name, chunks in names.items():
        numbers = [rank + size * chunk for chunk in range(chunks)]
        if name in V_SHAPED:
            numbers = [rank, 2 * size - 1 - rank]
        stages = [
            pipelining.PipelineStage(Layer(own), each, size * chunks, torch.device("cpu"))
            for each in numbers
        ]
        made = getattr(pipelining, name)(
            stages if chunks > 1 else stages[0], NUM, loss_fn=nn.functional.mse_loss
        )
        given = (torch.randn(NUM, 4),) if any(each.is_first for each in stages) else ()
        target = {"target": torch.randn(NUM, 4)} if any(each.is_last for each in stages) else {}
        made.step(*given, **target)  # finds out metadata, which is not recorded
        with commtrace.record() as recording:
            made.step(*given, **target)
            recording.step()
        recording.save(Path(folder) / f"{name}-{rank}.json")


@pytest.fixture(scope="module")
def recordings() -> Iterator[dict[str, Frames]]:
    with tempfile.TemporaryDirectory() as folder:
        run_processes(train, NUM_RANKS, CHUNKS, folder, timeout_s=100)
        yield {
            name: load(read_parts(sorted(Path(folder).glob(f"{name}-*.json")))) for name in CHUNKS
        }


@pytest.mark.parametrize("name", CHUNKS)
def test_every_transfer_has_its_stage_micro_batch_and_direction(
    name: str, recordings: dict[str, Frames]
) -> None:
    comm = recordings[name].comm
    own = comm[comm["kind"].isin(["send", "recv"])]
    of_stage = {
        (int(rank), stage): int(rank)
        for rank, stage in recordings[name]
        .pipeline_actions[["rank", "stage"]]
        .itertuples(index=False)
    }
    rank_of = {stage: rank for rank, stage in of_stage}
    expected: Counter[Any] = Counter()
    for stage in range(len(rank_of) - 1):
        if rank_of[stage] != rank_of[stage + 1]:  # neighbours on one rank hand over in memory
            for each in range(NUM):
                expected["send", rank_of[stage], stage, each, "forward"] += 1
                expected["recv", rank_of[stage + 1], stage + 1, each, "forward"] += 1
                expected["send", rank_of[stage + 1], stage + 1, each, "backward"] += 1
                expected["recv", rank_of[stage], stage, each, "backward"] += 1
    columns = ["kind", "rank", "stage", "micro_batch", "direction"]
    found = Counter(own[columns].astype(object).itertuples(index=False, name=None))
    assert found == expected
    assert (own["phase"].astype(str) == own["direction"].astype(str)).all()


@pytest.mark.parametrize("name", CHUNKS)
def test_every_computation_is_recorded_once(name: str, recordings: dict[str, Frames]) -> None:
    table = recordings[name].pipeline_actions
    of = {
        kind: set(rows[["stage", "micro_batch"]].itertuples(index=False, name=None))
        for kind, rows in table.groupby(table["action"].astype(str))
    }
    every = {(stage, each) for stage in set(table["stage"]) for each in range(NUM)}
    assert of["forward"] == every
    split, weights = of.get("backward_input", set()), of.get("backward_weight", set())
    assert split == weights
    assert of.get("backward", set()) | split == every
    assert not of.get("backward", set()) & split
    assert of["loss"] == {(max(table["stage"]), each) for each in range(NUM)}
    assert not table.duplicated(["stage", "micro_batch", "action"]).any()
    has_split = name not in (
        "ScheduleGPipe",
        "Schedule1F1B",
        "ScheduleInterleaved1F1B",
        "ScheduleLoopedBFS",
    )
    assert bool(split) == has_split


@pytest.mark.parametrize("name", CHUNKS)
def test_module_and_phase_are_right_inside_of_stages(
    name: str, recordings: dict[str, Frames]
) -> None:
    comm = recordings[name].comm
    inside = comm[comm["kind"] == "all_reduce"]
    first = recordings[name].pipeline_actions.groupby("rank")["stage"].min().to_dict()
    prefix = [
        "" if first[rank] == stage else f"stage{stage}."
        for rank, stage in zip(inside["rank"], inside["stage"], strict=True)
    ]
    assert inside["module"].astype(str).tolist() == [f"{each}inner" for each in prefix]
    assert (inside["phase"].astype(str) == inside["direction"].astype(str)).all()
    num_stages = recordings[name].pipeline_actions["stage"].nunique()
    assert Counter(inside["direction"].astype(str)) == {
        "forward": NUM * num_stages,
        "backward": NUM * num_stages,
    }


def test_methods_are_restored_after_the_recording() -> None:
    classes = pipeline_classes(schedules)

    def found() -> list[Any]:
        return [getattr(classes[owner], name) for owner, name in METHODS]

    before = found()
    with commtrace.record():
        assert all(ours is not each for ours, each in zip(found(), before, strict=True))
    assert found() == before


def test_a_recording_waits_for_the_package_and_stops_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.pipelining.schedules")
    before = list(sys.meta_path)
    with commtrace.record():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def marked(folder: str) -> None:
    """Two stages by hand: a micro-batch forward and backward."""
    rank = dist.get_rank()
    with commtrace.record() as recording:
        with commtrace.pipeline_action(stage=rank, micro_batch=0, action="forward"):
            if rank == 1:
                dist.recv(torch.empty(4), 0)
            torch.ones(8) @ torch.ones(8)
            if rank == 0:
                dist.send(torch.ones(4), 1)
        with commtrace.pipeline_action(stage=rank, micro_batch=0, action="backward"):
            if rank == 0:
                dist.recv(torch.empty(4), 1)
            else:
                dist.send(torch.ones(4), 0)
        dist.barrier()
    recording.save(Path(folder) / f"{rank}.json")


def test_marks_state_the_actions_of_a_schedule_of_ones_own() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_threads(marked, NUM_RANKS, folder)
        frames = load(read_parts(sorted(Path(folder).glob("*.json"))))
    actions = frames.pipeline_actions[["rank", "stage", "micro_batch", "action"]]
    assert set(actions.astype(object).itertuples(index=False, name=None)) == {
        (rank, rank, 0, action) for rank in range(2) for action in ("forward", "backward")
    }
    columns = ["kind", "rank", "stage", "micro_batch", "direction"]
    assert set(frames.comm[columns].astype(object).itertuples(index=False, name=None)) == {
        ("send", 0, 0, 0, "forward"),
        ("recv", 1, 1, 0, "forward"),
        ("send", 1, 1, 0, "backward"),
        ("recv", 0, 0, 0, "backward"),
        ("barrier", 0, -1, -1, ""),
        ("barrier", 1, -1, -1, ""),
    }


@pytest.mark.parametrize(
    ("stage", "micro_batch", "action"),
    [(-1, 0, "forward"), (0, True, "forward"), (0, 0, "sideways")],
)
def test_a_wrong_mark_is_an_error(stage: int, micro_batch: int, action: str) -> None:
    with (
        pytest.raises(UsageError, match="cannot record an action of a pipeline stage"),
        commtrace.pipeline_action(stage=stage, micro_batch=micro_batch, action=action),
    ):
        pass


def test_an_action_that_raises_is_not_recorded() -> None:
    with commtrace.record() as recording:
        with (
            pytest.raises(RuntimeError, match="broken"),
            commtrace.pipeline_action(stage=0, micro_batch=0, action="forward"),
        ):
            raise RuntimeError("broken")
        with commtrace.pipeline_action(stage=0, micro_batch=1, action="forward"):
            pass
    assert recording.frames().pipeline_actions["micro_batch"].tolist() == [1]


def test_the_first_actions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "MAX_ACTIONS", 3)
    with commtrace.record() as recording:
        for number in range(5):
            with commtrace.pipeline_action(stage=0, micro_batch=number, action="forward"):
                pass
    assert recording.frames().pipeline_actions["micro_batch"].tolist() == [0, 1, 2]
