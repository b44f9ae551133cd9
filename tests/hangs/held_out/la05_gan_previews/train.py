import torch
import torch.distributed as dist
from torch.nn import functional as F

from nets import NOISE, SIDE, Critic, Generator
from previews import PreviewWriter

TRUNCATION = (1.0, 0.0, 0.6)


def average(module):
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    flat /= dist.get_world_size()
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen, critic = Generator(), Critic()
    g_opt = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
    d_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.99))
    torch.manual_seed(10 + rank)
    fixed = torch.randn(8, NOISE)
    writer = PreviewWriter("previews", rank)
    for step in range(200):
        real = torch.rand(16, SIDE, SIDE).cumsum(2).tanh()
        fake = gen(torch.randn(16, NOISE))
        d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        d_opt.zero_grad()
        d_loss.backward()
        average(critic)
        d_opt.step()
        g_loss = F.softplus(-critic(fake)).mean()
        g_opt.zero_grad()
        g_loss.backward()
        average(gen)
        g_opt.step()
        if step % 4 == 3:
            writer.submit(step, gen.preview(fixed, TRUNCATION[rank]))
        if step % 10 == 0 and rank == 0:
            print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f}", flush=True)
    writer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
