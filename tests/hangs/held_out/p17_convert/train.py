import torch
import torch.distributed as dist
import torch.nn as nn

from export import Exporter


class Matcher(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.left = nn.Linear(dim, 96)
        self.right = nn.Linear(dim, 96)

    def forward(self, a, b):
        return self.left(a) @ self.right(b).t()


class Averager:
    """Local steps, and an average of the weights at the end of an epoch."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def __call__(self):
        for p in self.model.parameters():
            dist.all_reduce(p)
            p /= dist.get_world_size()


def local_epoch(model, optimizer, generator, batches=8):
    for _ in range(batches):
        a = torch.randn(16, 64, generator=generator)
        b = a + 0.3 * torch.randn(16, 64, generator=generator)
        loss = nn.functional.cross_entropy(model(a, b), torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Matcher()
    average = Averager(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    exporter = Exporter() if rank == 0 else None
    for epoch in range(3):
        loss = local_epoch(model, optimizer, generator)
        average()
        if exporter is not None:
            rows = exporter(model, epoch)
            print(f"epoch {epoch}: {loss:.3f}, {rows} rows", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
