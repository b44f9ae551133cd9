from collections import defaultdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Detector, fake_batch


class Metrics:
    """Has a group of its own, so that it doesn't mix with the reducer."""

    def __init__(self):
        self.group = dist.new_group()
        self.sums = defaultdict(float)

    def add(self, losses):
        for k, v in losses.items():
            self.sums[k] += float(v)

    def publish(self, step):
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, dict(self.sums), group=self.group)
        self.sums.clear()
        if dist.get_rank() == 0:
            print("step", step, [{k: round(v, 2) for k, v in r.items()} for r in rows], flush=True)


def step_once(model, opt, batch):
    losses = model(*batch)
    total = sum(losses.values())
    opt.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    return losses


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(Detector())
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    metrics = Metrics()
    for step in range(30):
        losses = step_once(model, opt, fake_batch(rank, step))
        metrics.add(losses)
        metrics.publish(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
