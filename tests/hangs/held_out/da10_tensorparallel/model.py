import random

from torch import nn

from layers import FeedForward, MixBlock


class Stack(nn.Module):
    """Alternating blocks with stochastic depth on the feed-forward ones."""

    def __init__(self, width, depth, rank, world, drop, seed):
        super().__init__()
        self.mix = nn.ModuleList(MixBlock(width, rank, world, i) for i in range(depth))
        self.ffn = nn.ModuleList(FeedForward(width, rank, world, i) for i in range(depth))
        self.drop = drop
        self.coin = random.Random(seed)

    def forward(self, x):
        for mix, ffn in zip(self.mix, self.ffn):
            x = mix(x)
            if self.training and self.coin.random() < self.drop:
                continue
            x = ffn(x)
        return x
