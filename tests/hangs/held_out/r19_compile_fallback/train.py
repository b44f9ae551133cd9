import torch
import torch.distributed as dist
from torch import nn

from layers import SyncedNorm
from speed import accelerate_model


class Net(nn.Module):
    def __init__(self, features=10):
        super().__init__()
        self.inp = nn.Linear(features, 16)
        self.norm = SyncedNorm(16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.norm(self.inp(x)).relu())


def broadcast_parameters(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


def reduce_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Net()
    broadcast_parameters(model)
    forward = accelerate_model(model, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = torch.randn(16, 10, generator=generator)
        loss = nn.functional.mse_loss(forward(x), x.norm(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
