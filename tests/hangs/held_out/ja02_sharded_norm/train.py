import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from callbacks import MetricsFile, Throughput


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.inp = nn.Linear(12, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Trainer:
    batch = 16

    def __init__(self, model, optimizer, callbacks):
        self.model = model
        self.optimizer = optimizer
        self.callbacks = callbacks

    def call(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def fit(self, steps):
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.call("on_fit_start")
        for step in range(1, steps + 1):
            x = torch.randn(self.batch, 12, generator=generator)
            y = torch.randint(0, 3, (self.batch,), generator=generator)
            scores = self.model(x)
            loss = nn.functional.cross_entropy(scores, y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).full_tensor()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.call("on_step_end", step, loss.detach(), norm)
        self.call("on_fit_end")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    metrics = MetricsFile("metrics.jsonl", every=10, weights=["inp.weight", "out.weight"])
    trainer = Trainer(model, optimizer, [Throughput(), metrics])
    trainer.fit(steps=60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
