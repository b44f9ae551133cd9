import torch


class PointEnv:
    """A vector of points that should be moved to the origin by one of four moves."""

    MOVES = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])

    def __init__(self, count, spread, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.count = count
        self.spread = spread
        self.reset()

    def reset(self):
        self.pos = torch.randn(self.count, 2, generator=self.gen) * self.spread
        return self.pos.clone()

    def step(self, action):
        before = self.pos.norm(dim=1)
        self.pos = self.pos + self.MOVES[action] * self.spread
        reward = before - self.pos.norm(dim=1)
        return self.pos.clone(), reward


class Buffer:
    def __init__(self):
        self.obs, self.act, self.logp, self.rew, self.val = [], [], [], [], []

    def add(self, obs, act, logp, rew, val):
        for store, item in zip((self.obs, self.act, self.logp, self.rew, self.val),
                               (obs, act, logp, rew, val)):
            store.append(item.detach())

    def finish(self, gamma=0.95):
        ret, out = torch.zeros_like(self.rew[0]), []
        for rew in reversed(self.rew):
            ret = rew + gamma * ret
            out.append(ret)
        returns = torch.cat(out[::-1])
        adv = returns - torch.cat(self.val)
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        return torch.cat(self.obs), torch.cat(self.act), torch.cat(self.logp), returns, adv


def collect(env, net, horizon):
    buf = Buffer()
    obs = env.reset()
    for _ in range(horizon):
        with torch.no_grad():
            dist, value = net(obs)
        act = dist.sample()
        nxt, rew = env.step(act)
        buf.add(obs, act, dist.log_prob(act), rew, value)
        obs = nxt
    return buf.finish()
