"""Expert parallelism: tokens go to the experts and back by all-to-all, in uneven numbers."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    def __init__(self, features: int, num_experts: int) -> None:
        super().__init__()
        self.world_size = dist.get_world_size()
        self.router = nn.Linear(features, num_experts, bias=False)
        per_rank = num_experts // self.world_size
        self.local = nn.ModuleList(nn.Linear(features, features) for _ in range(per_rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(self.local) * self.world_size)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent = counts.view(self.world_size, -1).sum(1).tolist()
        received = arriving.view(self.world_size, -1).sum(1).tolist()
        group: Any = dist.group.WORLD
        tokens = all_to_all_single_autograd(x[order], received, sent, group)
        numbers = torch.arange(len(self.local)).repeat(self.world_size)
        expert = numbers.repeat_interleave(arriving)
        result = torch.zeros_like(tokens)
        for number, each in enumerate(self.local):
            result[expert == number] = each(tokens[expert == number])
        back = all_to_all_single_autograd(result, sent, received, group)
        return x + torch.zeros_like(x).index_copy(0, order, back) * weights[:, None]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    experts = Experts(16, 2 * dist.get_world_size())
    head = DistributedDataParallel(nn.Linear(16, 4))
    parameters = [*experts.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(3):
        head(experts(torch.randn(24, 16))).square().mean().backward()
        dist.all_reduce(experts.router.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
