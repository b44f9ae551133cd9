import torch
import torch.distributed as dist
from torch import nn

from data import Tokens
from moe import MoELayer

WIDTH = 12
STEPS = 10


def sync_dense(model):
    """The dense part is replicated; experts are not."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, 1)
    layer = MoELayer(WIDTH, rank, world)
    opt = torch.optim.SGD(list(head.parameters()) + list(layer.expert.parameters()), lr=0.01)
    data = Tokens(rank, WIDTH, world)
    for step in range(STEPS):
        x = data.batch(step)
        mixed, local = layer(x)
        loss = (head(x + mixed) - 1).pow(2).mean() + 1e-3 * local.pow(2).sum()
        opt.zero_grad()
        loss.backward()
        sync_dense(head)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
