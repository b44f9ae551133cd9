import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import loader
from model import Tower

ACCUMULATE = 4


class Trainer:
    def __init__(self, model, batches):
        self.model = model
        self.batches = batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.updates = 0

    def window(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def train_epoch(self):
        seen, total = 0, 0.0
        for index, (x, y) in enumerate(self.batches):
            is_last = (index + 1) % ACCUMULATE == 0 or index + 1 == len(self.batches)
            with self.window(is_last):
                loss = nn.functional.cross_entropy(self.model(x), y)
                (loss / ACCUMULATE).backward()
            if is_last:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.updates += 1
            seen += len(x)
            total += loss.item() * len(x)
        return total, seen


def summarize(epoch, total, seen):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (total, seen))
    mean = sum(p[0] for p in parts) / sum(p[1] for p in parts)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {mean:.4f}", flush=True)
    return mean


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    trainer = Trainer(DDP(Tower()), loader(dist.get_rank()))
    for epoch in range(5):
        total, seen = trainer.train_epoch()
        summarize(epoch, total, seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
