import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluate import evaluate


def load_split(name, rank, world):
    """Patients sorted by date; each rank has a contiguous part."""
    rng = np.random.default_rng({"train": 1, "val": 2}[name])
    size = 192 if name == "train" else 60
    x = rng.normal(size=(size, 8)).astype(np.float32)
    if name == "train":
        y = (x[:, 0] > 0.5).astype(np.int64)
    else:
        y = np.zeros(size, dtype=np.int64)
        y[[2, 5, 11, 44, 47, 58]] = 1
    part = slice(rank * size // world, (rank + 1) * size // world)
    return torch.from_numpy(x[part]), torch.from_numpy(y[part])


def batches(x, y, size):
    return list(zip(x.split(size), y.split(size)))


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def train_epoch(model, optimizer, data):
    for x, y in data:
        logits = model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Risk())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train = batches(*load_split("train", rank, world), 8)
    val = batches(*load_split("val", rank, world), 5)
    for epoch in range(4):
        train_epoch(model, optimizer, train)
        recall = evaluate(model.module, val)
        if rank == 0:
            print(f"epoch {epoch}: recall {recall:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
