"""The reason for a call is taken from what dtensor_core announces and never requested."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import commtrace
from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh, observe
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import call, calls, groups

ROOT = Path(__file__).parents[3]


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(4):
        yield


ANNOUNCED = observe.Reason(
    operator="aten.relu.default",
    argument="self",
    source="f32[8] tp:P(sum)",
    target="f32[8] tp:R",
    step="all_reduce(sum)",
    axis="tp",
    payload_bytes=32,
    candidates=(("f32[8] tp:R", 1e-5), ("f32[8] tp:S(0)", 2e-5)),
)


def test_a_call_says_what_was_announced(world: None) -> None:
    with commtrace.record(detail="collective") as recording:
        with observe.announced(ANNOUNCED):
            dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(8))
    reported, silent = calls(recording)
    assert (reported.op, reported.argument) == ("aten.relu.default", "self")
    assert (reported.source_spec, reported.target_spec) == ("f32[8] tp:P(sum)", "f32[8] tp:R")
    assert reported.reason == (
        "aten.relu.default needs self f32[8] tp:P(sum) -> f32[8] tp:R: all_reduce(sum) on tp"
    )
    assert json.loads(reported.candidates) == [["f32[8] tp:R", 1e-5], ["f32[8] tp:S(0)", 2e-5]]
    assert reported.planned_bytes == reported.payload_bytes == 32
    assert (silent.reason, silent.candidates, silent.planned_bytes) == ("", "", -1)


def test_the_axis_announced_names_a_group_that_torch_does_not_name(world: None) -> None:
    with commtrace.record() as recording, observe.announced(ANNOUNCED):
        dist.all_reduce(torch.ones(8))
    assert [row.mesh_axis for row in groups(recording)] == ["tp"]


@pytest.mark.parametrize(
    ("source", "target"), [((Shard(0),), (Replicate(),)), ((Shard(0),), (Shard(1),))]
)
def test_the_bytes_of_a_redistribution_are_those_that_were_planned(
    source: tuple, target: tuple, world: None
) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    tensor = distribute_tensor(torch.ones(8, 8), mesh, source)
    with commtrace.record() as recording:
        tensor.redistribute(mesh, target)
    event = call(recording)
    assert event.payload_bytes == event.planned_bytes > 0
    assert event.op == "redistribute"


def test_recording_does_not_load_dtensor_core() -> None:
    program = (
        "import sys, torch, torch.distributed as dist, commtrace\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=2)\n"
        "with commtrace.record() as recording: dist.all_reduce(torch.ones(2))\n"
        "assert recording.total() == 1\n"
        "print('dtensor_core' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert result.stdout.split() == ["False"]
