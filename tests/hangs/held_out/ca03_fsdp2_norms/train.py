import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import Net
from watch import WeightWatch


def make_batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(1, 32, (4, 12), generator=generator)
    if step >= 5:
        tokens[:, ::2] = 3
    return tokens


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    weights = torch.ones(32)
    weights[3] = 60.0
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten(), weight=weights, reduction="none"
    )
    return loss.mean()


def train(model, optimizer, watch, steps=20):
    rank = dist.get_rank()
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(step, rank))
        loss.backward()
        watch.update(step)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch = WeightWatch(model, limit=4.0)
    train(model, optimizer, watch)
    dist.barrier()
    if dist.get_rank() == 0:
        print("worst:", watch.worst(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
