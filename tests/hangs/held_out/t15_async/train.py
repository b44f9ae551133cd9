import asyncio

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Feed


class Learner:
    def __init__(self):
        torch.manual_seed(0)
        self.net = DDP(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 7)))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def update(self, values, labels):
        loss = nn.functional.cross_entropy(self.net(values.unsqueeze(1)), labels)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


async def train(steps):
    learner = Learner()
    feed = Feed(dist.get_rank())
    feed.start()
    for step in range(steps):
        values, labels = await feed.batch()
        loss = learner.update(values, labels)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: {loss:.3f}", flush=True)
    feed.task.cancel()
    return loss


def main():
    dist.init_process_group("gloo")
    loss = torch.tensor(asyncio.run(train(40)))
    dist.reduce(loss, dst=0)
    if dist.get_rank() == 0:
        print("mean", loss.item() / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
