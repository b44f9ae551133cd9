import torch
import torch.distributed as dist
from torch import nn


class Policy(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def publish(policy, src=0):
    flat = nn.utils.parameters_to_vector(policy.parameters()).detach()
    dist.broadcast(flat, src=src)
    nn.utils.vector_to_parameters(flat, policy.parameters())
