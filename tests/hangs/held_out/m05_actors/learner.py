import pickle
from datetime import timedelta

import torch

from policy import make_policy, share


class Learner:
    def __init__(self, store, actors):
        self.store, self.actors = store, actors
        self.policy = make_policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=1e-3)

    def collect(self, u):
        keys = [f"traj/{u}/{a}" for a in range(1, self.actors + 1)]
        self.store.wait(keys, timedelta(hours=2))
        return [row for k in keys for row in pickle.loads(self.store.get(k))]

    def update(self, rows):
        states = torch.stack([s for s, _, _ in rows])
        actions = torch.tensor([a for _, a, _ in rows])
        rewards = torch.tensor([r for _, _, r in rows])
        logp = self.policy(states).log_softmax(-1)[range(len(rows)), actions]
        loss = -(logp * (rewards - rewards.mean())).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return rewards.mean().item()

    def run(self, updates):
        for u in range(updates):
            share(self.policy)
            print(f"update {u} reward {self.update(self.collect(u)):.3f}", flush=True)
