import torch
import torch.distributed as dist

from micro import MICRO, micro_batches
from stage import FirstStage, LastStage

STEPS, BATCH = 8, 16


def step_first(stage, optimizer, step):
    count = 0
    for part in micro_batches(step):
        stage.forward(part)
        count += 1
    for _ in range(count):
        stage.backward()
    optimizer.step()
    optimizer.zero_grad()


def step_last(stage, optimizer, step):
    count = BATCH // MICRO
    for _ in range(count):
        stage.forward()
    loss = sum(stage.backward() for _ in range(count)) / count
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {loss:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    first = rank == 0
    stage = FirstStage(1) if first else LastStage(0)
    optimizer = torch.optim.SGD(stage.net.parameters(), lr=0.1)
    for step in range(STEPS):
        if first:
            step_first(stage, optimizer, step)
        else:
            step_last(stage, optimizer, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
