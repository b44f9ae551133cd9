import torch


class MagnitudePruner:
    """Cubic sparsity schedule; weights are scored by |w| times an average of |grad|."""

    def __init__(self, blocks, final=0.8, steps=12, every=3):
        self.blocks, self.final, self.steps, self.every = blocks, final, steps, every
        self.masks = [torch.ones_like(b.weight) for b in blocks]
        self.score = [torch.zeros_like(b.weight) for b in blocks]

    def target(self, step):
        done = min(step / self.steps, 1.0)
        return self.final * (1 - (1 - done) ** 3)

    @torch.no_grad()
    def observe(self):
        for s, b in zip(self.score, self.blocks):
            if b.weight.grad is not None:
                s.mul_(0.5).add_(b.weight.grad.abs() * b.weight.abs(), alpha=0.5)

    @torch.no_grad()
    def update(self, step):
        if step % self.every == 0:
            flat = torch.cat([s.flatten() for s in self.score])
            cut = torch.quantile(flat, self.target(step))
            for i, b in enumerate(self.blocks):
                self.masks[i] = (self.score[i] > cut).float()
                if self.masks[i].mean() < 0.02:
                    b.requires_grad_(False)
                    b.weight.grad = None
        for m, b in zip(self.masks, self.blocks):
            b.weight.mul_(m)
