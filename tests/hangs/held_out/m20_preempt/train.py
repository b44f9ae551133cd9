"""Training that saves and ends when the scheduler sends a warning."""
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from scheduler import NodeAgent, Warning_


def save(model, opt, step, folder):
    state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, sum(v.numel() for v in state["model"].values()))
    if dist.get_rank() == 0:
        torch.save(state, os.path.join(folder, f"step{step}.pt"))
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = tempfile.mkdtemp(prefix="preempt_")
    notice = Warning_()
    agent = NodeAgent(node=rank // 2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 36), nn.ReLU(), nn.Linear(36, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    step = 0
    while step < 60 and not notice.seen:
        x = torch.randn(16, 12, generator=g)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        agent.tick(step)
    save(model, opt, step, folder)
    if rank == 0:
        print("saved at", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
