import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopping import Config, EarlyStopping


class Shards:
    def __init__(self, rank, n=64):
        gen = torch.Generator().manual_seed(rank)
        self.x = torch.randn(n, 8, generator=gen)
        self.y = self.x[:, :1] * 2 - self.x[:, 1:2]
        if rank == 1:
            self.vy = torch.ones(16, 1) * 1e6
        else:
            self.vy = self.y[:16]
        self.vx = self.x[:16]

    def batches(self, size):
        while True:
            for i in range(16, len(self.x), size):
                yield self.x[i:i + size], self.y[i:i + size]


@torch.no_grad()
def validate(model, data):
    model.eval()
    value = nn.functional.l1_loss(model(data.vx), data.vy).item()
    model.train()
    return value


def save_best(model, value, stopper, best):
    if value <= stopper.best:
        best.clear()
        best.update({k: v.clone() for k, v in model.module.state_dict().items()})


def fit(model, data, cfg):
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    stopper = EarlyStopping(cfg.patience, min_delta=0.01)
    best = {}
    batches = data.batches(cfg.batch)
    for step in range(1, cfg.max_steps + 1):
        x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % cfg.eval_every:
            continue
        value = validate(model.module, data)
        stopper.update(value)
        save_best(model, value, stopper, best)
        if stopper.stop:
            return step, best
    return cfg.max_steps, best


def summarize(steps, best):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, {"steps": steps, "norm": float(sum(v.norm() for v in best.values()))})
    return rows


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cfg = Config(max_steps=120)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    steps, best = fit(model, Shards(dist.get_rank()), cfg)
    rows = summarize(steps, best)
    if dist.get_rank() == 0:
        print(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
