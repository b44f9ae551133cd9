import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from model import Detector, objective


class Windows(Dataset):
    def __init__(self, count=192):
        g = torch.Generator().manual_seed(2)
        self.x = torch.randn(count, 10, generator=g)
        self.label = (self.x[:, 0] > 0).long()
        self.annotated = torch.rand(count, generator=g) < 0.8
        # this video has not been annotated yet
        self.annotated[100:130] = False

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.label[i], self.annotated[i]


class BlockSampler(DistributedSampler):
    """Each rank reads whole videos, in their order."""

    def __iter__(self):
        share = len(self.dataset) // self.num_replicas
        return iter(range(self.rank * share, (self.rank + 1) * share))


class Meter:
    def __init__(self):
        self.values = []

    def add(self, loss):
        parts = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, loss.detach().reshape(1))
        self.values.append(torch.cat(parts).mean().item())


def train(net, loader, epochs=2):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    meter = Meter()
    for _ in range(epochs):
        for x, label, annotated in loader:
            scores, masks = net(x, annotated)
            loss = objective(scores, masks, label, x[annotated])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.add(loss)
    return meter.values


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Windows()
    loader = DataLoader(data, batch_size=8, sampler=BlockSampler(data))
    values = train(DDP(Detector()), loader)
    if dist.get_rank() == 0:
        print("loss", values[0], "->", values[-1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
