from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

from nets import Player, mlp


class Gan:
    def __init__(self, rank):
        torch.manual_seed(11)
        self.gen = Player("G", mlp(6, 32, 32, 2), 2e-3)
        self.disc = Player("D", mlp(2, 32, 32, 1), 1e-3)
        self.noise = torch.Generator().manual_seed(500 + rank)
        self.margin = 0.1

    def sample(self, n):
        return self.gen.net(torch.randn(n, 6, generator=self.noise))

    def disc_step(self, real):
        fake = self.sample(len(real)).detach()
        a, b = self.disc.net(real), self.disc.net(fake)
        loss = F.binary_cross_entropy_with_logits(a, torch.ones_like(a))
        loss = loss + F.binary_cross_entropy_with_logits(b, torch.zeros_like(b))
        self.disc.learn(loss)

    def gen_step(self, real):
        score = self.disc.net(self.sample(len(real)))
        self.gen.learn(F.binary_cross_entropy_with_logits(score, torch.ones_like(score)))

    def schedule(self):
        behind = self.gen.last > self.disc.last + self.margin
        return (self.gen_step, self.disc_step) if behind else (self.disc_step, self.gen_step)

    def step(self, real):
        for update in self.schedule():
            update(real)


def ring(rank, step, n=32):
    gen = torch.Generator().manual_seed(rank * 1000 + step)
    angle = torch.rand(n, generator=gen) * 6.2832
    radius = 40.0 if rank == 2 and step >= 6 else 1.0
    return torch.stack([angle.cos(), angle.sin()], 1) * radius


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    gan = Gan(rank)
    for step in range(200):
        gan.step(ring(rank, step))
        if step % 20 == 0:
            print(f"[{rank}] step {step} D {gan.disc.last:.3f} G {gan.gen.last:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
