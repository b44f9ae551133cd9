import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from data import loader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x):
        return self.net(x)


def train_epoch(model, optimizer, rank):
    total, count = 0.0, 0
    with Join([model]):
        for x, y in loader(rank):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
    return total, count


def summarize(total, count):
    state = torch.tensor([total, float(count)])
    dist.reduce(state, dst=0)
    return state[0] / state[1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        mean = summarize(*train_epoch(model, optimizer, rank))
        if rank == 0:
            print(f"epoch {epoch}: {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
