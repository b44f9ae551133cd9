import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from metrics import Metrics
from model import TinyLM, lm_loss, sample_tokens


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def clip(model, limit):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (world,))
    model = shard(TinyLM(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(rank)
    metrics = Metrics(rank)
    for step in range(1, 13):
        tokens = sample_tokens(generator)
        loss = lm_loss(model(tokens), tokens)
        loss.backward()
        clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        metrics.log(step, loss=loss.detach(), head=model.head.weight.detach().norm())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
