"""Program that was recorded to make the traces in this folder.

commtrace run --nproc 2 --values --values-level module -o tests/gold/run-v14.json \
    tests/gold/record.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import gather
from torch import nn
from torch.utils.data import DataLoader

import commtrace


def main() -> None:
    """Run two steps on every rank: a reduced output, a backward pass, and two waits for a call.

    Then an all-to-all in which rank 0 is sent one row by each rank and rank 1 two, the batches of a
    data loader, a forward pass of two pipeline stages, and a barrier.
    """
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    PartialState(cpu=True)
    with commtrace.record() as recording:
        for _ in range(2):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            with recording.region("report"):
                dist.all_reduce(loss.detach().bfloat16().float())
                work = dist.all_reduce(loss.detach() * 2, async_op=True)
                assert work is not None
                work.wait()
                work.wait()
                gather(loss.detach())
            recording.step()
    own = 1 + dist.get_rank()
    with commtrace.experts([1, 0, 1, 1]):  # two on each rank
        dist.all_to_all_single(torch.empty(2 * own), torch.ones(3), [own, own], [1, 2])
    for _ in DataLoader(torch.ones(4), batch_size=2):
        pass
    with commtrace.pipeline_action(stage=dist.get_rank(), micro_batch=0, action="forward"):
        if dist.get_rank() == 0:
            dist.send(torch.ones(4), 1, tag=5)
        else:
            dist.recv(torch.empty(4), 0, tag=5)
    dist.new_group([0, 1], backend="gloo")
    dist.barrier()
    dist.destroy_process_group()


main()
