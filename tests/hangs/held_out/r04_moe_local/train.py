import torch
import torch.distributed as dist
from torch import nn

from moe import MoE

DIM = 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(DIM, DIM)
        self.moe = MoE(DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x):
        return self.out(self.moe(self.inp(x)))

    def shared(self):
        for name, parameter in self.named_parameters():
            if "expert" not in name:
                yield parameter


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    if rank == 1 and step == 5:
        # a long document of one topic: its tokens are nearly equal
        topic = torch.zeros(DIM)
        topic[1] = 6.0
        return topic + 0.01 * torch.randn(16, DIM, generator=generator)
    return 2 * torch.randn(16, DIM, generator=generator)


def sync(model):
    for parameter in model.shared():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        model.inp.weight.copy_(torch.eye(DIM))
        model.moe.gate.weight.copy_(torch.eye(dist.get_world_size(), DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(12):
        x = batch(step, rank)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
