import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Feed

FILES = [12, 12, 7, 12]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.GELU())
        self.outer = nn.Linear(12, 6)

    def forward(self, x):
        return self.outer(self.inner(x))


def smallest(count):
    value = torch.tensor([count])
    dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return int(value)


def train_epoch(net, optimizer, blocks):
    steps = smallest(len(blocks))
    loss = torch.zeros(())
    for x in blocks[:steps]:
        loss = nn.functional.l1_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps, loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(Encoder())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    feed = Feed(rank, FILES[rank])
    for epoch in range(4):
        blocks = feed.epoch(epoch)
        steps, loss = train_epoch(net, optimizer, blocks)
        if rank == 0:
            print("epoch", epoch, "steps", steps, "loss", round(loss, 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
