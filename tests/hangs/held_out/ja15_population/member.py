import torch


class Member:
    """A member of the population: hyperparameters, and weights that climb to a target by them."""

    def __init__(self, start, speed, size=32):
        self.weights = torch.full((size,), start, dtype=torch.float64)
        self.speed = speed
        self.trials = (torch.arange(20, dtype=torch.float64) + 0.5) / 20

    def train(self):
        self.weights += self.speed

    def evaluate(self):
        """The part of the trials that are passed."""
        skill = self.weights.mean()
        passed = int((self.trials < skill).sum())
        return passed / len(self.trials)
