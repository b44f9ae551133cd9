import torch
import torch.distributed as dist

from model import StageModel
from topology import Topology

STAGES = 3
STEPS = 6


def train_step(model, step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(4, 8, generator=gen)
    loss = model(x).pow(2).mean()
    model.zero_grad()
    loss.backward()
    for p in model.layer.parameters():
        dist.all_reduce(p.grad, group=model.topo.dp_group)
    if model.embedding is not None:
        dist.all_reduce(model.embedding.grad, group=model.topo.tied_group)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    topo = Topology(rank, world, STAGES).build()
    model = StageModel(topo)
    model.initialise()
    for step in range(STEPS):
        loss = train_step(model, step)
        dist.all_reduce(loss, group=topo.pipe_group)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
