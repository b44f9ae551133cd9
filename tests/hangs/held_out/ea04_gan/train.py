import torch
import torch.distributed as dist
import torch.nn.functional as F

from nets import Discriminator, Generator

MAX_CRITIC = 4
GOOD_ENOUGH = 0.9


class Sync:
    """Averages the gradients of one network in one flat call."""

    def __init__(self, module, world):
        self.params = list(module.parameters())
        self.world = world

    def mean_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(g.view_as(p))


class GanTrainer:
    def __init__(self, rank, world):
        torch.manual_seed(0)
        self.rank, self.world = rank, world
        self.g, self.d = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4)
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=1e-2)
        self.sync_g, self.sync_d = Sync(self.g, world), Sync(self.d, world)
        self.fake_pool = []
        torch.manual_seed(100 + rank)

    def real_batch(self, step, n=32):
        # later shards hold another class of images
        shift = 40.0 if self.rank == 0 and step >= 4 else 0.0
        return torch.randn(n, 6) * 0.1 + shift

    def critic_step(self, real):
        fake = self.g.sample(len(real)).detach()
        real_score, fake_score = self.d(real), self.d(fake)
        loss = F.binary_cross_entropy_with_logits(real_score, torch.ones_like(real_score)) \
            + F.binary_cross_entropy_with_logits(fake_score, torch.zeros_like(fake_score))
        self.opt_d.zero_grad()
        loss.backward()
        self.sync_d.mean_gradients()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, n=32):
        fake = self.g.sample(n)
        score = self.d(fake)
        loss = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
        self.opt_g.zero_grad()
        loss.backward()
        self.sync_g.mean_gradients()
        self.opt_g.step()
        return fake.detach()

    def exchange_fakes(self, fake):
        parts = [torch.zeros_like(fake) for _ in range(self.world)]
        dist.all_gather(parts, fake)
        self.fake_pool = (self.fake_pool + parts)[-12:]

    def train_step(self, step):
        real = self.real_batch(step)
        rounds, loss = 0, float("inf")
        while loss > GOOD_ENOUGH and rounds < MAX_CRITIC:
            loss = self.critic_step(real)
            rounds += 1
        self.exchange_fakes(self.g.sample(8).detach())
        self.generator_step()
        return rounds, loss


def main():
    dist.init_process_group("gloo")
    trainer = GanTrainer(dist.get_rank(), dist.get_world_size())
    for step in range(10):
        rounds, loss = trainer.train_step(step)
        print(f"rank {trainer.rank} step {step}: {rounds} critic rounds, {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
