import torch
import torch.distributed as dist
import torch.nn as nn
from accelerate import Accelerator

from data import loaders
from utils import Meter, count_params, report, seed_all


class Regressor(nn.Module):
    def __init__(self, dim=12, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x))


def train_epoch(accelerator, model, opt, loader, meter, log_every=5):
    model.train()
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if accelerator.is_main_process and step % log_every == log_every - 1:
            report(accelerator, loss, meter, step)


def main():
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    seed_all(0)
    model = Regressor()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = loaders(8)
    accelerator.print("parameters", count_params(model))
    model, opt, loader = accelerator.prepare(model, opt, loader)
    meter = Meter()
    for epoch in range(3):
        train_epoch(accelerator, model, opt, loader, meter)
        accelerator.wait_for_everyone()
    accelerator.end_training()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
