"""Programs on two processes that lose overlap, each found with its reason, and one that does not.

How much is lost depends on the machine, so only reasons are compared, and the computations beside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import CATALOG, load
from commtrace.analyze.overlap.overlap_lost.reasons import LOST
from dtensor_core.testing import run_processes

NUM_STEPS = 3
WIDTH = 256
LARGE = 1 << 20


class Layers(nn.Module):
    """Layers that are used in the order of their registration, or in the reverse order."""

    def __init__(self, *, is_reversed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.is_reversed = is_reversed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = list(self.layers)
        for layer in layers[::-1] if self.is_reversed else layers:
            x = layer(x).tanh()
        return x


def work(times: int = 4) -> None:
    """Compute something on which nothing depends."""
    a = torch.ones(WIDTH, WIDTH)
    for _ in range(times):
        a = (a @ a).tanh()


def steps(path: str, one: Callable[[], object]) -> None:
    one()  # connections are made here
    with commtrace.record(path, detail="op") as recording:
        for _ in range(NUM_STEPS):
            one()
            recording.step()


def waiting_at_once(path: str) -> None:
    def one() -> None:
        gradient = torch.ones(LARGE)
        dist.all_reduce(gradient)
        work()
        gradient.mul_(0.5)

    steps(path, one)


def issuing_late(path: str) -> None:
    def one() -> None:
        gradient = torch.ones(LARGE)
        work()
        dist.all_reduce(gradient)
        gradient.mul_(0.5)

    steps(path, one)


def issuing_early(path: str) -> None:
    """The healthy form of both: it is issued at once, and waited for when it is needed."""

    def one() -> None:
        gradient = torch.ones(1 << 14)
        pending: Any = dist.all_reduce(gradient, async_op=True)
        work(40)
        pending.wait()
        gradient.mul_(0.5)

    steps(path, one)


def trained(path: str, model: nn.Module) -> None:
    torch.manual_seed(0)
    batch = torch.randn(256, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def one() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    steps(path, one)


def with_buckets_in_the_wrong_order(path: str) -> None:
    model = Layers(is_reversed=True)
    # It keeps the buckets in their first order.
    model = DistributedDataParallel(model, bucket_cap_mb=0.2, find_unused_parameters=True)
    trained(path, model)


def with_buckets_in_order(path: str) -> None:
    trained(path, DistributedDataParallel(Layers(is_reversed=False), bucket_cap_mb=0.2))


def gathering_late(path: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    model = Layers(is_reversed=False)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    trained(path, fully_shard(model, mesh=mesh))


def receiving_one_after_the_other(path: str) -> None:
    rank = dist.get_rank()

    def one() -> None:
        tensors = [torch.ones(LARGE), torch.ones(LARGE)]
        if rank == 0:
            sends = [dist.isend(each, 1, tag=tag) for tag, each in enumerate(tensors)]
            for each in sends:
                each.wait()
        else:
            for tag, each in enumerate(tensors):
                dist.recv(each, 0, tag=tag)
            torch.add(*tensors)
        dist.barrier()

    steps(path, one)


NUM_ATTEMPTS = 4
"""Recordings of a program; at least one has to show what it does."""


def table_of(program: Callable[[str], None], path: Path) -> pd.DataFrame:
    run_processes(program, 2, str(path), timeout_s=120)
    return CATALOG["overlap_lost"].function(load(path))


def lost(table: pd.DataFrame, **columns: str) -> dict[str, float]:
    """Time that could be hidden, by reason, of the rows with these values."""
    for name, value in columns.items():
        table = table[table[name] == value]
    rows = table[table["reason"].isin([*LOST])]
    return rows.groupby("reason")["could_hide_ns"].sum().to_dict()


@pytest.mark.parametrize(
    ("program", "reason", "columns"),
    [
        (waiting_at_once, "waited_at_once", {"kind": "all_reduce"}),
        (issuing_late, "issued_late", {"kind": "all_reduce"}),
        (with_buckets_in_the_wrong_order, "bucket_order", {"phase": "backward"}),
        (gathering_late, "prefetch_late", {"kind": "all_gather", "phase": "forward"}),
        (receiving_one_after_the_other, "blocked_by_receive", {"kind": "recv"}),
    ],
)
def test_a_program_that_loses_overlap_is_found_with_its_reason(
    program: Callable[[str], None], reason: str, columns: dict[str, str], tmp_path: Path
) -> None:
    # On a busy machine, a rank may be late where another one should be; test_table.py has the same
    # with known times.
    for attempt in range(NUM_ATTEMPTS):
        table = table_of(program, tmp_path / f"run{attempt}.json")
        found = lost(table, **columns)
        if found and max(found, key=lambda name: found[name]) == reason:
            break
    else:
        pytest.fail(f"{reason} was never the largest loss: {found}")
    if reason in ("waited_at_once", "issued_late"):
        behind = {row["behind"] for row in table.to_dict("records") if row["reason"] == reason}
        # The operator that ran for longest depends on the machine.
        assert behind
        assert all(name.startswith("aten.") for name in behind)


@pytest.mark.parametrize("program", [issuing_early, with_buckets_in_order])
def test_a_healthy_program_has_no_finding(program: Callable[[str], None], tmp_path: Path) -> None:
    for attempt in range(NUM_ATTEMPTS):
        path = tmp_path / f"run{attempt}.json"
        table = table_of(program, path)
        rules = set(CATALOG["findings"].function(load(path))["rule"])
        if (table["hidden_ns"] > 0).any() and "overlap_lost" not in rules:
            return
    pytest.fail(f"in each recording, nothing was hidden, or there was a finding: {rules}")
