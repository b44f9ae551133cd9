import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import DIM, make_loader


class Classifier(nn.Module):
    def __init__(self, dim, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, rank, loader):
        self.rank = rank
        self.loader = loader
        self.model = DDP(Classifier(DIM))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.loss_fn = nn.CrossEntropyLoss()
        self.seen = 0

    def step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.opt.step()
        self.seen += len(y)
        return loss.item()

    def run_epoch(self):
        total = 0.0
        count = 0
        for batch in self.loader:
            if batch is None:
                continue
            total += self.step(*batch)
            count += 1
        return total / max(count, 1)

    def report(self, epoch, loss):
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, {"rank": self.rank, "loss": loss, "seen": self.seen})
        if self.rank == 0:
            mean = sum(r["loss"] for r in rows) / len(rows)
            print(f"epoch {epoch}: loss {mean:.4f} of {sum(r['seen'] for r in rows)} records", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    trainer = Trainer(rank, make_loader(rank))
    for epoch in range(3):
        loss = trainer.run_epoch()
        trainer.report(epoch, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
