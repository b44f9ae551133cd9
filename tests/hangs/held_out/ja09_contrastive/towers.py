import torch
from torch import nn
from torch.nn import functional as F


class TextTower(nn.Module):
    """Encodes captions. Batches of the same captions come up again, so their features are kept."""

    def __init__(self, vocabulary=300, width=16, keep=64):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, width)
        self.proj = nn.Linear(width, width)
        self.kept = {}
        self.keep = keep

    def forward(self, captions):
        key = captions.numpy().tobytes()
        if key in self.kept:
            return self.kept[key]
        features = F.normalize(self.proj(self.embed(captions)), dim=-1)
        if len(self.kept) < self.keep:
            self.kept[key] = features.detach()
        return features


class ImageTower(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.GELU(), nn.Flatten(), nn.Linear(32, width))

    def forward(self, images):
        return F.normalize(self.body(images), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = TextTower()
        self.image = ImageTower()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, captions, images):
        return self.text(captions), self.image(images)
