import torch
import torch.distributed as dist
from torch import nn

from moe import MoE


class Net(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.inp = nn.Linear(4, dim)
        self.moe = MoE(dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, x, keep):
        return self.out(self.moe(torch.relu(self.inp(x)), keep))


class Corpus:
    """Packed rows with padding."""

    def __init__(self, rank, steps):
        self.gen = torch.Generator().manual_seed(100 + rank)
        self.lengths = [10, 7, 9, 4, 8, 6, 9, 5]
        if rank == 2:
            self.lengths[4] = 0
        self.steps = steps

    def __iter__(self):
        for step in range(self.steps):
            x = torch.randn(10, 4, generator=self.gen)
            keep = torch.arange(10) < self.lengths[step % len(self.lengths)]
            yield x, x.sum(1, keepdim=True), keep


def shared_grads(model):
    flat = [p.grad.flatten() for n, p in model.named_parameters() if ".expert" not in n and p.grad is not None]
    joined = torch.cat(flat)
    dist.all_reduce(joined)
    return joined.norm()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y, keep) in enumerate(Corpus(dist.get_rank(), 8)):
        loss = (model(x, keep) - y).pow(2).mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        norm = shared_grads(model)
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item(), norm.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
