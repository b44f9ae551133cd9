from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Feed, RecordStore


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.box = nn.Linear(48, 4)
        self.cls = nn.Linear(48, 3)

    def forward(self, images):
        h = self.trunk(images)
        return self.box(h), self.cls(h)


def criterion(out, boxes, classes, weights):
    pred, logits = out
    per_item = nn.functional.cross_entropy(logits, classes, reduction="none")
    return nn.functional.smooth_l1_loss(pred, boxes) + (weights * per_item).mean()


def run_epoch(model, opt, feed):
    meter = torch.zeros(2)
    for images, boxes, classes, weights in feed:
        opt.zero_grad()
        loss = criterion(model(images), boxes, classes, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        meter += torch.tensor([loss.item(), 1.0])
    return meter


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DDP(Detector())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(5):
        meter = run_epoch(model, opt, Feed(RecordStore(rank, 160), batch_size=8))
        dist.all_reduce(meter)
        if rank == 0:
            print(f"epoch {epoch} loss {(meter[0] / meter[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
