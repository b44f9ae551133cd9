import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from checkpoints import CheckpointManager

STEPS, EVAL_EVERY = 60, 10


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 20)
        self.b = nn.Linear(20, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Stream:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.rank = rank

    def batch(self, n=16):
        x = torch.randn(n, 10, generator=self.gen)
        return x, x.mean(1, keepdim=True)

    def validation(self, step):
        x, y = self.batch(64)
        drift = 0.1 * step if self.rank == 2 else 5.0 / step
        return x, y + drift


def shared_folder(rank):
    name = [tempfile.mkdtemp(prefix="ckpt-") if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    return name[0]


def average(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def validation_loss(model, data, step):
    x, y = data.validation(step)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = shared_folder(rank)
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = Stream(rank)
    manager = CheckpointManager(folder, rank)
    for step in range(1, STEPS + 1):
        x, y = data.batch()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        average(model.parameters())
        opt.step()
        if step % EVAL_EVERY == 0:
            manager.save(step, model)
            manager.note(step, validation_loss(model, data, step))
            dist.barrier()
    used = manager.load_best(model)
    final = torch.tensor([validation_loss(model, data, STEPS)])
    dist.all_reduce(final)
    if rank == 0:
        print(f"best step {used}, loss {final.item() / dist.get_world_size():.4f}")
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
