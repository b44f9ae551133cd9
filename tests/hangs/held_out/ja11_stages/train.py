import json

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from stages import FirstStage, LastStage, MiddleStage


def make_data(samples):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(x, x[:, :1] * x[:, 1:2])


def make_stage(rank, job):
    if rank == 0:
        return FirstStage(job, make_data(job["samples"]))
    if rank == 1:
        return MiddleStage(job)
    return LastStage(job)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    with open("job.json") as file:
        job = json.load(file)
    stage = make_stage(rank, job)
    for epoch in range(job["epochs"]):
        stage.epoch()
        dist.barrier()
        if rank == 2:
            print(f"epoch {epoch}: loss {sum(stage.losses) / len(stage.losses):.4f}", flush=True)
            stage.losses.clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
