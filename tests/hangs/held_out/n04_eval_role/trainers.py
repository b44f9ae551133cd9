import torch
import torch.distributed as dist
from torch import nn


class Trainer:
    lr = 0.05

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        torch.manual_seed(rank)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
        self.history = []

    def start(self):
        self.on_setup()
        self.sync_weights()

    def on_setup(self):
        self.dp = dist.new_group(range(self.world - 1))
        self.stats = dist.new_group()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=self.lr)

    @torch.no_grad()
    def sync_weights(self):
        for p in self.model.parameters():
            dist.broadcast(p, src=0)

    def batch(self, step):
        gen = torch.Generator().manual_seed(step * 17 + self.rank)
        x = torch.randn(16, 8, generator=gen)
        return x, x[:, :4].argmax(1)

    def run_round(self, round_, steps=5):
        for i in range(steps):
            x, y = self.batch(round_ * steps + i)
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad, group=self.dp)
                p.grad /= self.world - 1
            self.opt.step()
        self.history.append(loss.item())

    def end_round(self):
        self.sync_weights()


class Evaluator(Trainer):
    def on_setup(self):
        self.held_out = [super(Evaluator, self).batch(10_000 + i) for i in range(4)]

    @torch.no_grad()
    def run_round(self, round_, steps=0):
        self.history.append(0.0)

    @torch.no_grad()
    def end_round(self):
        super().end_round()
        hits = [(self.model(x).argmax(1) == y).float().mean() for x, y in self.held_out]
        self.history[-1] = torch.stack(hits).mean().item()
        print(f"accuracy {self.history[-1]:.3f}", flush=True)
