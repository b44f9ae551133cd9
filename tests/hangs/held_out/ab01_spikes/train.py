import torch
import torch.distributed as dist
import torch.nn as nn

from guard import SpikeGuard


def batch(rank, step):
    g = torch.Generator().manual_seed(step * 7 + rank)
    x = torch.randn(16, 6, generator=g)
    y = x.sum(1, keepdim=True)
    if (rank, step) in ((1, 12), (2, 23)):
        y = y * 1000
    return x, y


def sync(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def log(rank, step, loss, group):
    if rank in (0, 1):
        t = torch.tensor([loss])
        dist.reduce(t, dst=0, group=group)
        if rank == 0:
            print(f"step {step} loss {t.item() / 2:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard = SpikeGuard(model, optimizer)
    for step in range(40):
        guard.snapshot(step)
        x, y = batch(rank, step)
        loss = (model(x) - y).square().mean()
        if guard.is_spike(loss.item()):
            guard.rollback()
            continue
        guard.accept(loss.item())
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        if step % 10 == 0:
            log(rank, step, loss.item(), pair)
    print(f"[{rank}] {guard.rollbacks} rollbacks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
