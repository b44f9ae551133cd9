import torch
import torch.distributed as dist

from stage import D, MB, Stage


def source():
    g = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(MB, D, generator=g)


def targets():
    g = torch.Generator().manual_seed(1)
    i = 0
    while True:
        scale = 9.0 if i == 10 else 1.0
        yield torch.randn(MB, D, generator=g) * scale
        i += 1


def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    xs, ts = source(), targets()
    for step in range(12):
        stage.opt.zero_grad()
        saved = []
        for _ in range(4):
            x, y = stage.forward(xs)
            saved.append((x, y, next(ts)))
        for x, y, t in saved:
            stage.backward(x, y, t)
        stage.opt.step()
        if stage.last:
            print("step", step, "skipped", stage.skipped, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
