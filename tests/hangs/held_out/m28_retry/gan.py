import torch
import torch.distributed as dist
from torch import nn


def sync_robust(params):
    """Median over the ranks."""
    params = list(params)
    flat = torch.cat([p.grad.flatten() for p in params])
    rows = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, flat)
    nn.utils.vector_to_parameters(torch.stack(rows).median(0).values, [p.grad for p in params])


def sync(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


class Gan:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.gen = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 4))
        self.critic = nn.Sequential(nn.Linear(4, 20), nn.LeakyReLU(0.2), nn.Linear(20, 1))
        self.g_opt = torch.optim.Adam(self.gen.parameters(), lr=2e-3)
        self.c_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)

    def update_critic(self, real, noise):
        fake = self.gen(noise).detach()
        loss = nn.functional.softplus(-self.critic(real)).mean() + nn.functional.softplus(self.critic(fake)).mean()
        self.c_opt.zero_grad()
        loss.backward()
        sync_robust(self.critic.parameters())
        self.c_opt.step()
        return loss.item()

    def update_generator(self, noise, target):
        fake = self.gen(noise)
        loss = nn.functional.softplus(-self.critic(fake)).mean() + (fake.mean(0) - target).square().mean()
        self.g_opt.zero_grad()
        loss.backward()
        sync(self.gen.parameters())
        self.g_opt.step()
        return loss.item()
