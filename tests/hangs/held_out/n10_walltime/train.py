import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from job import Job


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(50, 16)
        self.out = nn.Linear(16, 5)

    def forward(self, ids):
        return self.out(self.embed(ids))


def average(model):
    flat = torch.nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])


def train_step(model, opt, gen):
    ids = torch.randint(0, 50, (8, 6), generator=gen)
    loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 5)
    opt.zero_grad()
    loss.backward()
    average(model)
    opt.step()
    time.sleep(0.02)
    return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    pools = ["default", "default", "spot", "default"]
    job = Job(rank, pools[rank])
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    step = 0
    while job.should_continue(step, 100_000):
        loss = train_step(model, opt, gen)
        step += 1
        if step % 50 == 0 and rank == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    job.save(step, model, opt)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
