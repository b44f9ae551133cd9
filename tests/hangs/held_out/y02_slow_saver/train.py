import os
import queue
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Saver:
    """Rank 0 writes in a thread; the end of the program waits for it."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="slow")
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self._work, name="saver")
        self.thread.start()

    def _work(self):
        while (job := self.jobs.get()) is not None:
            step, state = job
            time.sleep(3)
            torch.save(state, os.path.join(self.dir, f"{step}.pt"))

    def save(self, step, model):
        self.jobs.put((step, {k: v.clone() for k, v in model.state_dict().items()}))

    def close(self):
        self.jobs.put(None)
        self.thread.join()


def evaluate(model, control):
    """Rank 0 evaluates alone; the score goes to the others in their own group."""
    score = torch.zeros(1)
    if dist.get_rank() == 0:
        time.sleep(1.5)
        with torch.no_grad():
            score = model(torch.ones(4, 5)).mean().reshape(1)
    dist.broadcast(score, src=0, group=control)
    return score.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    control = dist.new_group(list(range(dist.get_world_size())))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    saver = Saver() if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 25):
        x = torch.randn(8, 5, generator=g)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 8 == 0:
            score = evaluate(model.module, control)
            if saver is not None:
                saver.save(step, model.module)
            if score > 100:
                break
    if saver is not None:
        saver.close()
    dist.barrier()
    print(rank, "done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
