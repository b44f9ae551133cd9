import torch
import torch.distributed as dist

N = 16


class Actors:
    def __init__(self, rank, policy):
        self.gen = torch.Generator().manual_seed(rank)
        self.policy = policy
        self.rewards = []

    @torch.no_grad()
    def rollout(self):
        obs = torch.randn(N, 3, generator=self.gen)
        act = self.policy(obs).softmax(1).multinomial(1, generator=self.gen)
        reward = (act[:, 0] == (obs[:, 0] > 0)).float()
        self.rewards.append(reward.mean().item())
        return torch.cat([obs, act.float(), reward[:, None]], 1)

    def send(self, learner, table):
        dist.send(table, dst=learner)

    def mean_reward(self):
        return sum(self.rewards[-4:]) / 4


class Learner:
    def __init__(self, rank, policy):
        self.policy = policy
        self.opt = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def receive(self, actor):
        table = torch.empty(N, 5)
        dist.recv(table, src=actor)
        return table[:, :3], table[:, 3].long(), table[:, 4]

    def loss(self, obs, act, reward):
        logp = self.policy(obs).log_softmax(1).gather(1, act[:, None])[:, 0]
        return -(logp * (reward - reward.mean())).mean()

    def update(self):
        self.opt.step()
        self.opt.zero_grad()
