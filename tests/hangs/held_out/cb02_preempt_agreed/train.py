import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from runtime import Preemption, Writer, announce, count_lines


def my_rows(rank):
    count = 90 + 17 * rank
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(rank))


def common_batches(rows, size):
    """All ranks make as many batches as the one with the fewest rows has."""
    count = torch.tensor([len(rows) // size])
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    return [rows[i * size : (i + 1) * size] for i in range(count.item())]


def train(model, batches, writer, preemption, rank, epochs=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for epoch in range(epochs):
        for x in batches:
            loss = (model(x).squeeze(1) - x.sum(dim=1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if loss.item() > 5:
                writer.queue.put((step, "high", loss.item()))
            writer.queue.put((step, loss.item()))
            announce(step, rank)
            if preemption.agreed():
                return step
    return step


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    preemption = Preemption()
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"log-{rank}.txt")
        writer = Writer(path)
        step = train(model, common_batches(my_rows(rank), 8), writer, preemption, rank)
        writer.close()
        lines = count_lines(path) if rank == 0 else 0
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
        dist.barrier()
    print(f"rank {rank}: left at step {step}, {lines} lines", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
