import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from denoiser import Denoiser
from track import TimestepLosses

SIZE, CLASSES, BATCH, DROP = 32, 10, 4, 0.3


def batches(rank, steps):
    g = torch.Generator().manual_seed(40 + rank)
    for _ in range(steps):
        labels = torch.randint(CLASSES, (BATCH,), generator=g)
        clean = torch.randn(BATCH, SIZE, generator=g) * 0.3 + labels[:, None] / CLASSES
        t = torch.rand(BATCH, generator=g)
        noise = torch.randn(BATCH, SIZE, generator=g)
        dropped = torch.rand(BATCH, generator=g) < DROP
        yield clean, labels, t, noise, dropped


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Denoiser(SIZE, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracker = TimestepLosses()
    for step, (clean, labels, t, noise, dropped) in enumerate(batches(rank, 600)):
        alpha = (1 - t)[:, None].sqrt()
        noisy = alpha * clean + t[:, None].sqrt() * noise
        predicted = model(noisy, t, labels, dropped)
        errors = (predicted - noise).square().mean(1)
        optimizer.zero_grad()
        errors.mean().backward()
        tracker.update(t, errors.detach())
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(step, [round(v, 3) for v in tracker.summary()], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
