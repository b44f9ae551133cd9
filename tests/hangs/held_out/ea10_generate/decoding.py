import torch
import torch.distributed as dist
from torch import nn

EOS, PAD = 1, 0


class ShardedHead(nn.Module):
    """Output layer with the vocabulary split over the ranks."""

    def __init__(self, dim, vocab, rank, world):
        super().__init__()
        g = torch.Generator().manual_seed(2)
        full = torch.randn(vocab, dim, generator=g)
        self.weight = nn.Parameter(full.chunk(world)[rank].clone())
        self.world = world

    def forward(self, h):
        """`h` of all ranks is needed, as each rank has its own prompts."""
        hs = [torch.zeros_like(h) for _ in range(self.world)]
        dist.all_gather(hs, h.contiguous())
        part = torch.cat(hs) @ self.weight.t()
        parts = [torch.zeros_like(part) for _ in range(self.world)]
        dist.all_gather(parts, part)
        logits = torch.cat(parts, dim=1)
        return logits.chunk(self.world)[dist.get_rank()]


class Generator:
    def __init__(self, model, max_new=24):
        self.model, self.max_new = model, max_new

    @torch.no_grad()
    def generate(self, prompt, force_eos_after):
        tokens = prompt
        done = torch.zeros(len(prompt), dtype=torch.bool)
        for i in range(self.max_new):
            logits = self.model(tokens)
            logits[:, PAD] = float("-inf")
            if i < force_eos_after:
                logits[:, EOS] = float("-inf")
            else:
                logits[:, EOS] += 1e4   # the question has a short answer
            nxt = logits.argmax(1)
            nxt[done] = PAD
            done |= nxt == EOS
            tokens = torch.cat([tokens, nxt[:, None]], dim=1)
            if done.all():
                break
        return tokens
