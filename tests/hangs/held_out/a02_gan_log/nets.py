from torch import nn


class Generator(nn.Module):
    def __init__(self, latent=8, out=2):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, out))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, inp=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inp, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)
