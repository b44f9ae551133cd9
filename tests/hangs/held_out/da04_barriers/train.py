import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from data import Readings
from sync import StepSync

STEPS = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 10)
        self.outer = nn.Linear(10, 5)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = DistributedDataParallel(Net())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    readings = Readings(rank)
    sync = StepSync()
    for step in range(STEPS):
        x, rejected = readings.clean(step)
        sync.note(rejected)
        loss = (net(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sync.wait()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
