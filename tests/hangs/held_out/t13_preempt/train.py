import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from agent import NodeAgent
from preempt import PreemptionGuard


class State:
    def __init__(self):
        torch.manual_seed(0)
        self.net = DDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.step = 0

    def save(self, folder):
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save({"net": self.net.state_dict(), "step": self.step}, os.path.join(folder, "last.pt"))
        dist.barrier()


def one_step(state, g):
    x = torch.randn(16, 4, generator=g)
    loss = (state.net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    state.opt.zero_grad()
    loss.backward()
    state.opt.step()
    state.step += 1
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state, agent = State(), NodeAgent(rank)
    g = torch.Generator().manual_seed(rank)
    with tempfile.TemporaryDirectory() as folder, PreemptionGuard() as guard:
        while state.step < 40:
            loss = one_step(state, g)
            agent.tick(state.step)
            if guard.noticed:
                state.save(folder)
                print("preempted after step", state.step, flush=True)
                sys.exit(0)
            if rank == 0 and state.step % 4 == 0:
                print(state.step, loss, flush=True)
        state.save(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
