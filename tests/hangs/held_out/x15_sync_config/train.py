import torch
import torch.distributed as dist
import torch.nn as nn

from config import Config, user_file
from sync import synchronize


def make_config(rank):
    config = Config()
    if rank == 0:
        config.load(user_file())
    lr = torch.tensor(config.lr)
    dist.broadcast(lr, src=0)
    config.lr = lr.item()
    return config


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


def train(config, rank):
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=config.lr)
    g = torch.Generator().manual_seed(rank)
    for step in range(config.steps):
        x = torch.randn(16, 6, generator=g)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        opt.zero_grad()
        loss.backward()
        synchronize(model, config.sync)
        opt.step()
        if rank == 0 and step % config.log_every == 0:
            print(step, loss.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(make_config(rank), rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
