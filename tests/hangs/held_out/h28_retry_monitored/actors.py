"""Rank 0 learns, the others act with the latest weights."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import snapshots


class Learner:
    def __init__(self, net):
        self.net = net

    def run(self, generation, experience):
        x, y = experience[:, :6], experience[:, 6:]
        loss = nn.functional.mse_loss(self.net(x), y)
        self.net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in self.net.parameters():
                p -= 0.05 * p.grad
        snapshots.publish(self.net.state_dict(), generation)
        return loss.item()


class Actor:
    def __init__(self, net, rank):
        self.net, self.rank = net, rank
        self.pinned = None

    def refresh(self, generation):
        if generation >= 4 and self.rank == 2:
            self.pinned = "best.pt"  # this actor plays the best network
        self.net.load_state_dict(snapshots.load(generation, self.pinned))

    @torch.no_grad()
    def play(self, generation):
        g = torch.Generator().manual_seed(self.rank * 31 + generation)
        x = torch.randn(10, 6, generator=g)
        return torch.cat([x, self.net(x).tanh()], 1)


def collect(mine, rank):
    parts = [torch.empty(10, 8) for _ in range(dist.get_world_size())] if rank == 0 else None
    dist.gather(mine, parts, dst=0)
    return torch.cat(parts[1:]) if rank == 0 else None


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    snapshots.agree_on_folder(rank)
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    learner, actor = Learner(net), Actor(net, rank)
    for generation in range(12):
        experience = collect(actor.play(generation), rank)
        if rank == 0:
            print("generation", generation, learner.run(generation, experience), flush=True)
        else:
            actor.refresh(generation)
        dist.monitored_barrier(timeout=timedelta(seconds=900))
    if rank == 0:
        snapshots.remove()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
