import torch
from torch import nn

IGNORE = -100
VOCAB, WIDTH = 31, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def build_stage(rank, world):
    layers = [Block(), Block()]
    if rank == 0:
        layers.insert(0, nn.Embedding(VOCAB, WIDTH))
    if rank == world - 1:
        layers.append(nn.Linear(WIDTH, VOCAB))
    return nn.Sequential(*layers)


def token_loss(logits, labels):
    flat = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return flat / (labels != IGNORE).sum().clamp(min=1)
