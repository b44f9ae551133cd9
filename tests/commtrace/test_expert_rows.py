"""Rows of experts that a program states are recorded with its all-to-alls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze.experts.expert_load import expert_load
from commtrace.errors import UsageError
from dtensor_core import init_device_mesh
from dtensor_core.parallel import ExpertParallel, parallelize_module
from dtensor_core.testing import fake_world, run_threads


def send(splits: list[int]) -> None:
    rows = sum(splits)
    dist.all_to_all_single(torch.empty(rows, 2), torch.ones(rows, 2), splits, splits)


def test_all_to_alls_with_splits_in_the_body_have_the_rows() -> None:
    with fake_world(2), commtrace.record(detail="collective") as recording:
        with commtrace.experts([1, 2]):
            send([1, 2])
            with commtrace.experts([2, 0, 1, 0]):
                send([2, 1])
            send([1, 2])
            dist.all_reduce(torch.ones(2))
        send([1, 2])
    comm = recording.frames().comm
    assert comm["expert_rows"].tolist() == ["1,2", "2,0,1,0", "1,2", "", ""]


def test_an_error_in_the_body_ends_the_statement() -> None:
    with fake_world(2), commtrace.record(detail="collective") as recording:
        with pytest.raises(ZeroDivisionError), commtrace.experts([1, 2]):
            raise ZeroDivisionError
        send([1, 2])
    assert recording.frames().comm["expert_rows"].tolist() == [""]


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "3"])
def test_what_is_no_number_of_rows_is_an_error(wrong: Any) -> None:
    with pytest.raises(UsageError) as caught, commtrace.experts([1, wrong]):
        pass
    assert str(caught.value) == (
        "cannot state the rows of experts\n"
        f"  found: {wrong!r} among them\n"
        "  why: each expert is sent a number of rows, an integer that is not negative\n"
        "  try: a list of integers, such as counts.tolist()"
    )


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return tokens * self.weight.repeat_interleave(counts, 0)


def test_expert_parallel_states_the_rows_of_its_experts() -> None:
    counts = torch.tensor([[3, 0, 1, 2], [1, 1, 4, 0]])

    def train() -> None:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
        model = parallelize_module(Experts(), mesh, ExpertParallel())
        mine = counts[dist.get_rank()]
        model(torch.ones(int(mine.sum()), 2), mine).sum().backward()

    with commtrace.record(detail="collective") as recording:
        run_threads(train, 2)
    frames = recording.frames()
    table = expert_load(frames)
    forward = table[(table["phase"] == "forward") & (table["expert"] >= 0)]
    columns = ["mesh_axis", "direction", "rank", "expert", "num_rows"]
    assert list(forward[columns].itertuples(index=False, name=None)) == [
        ("ep", "dispatch", 0, 0, 4),
        ("ep", "dispatch", 0, 1, 1),
        ("ep", "dispatch", 1, 2, 5),
        ("ep", "dispatch", 1, 3, 2),
    ]
