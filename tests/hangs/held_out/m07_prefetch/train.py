"""Image-like classifier fed by a prefetching thread."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Prefetcher, shard_names


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 5)
        self.head = nn.Linear(6 * 28, 4)

    def forward(self, x):
        return self.head(self.conv(x[:, None]).relu().flatten(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = 0
    for epoch in range(2):
        feed = Prefetcher(shard_names(rank, world, epoch), depth=2)
        for x, y in feed:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
        total = torch.tensor([float(seen)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} samples {int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
