import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accumulate import Accumulator


class Crops(Dataset):
    """Crops of images; small objects give no crop, which differs with the epoch's jitter."""

    def __init__(self, rank, images=48):
        self.rank, self.images = rank, images
        self.set_epoch(0)

    def set_epoch(self, epoch):
        g = torch.Generator().manual_seed(10 * epoch + self.rank)
        self.items = torch.randn(self.images, 3, 6, 6, generator=g)
        self.labels = torch.randint(0, 3, (self.images,), generator=g)
        if epoch == 2 and self.rank == 1:
            extra = torch.randn(3, 3, 6, 6, generator=g)
            self.items = torch.cat([self.items, extra])
            self.labels = torch.cat([self.labels, torch.zeros(3, dtype=torch.long)])

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.labels[i]


def build_model():
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                         nn.Flatten(), nn.Linear(24, 3))


@torch.no_grad()
def evaluate(model, rank):
    model.eval()
    g = torch.Generator().manual_seed(900 + rank)
    x, y = torch.randn(16, 3, 6, 6, generator=g), torch.randint(0, 3, (16,), generator=g)
    right = (model(x).argmax(1) == y).float().sum().reshape(1)
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, right)
    model.train()
    return torch.cat(parts).sum().item() / (16 * len(parts))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Crops(rank)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    acc = Accumulator(model, optimizer, window=4)
    for epoch in range(5):
        data.set_epoch(epoch)
        loader = DataLoader(data, batch_size=4, shuffle=True)
        for x, y in loader:
            acc.backward(nn.functional.cross_entropy(model(x), y))
        acc.finish()
        accuracy = evaluate(model, rank)
        if rank == 0:
            print(f"epoch {epoch}: {acc.steps} steps, accuracy {accuracy:.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
