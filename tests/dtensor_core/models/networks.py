"""Networks written for a single device: torch's own attention, convolutions, experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Diffusion(nn.Module):
    """A denoising step: convolutions, a norm, a time embedding, and back to the image."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = norm
        self.time = nn.Linear(4, 8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] and [B, 4] -> [B, 3, H, W]."""
        h = F.silu(self.norm(self.inner(image))) + self.time(time)[:, :, None, None]
        h = F.max_pool2d(F.interpolate(self.down(h), scale_factor=2), 2)
        return self.up(h)


class Experts(nn.Module):
    """Weights the best 2 of 4 experts per token; all tokens pass all experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.w1 = nn.Parameter(torch.randn(4, 16, 24) / 4)
        self.w2 = nn.Parameter(torch.randn(4, 24, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, 16] -> [B * L, 16]."""
        tokens = x.flatten(0, 1)
        chances = self.gate(tokens).softmax(-1)
        best, chosen = chances.topk(2, dim=-1)
        weights = torch.zeros_like(chances).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        hidden = F.gelu(torch.einsum("td,edh->eth", tokens, self.w1))
        return torch.einsum("eth,ehd,te->td", hidden, self.w2, weights)


class ExpertByExpert(Experts):
    """The same as a loop over experts that compares indices with the expert's number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, 16] -> [B * L, 16]."""
        tokens = x.flatten(0, 1)
        best, chosen = self.gate(tokens).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(tokens)
        for number, (w1, w2) in enumerate(zip(self.w1, self.w2, strict=True)):
            weight = (best * (chosen == number)).sum(-1, keepdim=True)
            out = out + weight * (F.relu(tokens @ w1) @ w2)
        return out


class Gpt(nn.Module):
    """One layer like minGPT's: fused projections, a mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(33, 16), nn.Embedding(10, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Linear(16, 33, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(10, 10)).view(1, 1, 10, 10))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, L] -> [B, L, 33]."""
        batch, length = tokens.shape
        h = self.words(tokens) + self.places.weight[:length]
        q, k, v = (
            each.view(batch, length, 4, 4).transpose(1, 2)
            for each in self.qkv(self.norm(h)).split(16, dim=2)
        )
        mask = self.mask[:, :, :length, :length]  # pyright: ignore[reportIndexIssue]
        scores = ((q @ k.transpose(-2, -1)) / 2).masked_fill(mask == 0, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, length, 16)
        return self.head(h + self.out(mixed))


class VisionTransformer(nn.Module):
    """Patches, a class token, a layer of torch's encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 5, 16))
        self.layer = encoder_layer(norm_first=True, activation="gelu")
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[B, 3, 8, 8] -> [B, 10]."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.layer(x)[:, 0])


def encoder_layer(**options: object) -> nn.TransformerEncoderLayer:
    """torch's encoder layer, without dropout."""
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)  # pyright: ignore
