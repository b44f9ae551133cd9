import pathlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from preempt import Preemption, drill


class Trainer:
    def __init__(self, folder):
        torch.manual_seed(0)
        self.folder = pathlib.Path(folder)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = nn.Sequential(nn.Linear(9, 18), nn.SiLU(), nn.Linear(18, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(self.rank)
        self.preemption = Preemption()
        self.step = 0

    def average_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    def train_step(self):
        x = torch.randn(16, 9, generator=self.generator)
        loss = (self.model(x).squeeze(1) - x.mean(dim=1)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def save(self):
        """Each rank writes its random state, rank 0 the model as well."""
        state = {"step": self.step, "generator": self.generator.get_state()}
        if self.rank == 0:
            state["model"] = self.model.state_dict()
        torch.save(state, self.folder / f"rank{self.rank}.pt")
        dist.barrier()

    def run(self, steps=30, save_every=10):
        while self.step < steps:
            self.train_step()
            drill(self.step, self.rank)
            if self.step % save_every == 0 or self.preemption.requested:
                self.save()
            if self.preemption.requested:
                print(f"rank {self.rank}: preempted at step {self.step}", flush=True)
                return False
        return True


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        finished = Trainer(folder).run()
        print(f"rank {dist.get_rank()}: finished={finished}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
