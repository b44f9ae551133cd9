import torch
import torch.distributed as dist

from model import RateModel


class Claims:
    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank + 40)

    def batch(self, step):
        x = torch.randn(12, 4, generator=self.gen)
        exposure = torch.rand(12, 1, generator=self.gen)
        if self.rank == 1 and step == 4:
            exposure[3] = 120.0
        counts = torch.poisson(torch.rand(12, 1, generator=self.gen) * 3, generator=self.gen)
        return x, exposure, counts


def poisson_loss(rate, counts):
    return (rate - counts * torch.log(rate + 1e-8)).mean()


def gather_losses(loss):
    out = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(out, loss.detach())
    return torch.stack(out)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = RateModel()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    claims = Claims(dist.get_rank())
    for step in range(10):
        x, exposure, counts = claims.batch(step)
        loss = poisson_loss(model(x, exposure), counts)
        opt.zero_grad()
        loss.backward()
        losses = gather_losses(loss)
        if torch.isfinite(losses).all():
            opt.step()
        if dist.get_rank() == 0:
            print(step, losses.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
