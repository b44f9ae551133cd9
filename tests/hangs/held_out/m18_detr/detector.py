import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self, queries=4):
        super().__init__()
        self.queries = queries
        self.net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, queries * 5))

    def forward(self, x):
        out = self.net(x).view(len(x), self.queries, 5)
        return out[..., :4].sigmoid(), out[..., 4]


class Criterion(nn.Module):
    def forward(self, out, targets):
        boxes, logits = out
        box = obj = 0.0
        for b, l, t in zip(boxes, logits, targets):
            cost = torch.cdist(t, b, p=1)
            pick = cost.argmin(1)
            label = torch.zeros_like(l).scatter(0, pick.detach(), 1.0)
            box = box + cost.gather(1, pick[:, None]).mean()
            obj = obj + nn.functional.binary_cross_entropy_with_logits(l, label)
        return {"box": box / len(targets), "obj": obj / len(targets)}
