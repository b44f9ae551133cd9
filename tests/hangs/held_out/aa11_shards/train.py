import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn

from sharded import ShardedCheckpoint


def adopt_leftovers(checkpoint):
    """Rank 1 runs on a node that still has two shards of the last job."""
    if checkpoint.rank == 1:
        for step in (80, 90):
            torch.save({}, checkpoint.path(step))


def reduce_grads(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


class Run:
    def __init__(self, folder, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.checkpoint = ShardedCheckpoint(folder)
        self.best = (float("inf"), 0)

    def step(self, step):
        g = torch.Generator().manual_seed(step * 10 + self.rank)
        x = torch.randn(16, 8, generator=g)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        reduce_grads(self.model)
        self.optimizer.step()
        loss = loss.detach().reshape(1)
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def train(self, steps, every):
        for step in range(1, steps + 1):
            loss = self.step(step)
            if step % every == 0:
                self.checkpoint.save(step, self.model.state_dict())
                self.best = min(self.best, (loss, step))
                if self.rank == 0:
                    print(f"step {step} loss {loss:.4f}", flush=True)

    def finish(self):
        self.model.load_state_dict(self.checkpoint.load(self.best[1]))
        norm = sum(p.norm() for p in self.model.parameters()).detach().reshape(1)
        norms = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        return max(norms) - min(norms)


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder, dist.get_rank())
        adopt_leftovers(run.checkpoint)
        run.train(30, every=5)
        spread = run.finish()
        run.checkpoint.writer.close()
        print("spread", spread.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
