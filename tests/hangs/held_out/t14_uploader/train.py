import io
import threading

import torch
import torch.distributed as dist
from torch import nn

from uploader import SlowStore, Uploader


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6))
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.network = threading.Event()
        self.uploader = Uploader(SlowStore(self.network)) if rank == 0 else None
        self.generator = torch.Generator().manual_seed(rank)

    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[start:start + p.numel()].view_as(p))
            start += p.numel()

    def step(self):
        x = torch.randn(16, 6, generator=self.generator)
        loss = nn.functional.l1_loss(self.net(x), x)
        self.opt.zero_grad()
        loss.backward()
        self.reduce()
        self.opt.step()
        return loss.item()

    def checkpoint(self, step):
        if self.uploader is None:
            return
        buffer = io.BytesIO()
        torch.save(self.net.state_dict(), buffer)
        threading.Timer(0.5, self.network.set).start()
        self.network.clear()
        self.uploader.submit(step, buffer.getvalue())


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for step in range(1, 31):
        loss = trainer.step()
        if step % 6 == 0:
            trainer.checkpoint(step)
    if trainer.uploader:
        print("uploaded", trainer.uploader.finish(), "loss", loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
