import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from utils import EarlyStopping, History


def make_sets():
    g = torch.Generator().manual_seed(11)
    x = torch.randn(360, 8, generator=g)
    y = (x @ torch.arange(1.0, 9.0).unsqueeze(1)) / 8
    vx, vy = x[288:].clone(), y[288:].clone()
    vy[1::3] = 9.0  # mislabelled by the second annotator
    return TensorDataset(x[:288], y[:288]), TensorDataset(vx, vy)


def run_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.huber_loss(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, count = 0.0, 0
    for x, y in loader:
        total += nn.functional.huber_loss(model.module(x), y, reduction="sum").item()
        count += len(x)
    return total / count


def fit(model, train_loader, val_loader, sampler, epochs=30):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stopper, history = EarlyStopping(delta=1e-4), History()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        run_epoch(model, train_loader, optimizer)
        val = validate(model, val_loader)
        history.add(epoch=epoch, val=val)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val {val:.4f}", flush=True)
        if stopper.update(val):
            break
    return history


def report(history):
    best = torch.tensor([history.best()["val"]])
    out = [torch.empty(1) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(best, out, dst=0)
    if out:
        print("best", [round(v.item(), 4) for v in out], flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, val_set = make_sets()
    sampler = DistributedSampler(train_set, shuffle=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    history = fit(model, DataLoader(train_set, 16, sampler=sampler),
                  DataLoader(val_set, 8, sampler=val_sampler), sampler)
    report(history)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
