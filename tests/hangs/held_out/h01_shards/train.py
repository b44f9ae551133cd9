"""Binary classifier over record shards, DDP."""
import argparse
import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import build_loader

log = logging.getLogger("train")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=16)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--epochs", type=int, default=2)
    return p.parse_args()


def make_model(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))


def run_epoch(model, loader, opt, loss_fn):
    total, count = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x).squeeze(-1), y)
        loss.backward()
        opt.step()
        total += loss.item()
        count += 1
    return total / max(count, 1), count


def summarize(epoch, mean, count):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, {"mean": mean, "batches": count})
    if dist.get_rank() == 0:
        log.info("epoch %d: %s", epoch, rows)


def main():
    args = parse()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(make_model(args.width))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        loader = build_loader(rank, world, args.width, args.batch)
        mean, count = run_epoch(model, loader, opt, loss_fn)
        summarize(epoch, mean, count)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
