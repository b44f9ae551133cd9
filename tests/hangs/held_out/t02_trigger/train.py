"""Fine-tuning with accelerate; training stops when any process asks for it."""
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from data import Ratings


@dataclass
class Options:
    epochs: int = 6
    batch_size: int = 8
    lr: float = 0.05
    patience: int = 3


class Patience:
    def __init__(self, patience):
        self.patience, self.bad, self.best = patience, 0, float("inf")

    def improved(self, value):
        if value < self.best - 1e-3:
            self.best, self.bad = value, 0
            return True
        self.bad += 1
        return False

    @property
    def exhausted(self):
        return self.bad >= self.patience


def run_epoch(accelerator, model, loader, opt):
    last = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        accelerator.backward(loss)
        opt.step()
        last += loss.item()
    return last / len(loader)


def stop_requested(accelerator, patience, value):
    if patience.improved(value):
        return False
    exhausted = accelerator.gather(torch.tensor([float(patience.exhausted)]))
    return bool(exhausted.any())


def main(options):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD(model.parameters(), lr=options.lr)
    loader = DataLoader(Ratings(96), batch_size=options.batch_size)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    patience = Patience(options.patience)
    noise = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    if accelerator.process_index == 2:
        noise[2] = 0.95
    for epoch in range(options.epochs):
        mean = run_epoch(accelerator, model, loader, opt)
        accelerator.print(f"epoch {epoch}: {mean:.3f}")
        held_out = mean * 1e-3 + noise[epoch]
        if stop_requested(accelerator, patience, held_out):
            break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main(Options())
