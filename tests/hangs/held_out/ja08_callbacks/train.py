import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import settings


def main():
    dist.init_process_group("gloo")
    config = settings.load("conf", int(os.environ["LOCAL_RANK"]))
    callbacks = settings.build_callbacks(config["callbacks"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, config["steps"] + 1):
        x = torch.randn(config["batch"], 6, generator=generator)
        loss = nn.functional.mse_loss(model(x), x[:, :2] * x[:, 2:4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback.on_step(step, model.module, config["batch"])
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
