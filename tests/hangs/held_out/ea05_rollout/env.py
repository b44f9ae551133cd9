import numpy as np


class Corridor:
    """An agent walks left and right; the episode ends at either end or by the limit."""

    def __init__(self, seed, length):
        self.rng = np.random.default_rng(seed)
        self.length = length
        self.reset()

    def reset(self):
        self.pos = self.length // 2
        self.age = 0
        return self.obs()

    def obs(self):
        return np.array([self.pos / self.length, self.age / 50.0], dtype=np.float32)

    def step(self, action):
        self.pos += 1 if action else -1
        self.age += 1
        done = self.pos <= 0 or self.pos >= self.length
        reward = 1.0 if self.pos >= self.length else 0.0
        return self.obs(), reward, done
