import torch
import torch.distributed as dist
from torch import nn

from ema import EMA, Population

LEARNING_RATES = [0.001, 0.05, 0.004]
SHARE_EVERY, EXPLOIT_EVERY = 5, 15


def make_model():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


class Task:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n, shift=0.0):
        x = torch.randn(n, 5, generator=self.gen) + shift
        return x, x[:, :2].sum(1, keepdim=True) + shift * 5


@torch.no_grad()
def score(ema, x, y):
    return nn.functional.mse_loss(ema.shadow(x), y).item()


def train_step(model, opt, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = make_model()
    ema = EMA(model)
    opt = torch.optim.SGD(model.parameters(), lr=LEARNING_RATES[rank])
    task = Task(rank)
    held_out = Task(99).sample(128)
    population = Population(world, rank)
    for step in range(1, 91):
        shift = 3.0 if step > 25 and rank == 1 else 0.0
        train_step(model, opt, *task.sample(32))
        ema.update(model)
        if step % SHARE_EVERY == 0:
            population.share(score(ema, *held_out))
        population.observe(score(ema, *task.sample(64, shift)))
        if step % EXPLOIT_EVERY == 0:
            source = population.exploit(ema, model)
            if rank == 0:
                print(f"step {step}: weights of rank {source}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
