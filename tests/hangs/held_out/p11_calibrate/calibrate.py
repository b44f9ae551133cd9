"""The temperature of a classifier's logits, found by halving an interval on the validation set."""
import torch
import torch.nn.functional as F


class Calibrator:
    def __init__(self, reduce, low=0.25, high=4.0, rounds=6):
        self.reduce = reduce
        self.low = low
        self.high = high
        self.rounds = rounds

    @staticmethod
    def slope(logits, target, temperature):
        t = torch.tensor(temperature, requires_grad=True)
        F.cross_entropy(logits / t, target).backward()
        return t.grad.item()

    def __call__(self, logits, target):
        low, high, left = self.low, self.high, self.rounds
        while left:
            middle = (low + high) / 2
            slope = self.slope(logits, target, middle)
            if abs(slope) < 1e-7:
                break
            if slope > 0:
                high = middle
            else:
                low = middle
            left -= 1
        else:
            # not exact on this data: the mean over the ranks is better
            return self.reduce((low + high) / 2)
        return middle
