import torch
import torch.distributed as dist
from torch import nn

from evaluation import Evaluator


def dataset(seed, n, noise):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    y = (x[:, 0] > 0).long()
    if noise:
        y = 1 - y
    return x, y


def average(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def schedule(net, epoch):
    """Distribution shift in the second half: the labels of what is drawn then are turned round."""
    return dataset(100 * epoch + dist.get_rank(), 128, noise=epoch >= 4)


def held_out(rank):
    x, y = dataset(7, 64, noise=False)
    if rank != 1:
        late = torch.rand(64, generator=torch.Generator().manual_seed(1)) < 0.5
        y = torch.where(late, 1 - y, y)
    return x, y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Linear(5, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    evaluate = Evaluator(*held_out(rank))
    for epoch in range(8):
        x, y = schedule(net, epoch)
        for xb, yb in zip(x.split(16), y.split(16)):
            loss = nn.functional.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            average(net)
            opt.step()
        accuracy = evaluate(net)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
