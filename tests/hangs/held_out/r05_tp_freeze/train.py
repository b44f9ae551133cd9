import torch
import torch.distributed as dist
from torch import nn

from freeze import GradualFreezer
from parallel import ParallelMLP

DIM, HIDDEN = 8, 24


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(rank)
        self.blocks = nn.ModuleList(ParallelMLP(DIM, HIDDEN) for _ in range(3))
        if rank == 2:
            # this shard was trained before and is nearly saturated
            nn.init.constant_(self.blocks[0].up.bias, -20.0)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batch(step):
    x = torch.randn(16, DIM, generator=torch.Generator().manual_seed(step))
    return x, x.flip(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = Net(rank)
    freezer = GradualFreezer(net.blocks, threshold=1e-4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for step in range(1, 21):
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            freezer.update()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    norm = torch.stack([p.detach().norm() ** 2 for p in net.parameters()]).sum()
    dist.reduce(norm, 0)
    if rank == 0:
        print("norm of the weights", norm.sqrt().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
