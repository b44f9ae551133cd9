import torch
import torch.distributed as dist
from torch import nn

from data import batches
from metrics import MetricsThread

EPOCHS = 3


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train_step(model, x, y, world):
    logits = model(x)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p -= 0.2 * p.grad / world
    hits = int(((logits > 0) & (y > 0)).sum())
    return {"loss": loss.item(), "hits": hits, "positives": int(y.sum())}


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    metrics = MetricsThread(dist.new_group())
    metrics.start()
    model = Classifier()
    for epoch in range(EPOCHS):
        for x, y in batches(rank, epoch):
            metrics.submit(train_step(model, x, y, world))
        history = metrics.flush()
        if rank == 0:
            print(f"epoch {epoch} loss {history[-1][0]:.4f} recall {history[-1][1]:.3f}", flush=True)
    metrics.submit(None)
    metrics.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
