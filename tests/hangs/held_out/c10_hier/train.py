import torch
import torch.distributed as dist
from torch import nn

from topology import Reducer, Topology

DIM, STEPS, ACCUM = 6, 10, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.body = nn.Sequential(nn.Linear(DIM, 12), nn.Softplus())
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        return self.head(self.body(x))


def batches(rank):
    gen = torch.Generator().manual_seed(rank)
    for i in range(STEPS * ACCUM):
        x = torch.randn(8, DIM, generator=gen)
        y = x.sum(1, keepdim=True)
        if rank == 3 and i == 9:
            y[5] = float("nan")     # a gap of the sensor
        yield x, y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = Net()
    reducer = Reducer(Topology(local=2), net.parameters())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    stream = batches(rank)
    for step in range(STEPS):
        with reducer.synchronized():
            for _ in range(ACCUM):
                x, y = next(stream)
                loss = (net(x) - y).pow(2).mean() / ACCUM
                loss.backward()
        opt.step()
        shown = loss.detach().nan_to_num()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item():.4f} skipped {reducer.skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
