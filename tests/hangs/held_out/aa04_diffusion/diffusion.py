import torch
import torch.distributed as dist
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 48), nn.SiLU(), nn.Linear(48, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None]], 1))


class Schedule:
    def __init__(self, steps=50):
        self.steps = steps
        self.alpha_bar = torch.cumprod(1 - torch.linspace(1e-3, 0.1, steps), 0)

    def noise(self, x, t):
        eps = torch.randn_like(x)
        a = self.alpha_bar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * eps, eps

    def threshold(self, x0, q=0.995):
        s = torch.quantile(x0.abs().flatten(), q).reshape(1)
        dist.all_reduce(s, op=dist.ReduceOp.MAX)
        s = s.clamp(min=1.0)
        return x0.clamp(-s, s) / s

    @torch.no_grad()
    def sample(self, model, n, dim, stride=10):
        x = torch.randn(n, dim)
        for t in range(self.steps - 1, -1, -stride):
            a = self.alpha_bar[t]
            tt = torch.full((n,), t / self.steps)
            eps = model(x, tt)
            x0 = self.threshold((x - (1 - a).sqrt() * eps) / a.sqrt())
            last = self.alpha_bar[max(t - stride, 0)]
            x = last.sqrt() * x0 + (1 - last).sqrt() * eps
        return x
