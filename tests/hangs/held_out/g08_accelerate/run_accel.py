"""A usual accelerate loop: accumulation, gathered metrics, one process that saves."""
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, (x.sum(1) > 0).long())


def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    for x, y in loader:
        with torch.no_grad():
            pred = model(x).argmax(1)
        pred, y = accelerator.gather_for_metrics((pred, y))
        right += (pred == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def save(accelerator, model, epoch):
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        path = os.path.join(tempfile.gettempdir(), f"accel_{os.getppid()}.pt")
        torch.save(accelerator.unwrap_model(model).state_dict(), path)
        os.unlink(path)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model, opt, train, val = accelerator.prepare(
        model, opt, DataLoader(data(70, 0), batch_size=8, shuffle=True), DataLoader(data(37, 1), batch_size=8)
    )
    for epoch in range(3):
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
        accelerator.print("epoch", epoch, "accuracy", round(evaluate(accelerator, model, val), 3))
        save(accelerator, model, epoch)
    accelerator.wait_for_everyone()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
