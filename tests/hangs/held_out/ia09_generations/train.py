import torch
import torch.distributed as dist
from torch import nn

from cluster import Cluster
from data import Shard


class Job:
    def __init__(self, cluster):
        torch.manual_seed(0)
        self.cluster = cluster
        self.model = nn.Linear(3, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def load(self, phase, sizes=(10, 5)):
        shard = Shard(self.cluster.rank, phase)
        for size in sizes:
            try:
                return shard.blocks(size)
            except RuntimeError as error:
                print("block size", size, "does not fit:", error, flush=True)
                self.cluster.generation += 1
        raise RuntimeError("no block size fits")

    def step(self, block):
        loss = (self.model(block) - block.sum(1, keepdim=True)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()
        return loss.item()

    def phase(self, number):
        self.cluster.join()
        blocks = self.load(number)
        count = torch.tensor(blocks.shape[0])
        dist.all_reduce(count, dist.ReduceOp.MIN)
        loss = 0.0
        for block in blocks[: count.item()]:
            loss = self.step(block)
        dist.barrier()
        self.cluster.leave()
        return loss


def main():
    job = Job(Cluster())
    for number in range(4):
        loss = job.phase(number)
        print(f"rank {job.cluster.rank} phase {number} loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
