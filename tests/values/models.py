"""Five small models of plain torch, each from tokens [B, L] to logits [B, L, V]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, HEAD, VOCABULARY, LENGTH, BATCH, NUM_EXPERTS = 16, 32, 4, 48, 8, 4, 4


class Attention(nn.Module):
    """Attention of a sequence to itself or another, with heads of four numbers."""

    def __init__(self, *, is_causal: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.is_causal = is_causal

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Attend from x [B, L, D] to other [B, M, D], or to x."""
        other = x if other is None else other
        q, k, v = (
            layer(given).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer, given in ((self.q, x), (self.k, other), (self.v, other))
        )
        scores = q @ k.transpose(-1, -2) / HEAD**0.5
        if self.is_causal:
            positions = torch.arange(x.shape[1])
            scores = scores.masked_fill(positions[:, None] < positions, -1e4)
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """Attention, attention to an encoder's output if any, and a feed-forward network."""

    def __init__(self, *, is_causal: bool = False, is_cross: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(is_causal=is_causal)
        self.cross = Attention() if is_cross else None
        self.mlp = FeedForward()

    def forward(self, x: torch.Tensor, encoded: torch.Tensor | None = None) -> torch.Tensor:
        """Transform [B, L, D]."""
        x = x + self.attention(self.attention_norm(x))
        if self.cross is not None:
            x = x + self.cross(x, encoded)
        return x + self.mlp(self.norm(x))


class Dense(nn.Module):
    """A causal transformer with dropout, whose head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.1)
        self.layer, self.norm = Layer(is_causal=True), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens."""
        return self.head(self.norm(self.layer(self.dropout(self.embedding(tokens)))))


class Experts(nn.Module):
    """Feed-forward networks; each token passes the networks chosen for it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(NUM_EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(
        self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, D] of tokens [T, D], their experts [T, K] and the weights of these [T, K]."""
        numbers = torch.arange(len(self.up))
        by_expert = ((chosen[..., None] == numbers) * weights[..., None]).sum(1)
        hidden = F.gelu(torch.matmul(tokens, self.up))
        outputs = torch.matmul(hidden, self.down)
        return (outputs * by_expert.T[..., None]).sum(0)


class Mixture(nn.Module):
    """A mixture of experts after an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(VOCABULARY, WIDTH), Attention()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts, self.head = Experts(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens."""
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x))
        weights, chosen = torch.softmax(self.router(x), -1).topk(2, -1)
        flat = (each.flatten(0, 1) for each in (x, chosen, weights))
        return self.head(x + self.experts(*flat).unflatten(0, tuple(x.shape[:2])))


class EncoderDecoder(nn.Module):
    """An encoder of tokens, and a causal decoder of the same in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(VOCABULARY, WIDTH), Layer()
        self.decoder = Layer(is_causal=True, is_cross=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens."""
        encoded = self.encoder(self.embedding(tokens))
        return self.head(self.norm(self.decoder(self.embedding(tokens.flip(1)), encoded)))


class Convolution(nn.Module):
    """Convolutions with group norms over an embedded sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.first, self.second = (nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm, self.head = nn.GroupNorm(4, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens."""
        x = self.embedding(tokens).transpose(1, 2)
        x = x + self.second(F.relu(self.norm(self.first(x))))
        return self.head(x.transpose(1, 2))


class Tables(nn.Module):
    """Sums of rows of several tables, of each token and of all tokens of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.of_token, self.of_next = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.bag = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="sum")
        self.mlp, self.norm = FeedForward(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens."""
        x = self.of_token(tokens) + self.of_next((tokens + 1) % VOCABULARY)
        x = x + self.bag(tokens)[:, None] / LENGTH
        return self.head(x + self.mlp(self.norm(x)))
