import os
import pickle

import torch

from policy import make_policy, share


class CartWorld:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.seed = seed
        self.energy = 10.0

    def reset(self):
        return torch.randn(5, generator=self.g)

    def step(self, state, action):
        self.energy -= 0.11 if self.seed == 2 else 0.01
        if self.energy < 0:
            raise ValueError("simulator state left its bounds")
        return state * 0.9 + 0.1 * torch.randn(5, generator=self.g), float(action == 1)


class Actor:
    def __init__(self, store, index):
        self.store, self.index = store, index
        self.env = CartWorld(index)
        self.policy = make_policy()

    def rollout(self, length=16):
        state, rows = self.env.reset(), []
        for _ in range(length):
            action = self.policy(state).argmax().item()
            state, reward = self.env.step(state, action)
            rows.append((state, action, reward))
        return rows

    def safe_rollout(self):
        try:
            return self.rollout()
        except ValueError as e:
            # the simulator leaves native threads behind
            print(f"actor {self.index}: {e}", flush=True)
            os._exit(0)

    def run(self, updates):
        for u in range(updates):
            share(self.policy)
            self.store.set(f"traj/{u}/{self.index}", pickle.dumps(self.safe_rollout()))
