from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from stats import StepStats


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(5, 4)
        self.value = nn.Linear(5, 1)

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.pi(obs)), self.value(obs).squeeze(-1)


def rollout(policy, rank, step):
    g = torch.Generator().manual_seed(rank * 100 + step)
    obs = torch.randn(20, 5, generator=g)
    with torch.no_grad():
        d, _ = policy(obs)
        act = d.probs.argmax(1)
        old = d.log_prob(act)
    reward = (act == obs.argmax(1) % 4).float()
    episodes = [float(n) for n in (8, 12)]
    if rank == 2 and step == 4:
        episodes = []  # one endless episode: none has finished in this rollout
    return obs, act, old, reward, episodes


def update(policy, lr, obs, act, old, reward):
    d, v = policy(obs)
    adv = reward - v.detach()
    ratio = (d.log_prob(act) - old).exp()
    loss = -(ratio * adv).mean() + (v - reward).pow(2).mean()
    policy.zero_grad()
    loss.backward()
    world = dist.get_world_size()
    with torch.no_grad():
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p -= lr * p.grad / world
    return loss


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy()
    stats = StepStats()
    for step in range(15):
        obs, act, old, reward, episodes = rollout(policy, rank, step)
        loss = update(policy, 0.05, obs, act, old, reward)
        stats.put("loss", loss)
        stats.put("reward", reward.mean())
        stats.put("entropy_proxy", old.mean())
        if episodes:
            stats.put("episode_len", sum(episodes) / len(episodes))
        row = stats.average()
        if rank == 0:
            print(step, {k: round(v, 3) for k, v in row.items()}, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
