import torch
import torch.distributed as dist

from model import WIDTH, Net
from overlap import OverlappedReducer

STEPS = 60


def batch(rank, step):
    gen = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, WIDTH, generator=gen)
    return x, x.roll(1, dims=-1)


def mean_loss(loss, world):
    value = loss.detach().reshape(1)
    dist.all_reduce(value)
    return float(value) / world


def clip(model, limit=1.0):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.norm() for g in grads]).norm()
    if norm > limit:
        for g in grads:
            g.mul_(limit / norm)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data_parallel = dist.new_group(list(range(world)))
    torch.manual_seed(0)
    model = Net(drop=0.004, seed=102 + 12 * rank)
    reducer = OverlappedReducer(model, data_parallel)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        x, y = batch(rank, step)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        reducer.finish()
        clip(model)
        opt.step()
        opt.zero_grad(set_to_none=True)
        value = mean_loss(loss, world)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
