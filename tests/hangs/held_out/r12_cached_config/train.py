import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from config import load_config, node_cache
from model import MLP, check_same_shape


def train(config, model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(rank)
    for step in range(config.steps):
        x = torch.randn(16, 6, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = node_cache(rank)
    try:
        config = load_config(folder)
        torch.manual_seed(0)
        model = MLP(config)
        check_same_shape(model)
        loss = train(config, DDP(model), rank)
        if rank == 0:
            print(f"loss {loss:.4f}", flush=True)
        dist.barrier()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
