"""Local SGD on three workers."""
import torch
import torch.distributed as dist
from torch import nn

from averaging import LocalSGD, checksum
from data import Buckets


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))


def run_epoch(model, optimizer, local, buckets):
    losses = []
    for x, y in buckets.epoch():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        local.step(optimizer, len(x))
        losses.append(loss.item())
    return sum(losses) / len(losses)


def share_report(epoch, loss, model):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (loss, checksum(model)))
    if dist.get_rank() == 0:
        text = ", ".join(f"{loss:.4f} ({total:.3f})" for loss, total in rows)
        print(f"epoch {epoch}: {text}", flush=True)


def main():
    dist.init_process_group("gloo")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    local = LocalSGD(model)
    buckets = Buckets(dist.get_rank())
    for epoch in range(4):
        loss = run_epoch(model, optimizer, local, buckets)
        share_report(epoch, loss, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
