"""Pipeline of three stages, 1F1B."""
import torch
import torch.distributed as dist

from stage import DIM, MICRO, Links, Stage

STEPS, MICROS = 8, 5


def batches():
    gen = torch.Generator().manual_seed(5)
    lengths = torch.full((STEPS, MICROS), MICRO)
    lengths[:, -1] = torch.tensor([3, 4, 2, 0, 1, 4, 2, 3])
    for step in range(STEPS):
        micros = []
        for n in lengths[step].tolist():
            x = torch.randn(MICRO, DIM, generator=gen)
            y = torch.randn(MICRO, DIM, generator=gen)
            mask = (torch.arange(MICRO) < n).float()
            micros.append((x, y, mask))
        yield micros


def run_1f1b(stage, micros):
    world = dist.get_world_size()
    warmup = min(world - 1 - stage.links.rank, len(micros))
    losses = []
    pending = iter(micros)
    for _ in range(warmup):
        stage.forward(*next(pending))
    for micro in pending:
        losses.append(stage.forward(*micro))
        stage.backward()
    for _ in range(warmup):
        stage.backward()
    stage.links.flush()
    return losses


def clip(params, limit=1.0):
    total = sum(p.grad.square().sum() for p in params)
    dist.all_reduce(total)
    scale = min(1.0, limit / (total.sqrt().item() + 1e-6))
    for p in params:
        p.grad.mul_(scale)


def main():
    dist.init_process_group("gloo")
    links = Links()
    torch.manual_seed(links.rank)
    stage = Stage(links)
    params = list(stage.net.parameters())
    optimizer = torch.optim.SGD(params, lr=0.05)
    for step, micros in enumerate(batches()):
        optimizer.zero_grad()
        losses = run_1f1b(stage, micros)
        clip(params)
        optimizer.step()
        if links.rank == links.last:
            print(step, sum(l.item() for l in losses) / len(losses), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
