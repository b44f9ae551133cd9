import tempfile

import torch
import torch.distributed as dist
from torch import nn

from checkpoints import CheckpointFolder

SAVE_EVERY = 2


def shared_folder(rank):
    box = [tempfile.mkdtemp(prefix="ckpt-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))


class Job:
    def __init__(self, rank, world):
        torch.manual_seed(2)
        self.rank, self.world = rank, world
        self.model, self.averaged = build(), build()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.folder = CheckpointFolder(shared_folder(rank))
        self.gen = torch.Generator().manual_seed(rank)
        self.history = []

    def batch(self, n=16):
        x = torch.randn(n, 8, generator=self.gen)
        return x, (x[:, 0] > 0).long()

    def step(self):
        x, y = self.batch()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.opt.step()

    @torch.no_grad()
    def evaluate_average(self, step):
        self.averaged.load_state_dict(self.folder.wait_average(step))
        x, y = self.batch(64)
        self.history.append((self.averaged(x).argmax(1) == y).float().mean().item())

    def checkpoint(self, step):
        """The first rank averages, the last one evaluates, the others go on."""
        if self.rank == 0:
            self.folder.save(self.model, step)
            self.folder.write_average(step)
        elif self.rank == self.world - 1:
            self.evaluate_average(step)

    def run(self, steps=30):
        for step in range(1, steps + 1):
            self.step()
            if step % SAVE_EVERY == 0:
                self.checkpoint(step)


def main():
    dist.init_process_group("gloo")
    job = Job(dist.get_rank(), dist.get_world_size())
    job.run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
