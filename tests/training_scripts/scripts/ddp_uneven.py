"""DistributedDataParallel with inputs of uneven length and unused parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which](x)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(3 + rank):
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    branches = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for step in range(3):
        branches(torch.randn(4, 16), (step + rank) % 3).sum().backward()
        branches.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
