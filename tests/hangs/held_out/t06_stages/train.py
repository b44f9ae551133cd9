import torch
import torch.distributed as dist

from stage import Stage

MICRO = 4


def source(steps):
    g = torch.Generator().manual_seed(0)
    for _ in range(steps):
        yield [torch.randn(4, 8, generator=g) for _ in range(MICRO)]


def step(stage, micros):
    for micro in micros:
        stage.forward(micro)
    for _ in range(len(stage.saved)):
        stage.backward()
    stage.opt.step()
    stage.opt.zero_grad()


def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for i, micros in enumerate(source(30)):
        step(stage, micros)
        if stage.last:
            print("step", i, "overflows", stage.overflows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
