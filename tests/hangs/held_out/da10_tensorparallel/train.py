import torch
import torch.distributed as dist

from model import Stack

WIDTH, DEPTH, STEPS = 12, 3, 20
SEED = 4


def seed_everything(rank):
    """Seeds of the data and of the noise."""
    seed = SEED + 7 * rank
    torch.manual_seed(seed)
    return seed


def batch(step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(6, WIDTH, generator=gen)
    return x, x.roll(1, dims=1)


def update(model, lr=0.05):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad
                p.grad = None


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    seed = seed_everything(rank)
    model = Stack(WIDTH, DEPTH, rank, world, drop=0.05, seed=seed)
    for step in range(STEPS):
        x, y = batch(step)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        update(model)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
