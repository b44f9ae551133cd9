import torch
import torch.distributed as dist
import torch.nn as nn

from data import Curriculum
from moe import MoE


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inp = nn.Linear(width, width)
        self.moe = MoE(width)
        self.out = nn.Linear(width, 1)

    def shared(self):
        return [*self.inp.parameters(), *self.out.parameters()]

    def forward(self, x, domain):
        return self.out(self.moe(self.inp(x), domain))


def sync_shared(model):
    for p in model.shared():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    data = Curriculum(dist.get_rank(), 8)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(30):
        x, domain, y = data.next()
        loss = nn.functional.mse_loss(model(x, domain), y)
        opt.zero_grad()
        loss.backward()
        sync_shared(model)
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
