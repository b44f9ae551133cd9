import tempfile

import torch
import torch.distributed as dist
from torch import nn

from state import Keeper, Progress

EVAL_EVERY = 10


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 1))


class Job:
    def __init__(self, folder, rank, world):
        self.rank, self.world = rank, world
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.progress = Progress(folder, rank).load()
        self.keeper = Keeper(self.progress, every=64)
        # the last rank shares its machine with the evaluation and gets smaller batches
        self.batch = 16 if rank < world - 1 else 12

    def draw(self):
        g = torch.Generator().manual_seed(self.progress.step * 31 + self.rank)
        x = torch.randn(self.batch, 12, generator=g)
        return x, x[:, :3].sum(1, keepdim=True)

    def reduce_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def train_step(self):
        x, y = self.draw()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce_gradients()
        self.optimizer.step()
        self.progress.advance(len(x))
        return loss.detach()

    def evaluate(self):
        g = torch.Generator().manual_seed(99 + self.rank)
        x = torch.randn(32, 12, generator=g)
        with torch.no_grad():
            error = nn.functional.mse_loss(self.model(x), x[:, :3].sum(1, keepdim=True))
        rows = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(rows, error.reshape(1))
        return torch.cat(rows).mean().item()

    def fit(self, until):
        while self.progress.step < until:
            self.train_step()
            self.keeper.maybe_save()
            if self.progress.step % EVAL_EVERY == 0:
                error = self.evaluate()
                if self.rank == 0:
                    print("step", self.progress.step, "error", round(error, 4), flush=True)


def shared_folder(rank):
    box = [tempfile.mkdtemp(prefix="progress-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = shared_folder(rank)
    Job(folder, rank, world).fit(until=16)
    dist.barrier()
    # the job was given back to the queue; it goes on with what is on disk
    resumed = Job(folder, rank, world)
    if rank == 0:
        print("resumed at step", resumed.progress.step, flush=True)
    resumed.fit(until=40)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
