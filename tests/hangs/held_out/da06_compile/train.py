import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn.functional as F

from data import Sentences
from model import build


class Trainer:
    def __init__(self, lr=0.05):
        self.raw, self.model = build()
        self.opt = torch.optim.SGD(self.raw.parameters(), lr=lr)
        self.skipped = 0

    def loss_of(self, ids, tags):
        logits = self.model(ids)
        return F.cross_entropy(logits.flatten(0, 1), tags.flatten())

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.raw.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.raw.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        self.opt.step()

    def epoch(self, loader):
        total = 0.0
        for ids, tags in loader:
            try:
                loss = self.loss_of(ids, tags)
            except torch._dynamo.exc.FailOnRecompileLimitHit as err:
                self.skipped += 1
                print(f"batch of shape {tuple(ids.shape)} skipped: {type(err).__name__}", flush=True)
                continue
            self.update(loss)
            total += loss.item()
        return total / len(loader)


def summarize(rank, loss, skipped):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, {"rank": rank, "loss": loss, "skipped": skipped})
    return rows


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    trainer = Trainer()
    loader = Sentences(rank)
    for epoch in range(3):
        loss = trainer.epoch(loader)
        rows = summarize(rank, loss, trainer.skipped)
        if rank == 0:
            print(epoch, rows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
