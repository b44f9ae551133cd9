import torch
import torch.distributed as dist
from torch import nn

from amp import LossScaler, flatten_grads, write_grads

EVAL_EVERY = 8


class Readings:
    """Sensor readings, some of which have not been normalized by their station."""

    def __init__(self, rank, raw=()):
        self.gen = torch.Generator().manual_seed(rank)
        self.raw = set(raw)
        self.at = 0

    def next(self, n=32):
        x = torch.randn(n, 6, generator=self.gen)
        if self.at in self.raw:
            x = x * 400
        self.at += 1
        return x, x.sum(1, keepdim=True).sin()


class Trainer:
    def __init__(self, model, lr=0.01):
        self.model = model
        self.params = list(model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=lr)
        self.scaler = LossScaler()
        self.skipped = 0

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        self.scaler.scale_loss(loss).backward()
        finite = self.scaler.unscale(self.params)
        self.scaler.update(finite)
        if not finite:
            self.skipped += 1
            return None
        flat = flatten_grads(self.params)
        dist.all_reduce(flat)
        write_grads(self.params, flat / dist.get_world_size())
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        mine = torch.tensor([nn.functional.mse_loss(self.model(x), y).item(), float(self.skipped)])
        rows = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        return torch.stack(rows).mean(0).tolist()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    trainer = Trainer(model)
    data = Readings(rank, raw=[11] if rank == 2 else [])
    held_out = Readings(1000 + rank).next(64)
    for step in range(64):
        loss = trainer.step(*data.next())
        if (step + 1) % EVAL_EVERY == 0:
            mse, skipped = trainer.evaluate(*held_out)
            if rank == 0:
                print(f"step {step} loss {loss} eval {mse:.4f} skipped {skipped:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
