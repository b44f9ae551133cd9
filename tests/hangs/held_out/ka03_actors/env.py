import random


class Glider:
    """A glider in gusts. The episode ends once it has lost its height."""

    def __init__(self, seed, height=60.0):
        self.rng = random.Random(seed)
        self.start = height
        self.reset()

    def reset(self):
        self.height = self.start
        self.wind = self.rng.uniform(-1.0, 1.0)
        return [self.height / self.start, self.wind]

    def step(self, action):
        gust = self.rng.random()
        sink = 2.0 if gust < 0.93 else 30.0
        self.height -= sink
        self.wind = 0.8 * self.wind + self.rng.uniform(-0.3, 0.3)
        reward = 1.0 - abs(self.wind - (action - 1)) * 0.2
        return [max(self.height, 0.0) / self.start, self.wind], reward, self.height <= 0
