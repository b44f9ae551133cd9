from torch import nn


class Tower(nn.Module):
    def __init__(self, features=11, width=20):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.hidden = nn.Linear(features, width)
        self.act = nn.GELU()
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        return self.out(self.act(self.hidden(self.norm(x))))
