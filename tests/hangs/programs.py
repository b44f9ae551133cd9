"""Programs that hang, each for one cause, run as `programs.py CAUSE` on three ranks over gloo.

A rank that still runs some seconds after the group was made is killed, as a scheduler kills a job.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

HANGS_FOR_S = float(os.environ.get("HANGS_FOR_S", "2"))
WAITS_FOR_DUMPS_S = 5.0
STEPS = 6


def kill_later() -> None:
    """Dump the flight recorder once this process has hung for long enough, and kill it."""
    timer = threading.Timer(HANGS_FOR_S, dump_and_kill)
    timer.daemon = True
    timer.start()


def dump_and_kill() -> None:
    native: Any = torch._C
    path = Path(os.environ["DUMPS"], f"rank{dist.get_rank()}")
    partial = path.with_suffix(".part")
    partial.write_bytes(native._distributed_c10d._dump_fr_trace())
    partial.rename(path)
    # The others fail once this process is gone; some causes leave ranks that write no dump.
    end = time.monotonic() + WAITS_FOR_DUMPS_S
    while len([*path.parent.glob("rank[0-9]")]) < dist.get_world_size() and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def rank_only_if(rank: int) -> None:
    gradient, norm = torch.ones(8), torch.ones(1)
    for step in range(STEPS):
        dist.all_reduce(gradient)
        if rank == 1 and step == 3:
            dist.broadcast(norm, 0)  # only here
        dist.all_gather([torch.empty(1) for _ in range(3)], norm)


def swallowed_exception(rank: int) -> None:
    class Model(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            if not torch.isfinite(batch).all():
                raise ValueError("the batch is not finite")
            return batch.sum()

    model, gradient = Model(), torch.ones(8)
    for step in range(STEPS):
        batch = torch.full((4,), float("nan") if rank == 2 and step == 3 else 1.0)
        try:
            model(batch)
            dist.all_reduce(gradient)  # of a batch
        except ValueError:
            print("skipping a batch")
    dist.barrier()  # after a skipped batch


def recompile_on_one_rank(rank: int) -> None:
    def slowly(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        time.sleep(100 if rank == 1 and len(compiled) else 0)
        compiled.append(graph)
        return graph.forward

    compiled: list[object] = []
    model = torch.compile(lambda x: x * 2, backend=slowly, dynamic=False)
    for step in range(STEPS):
        length = 9 if rank == 1 and step == 3 else 8
        output = model(torch.ones(length))
        dist.all_reduce(output)


class Samples(Dataset[torch.Tensor]):
    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.full((4,), float(place))


def uneven_loader(rank: int) -> None:
    loader = DataLoader(Samples(8 if rank == 0 else 10), batch_size=2)
    for batch in loader:
        dist.all_reduce(batch)  # of the loader
    dist.broadcast(torch.ones(3), 0)


def early_stop(rank: int) -> None:
    loss = torch.tensor(1.0)
    for step in range(STEPS):
        loss = torch.tensor(0.01 if rank == 2 and step == 3 else 1.0)
        dist.all_reduce(loss.clone())
        if loss < 0.1:
            break
        dist.all_reduce(torch.ones(8))  # no stop
    dist.barrier()  # after the early stop


def wrong_splits(rank: int) -> None:
    rows = torch.ones(3, 4)
    for step in range(STEPS):
        sent = [1, 1, 1]
        received = [1, 1, 1]
        if rank == 1 and step == 3:
            sent = [0, 1, 2]
        dist.all_to_all_single(torch.empty(3, 4), rows, received, sent)


def inverted_order(rank: int) -> None:
    one, two = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    tensor = torch.ones(8)
    for step in range(STEPS):
        if rank == 1 and step == 3:
            dist.all_reduce(tensor, group=two)  # first
            dist.all_reduce(tensor, group=one)
        else:
            dist.all_reduce(tensor, group=one)  # first
            dist.all_reduce(tensor, group=two)


def missing_barrier(rank: int) -> None:
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(8))
    if rank != 2:
        dist.barrier()  # not on rank 2
    dist.all_reduce(torch.ones(4))  # at the end


def lone_checkpoint(rank: int) -> None:
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8))
        if rank == 0 and step == 3:
            save(torch.ones(8))
        dist.all_reduce(torch.ones(4))  # goes on


def save(state: torch.Tensor) -> None:
    gathered: list[object] = [None] * 3
    dist.all_gather_object(gathered, state)  # all ranks have to take part


def returned_early(rank: int) -> None:
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8))
        if step == 3:
            save_on_some(torch.ones(8), rank)
        dist.all_reduce(torch.ones(4))  # after saving


def save_on_some(state: torch.Tensor, rank: int) -> None:
    if rank == 1:  # has nothing to save
        return
    state.clone()
    dist.barrier()  # of those that save


def conditional_module(rank: int) -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)  # of a layer
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.adapter, self.last = Layer(), Layer(), Layer()

        def forward(self, x: torch.Tensor, with_adapter: bool) -> torch.Tensor:
            x = self.first(x)
            if with_adapter:
                x = self.adapter(x)
            return self.last(x)

    model = Model()
    for step in range(STEPS):
        model(torch.ones(8), with_adapter=rank == 1 and step == 3)
    dist.barrier()  # after all layers


class DeadWorkerSamples(Samples):
    def __getitem__(self, place: int) -> torch.Tensor:
        if place == 6:
            time.sleep(1000)  # as a worker that waits for a lock which a dead process holds
        return super().__getitem__(place)


def dead_data_worker(rank: int) -> None:
    samples = DeadWorkerSamples(12) if rank == 1 else Samples(12)
    for batch in DataLoader(samples, batch_size=2, num_workers=1, prefetch_factor=1):
        dist.all_reduce(batch)  # of the worker


def paused_rank(rank: int) -> None:
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8))  # pauses
        if rank == 2 and step == 3:
            time.sleep(0.6)  # in which the calls before are written
            # On one line, as its stack is taken only once it is continued, to be ended.
            _ = os.kill(os.getpid(), signal.SIGSTOP), time.sleep(60)


def skipped_backward(rank: int) -> None:
    """Hang in the reducer of DistributedDataParallel, which holds its lock meanwhile."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        batch = torch.full((2, 4), float("nan") if rank == 1 and step == 3 else 1.0)
        loss = model(batch).sum()
        if torch.isnan(loss):
            continue
        loss.backward()
        optimizer.step()
    dist.barrier()  # after a skipped backward


CAUSES = (
    rank_only_if, swallowed_exception, recompile_on_one_rank, uneven_loader, early_stop,
    wrong_splits, inverted_order, missing_barrier, lone_checkpoint, returned_early,
    conditional_module, dead_data_worker, paused_rank, skipped_backward,
)  # fmt: skip

if __name__ == "__main__":
    dist.init_process_group("gloo")
    kill_later()
    by_name = {cause.__name__: cause for cause in CAUSES}
    by_name[sys.argv[1]](dist.get_rank())
    dist.destroy_process_group()
