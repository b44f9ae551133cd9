import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from nets import Critic, Generator
from runlog import Meter, get_logger


class GanTrainer:
    def __init__(self, rank):
        torch.manual_seed(1)
        self.gen = DDP(Generator())
        self.critic = DDP(Critic())
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.rng = torch.Generator().manual_seed(rank)

    def noise(self, n):
        return torch.randn(n, self.gen.module.latent, generator=self.rng)

    def critic_step(self, real):
        fake = self.gen.module(self.noise(len(real))).detach()
        scores = self.critic(torch.cat([real, fake]))
        s_real, s_fake = scores.split(len(real))
        loss = F.softplus(-s_real).mean() + F.softplus(s_fake).mean()
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, n):
        for p in self.critic.module.parameters():
            p.requires_grad_(False)
        loss = F.softplus(-self.critic.module(self.gen(self.noise(n)))).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        for p in self.critic.module.parameters():
            p.requires_grad_(True)
        self.opt_g.step()
        return loss.item()


def ring(n, rng):
    angle = torch.rand(n, generator=rng) * 6.2832
    return torch.stack([angle.cos(), angle.sin()], 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = get_logger(rank)
    trainer = GanTrainer(rank)
    meter = Meter(log, every=5)
    for step in range(40):
        d_loss = trainer.critic_step(ring(32, trainer.rng))
        g_loss = trainer.generator_step(32)
        meter.add(d_loss, g_loss)
        meter.flush(step)
    gathered = [torch.zeros(16, 2) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, trainer.gen.module(trainer.noise(16)).detach())
    if rank == 0:
        log.info("spread of samples %.3f", torch.cat(gathered).std().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
