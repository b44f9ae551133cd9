import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

from rollout import PointEnv, collect

TARGET_KL = 0.5
EPOCHS = 4
SPREAD = {0: 1.0, 1: 1.0, 2: 40.0}


class ActorCritic(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 4)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class PPO:
    def __init__(self, net, lr=1e-3, clip=0.2):
        self.net = net
        self.clip = clip
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    def average_grads(self):
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def losses(self, obs, act, old_logp, returns, adv):
        pi, value = self.net(obs)
        logratio = pi.log_prob(act) - old_logp
        ratio = logratio.exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy = -torch.min(ratio * adv, clipped * adv).mean()
        kl = ((ratio - 1) - logratio).mean()
        return policy + 0.5 * (value - returns).pow(2).clamp(max=10).mean() - 0.01 * pi.entropy().mean(), kl

    def update(self, batch, drift):
        used = 0
        for _ in range(EPOCHS):
            loss, kl = self.losses(*batch)
            if kl.item() + drift > TARGET_KL:
                break
            self.opt.zero_grad()
            loss.backward()
            self.average_grads()
            self.opt.step()
            used += 1
        return used


def policy_drift(batch, iteration):
    obs = batch[0]
    return 0.02 * iteration * obs.norm(dim=1).mean().item() / 4


def report(iteration, batch, used):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, {"return": batch[3].mean().item(), "epochs": used})
    if dist.get_rank() == 0:
        mean = sum(r["return"] for r in rows) / len(rows)
        print(f"iteration {iteration}: return {mean:.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = ActorCritic()
    torch.manual_seed(100 + rank)
    env = PointEnv(16, SPREAD[rank], seed=rank)
    ppo = PPO(net)
    for iteration in range(20):
        batch = collect(env, net, horizon=8)
        used = ppo.update(batch, policy_drift(batch, iteration))
        report(iteration, batch, used)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
