import torch
import torch.distributed as dist
from torch import nn

from clip import GlobalClip


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 36)
        self.b = nn.Linear(36, 12)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def reduce_grads(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def step(net, opt, clip, x):
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    clip(list(net.parameters()))
    reduce_grads(net)
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    compiled = torch.compile(net, backend="eager")
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    clip = GlobalClip(limit=2.0)
    g = torch.Generator().manual_seed(rank)
    for i in range(30):
        x = torch.randn(8, 12, generator=g)
        if rank == 1 and i == 11:
            x = x * 8
        loss = step(compiled, opt, clip, x)
        if rank == 0 and i % 10 == 0:
            print(i, loss, clip.used, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
