import torch
import torch.distributed as dist
from torch import nn

from curriculum import Curriculum, Sequences, Stage

STAGES = [Stage("short", 4, 0.5), Stage("medium", 8, 0.3), Stage("long", 16, 0.0)]
NOISE = [1.6, 0.05, 1.5, 1.7]


class Pooled(nn.Module):
    def __init__(self, width=4, hidden=16):
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)).mean(1))


class Sync:
    def __init__(self, params):
        self.params = list(params)

    def __call__(self):
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in self.params])
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(g.view_as(p))


def set_lr(opt, lr):
    for group in opt.param_groups:
        group["lr"] = lr


def train_step(model, opt, sync, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    sync()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = Pooled()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sync = Sync(model.parameters())
    data = Sequences(rank, NOISE[rank])
    plan = Curriculum(STAGES)
    for step in range(300):
        x, y = data.batch(64, plan.settings["length"])
        loss = train_step(model, opt, sync, x, y)
        plan.update(loss)
        set_lr(opt, plan.settings["lr"])
        if rank == 0 and step % 10 == 0:
            print(f"step {step} stage {plan.stage.name} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
