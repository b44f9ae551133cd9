import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from rewarm import Rewarm
from series import WINDOW, LoadSeries, StationSampler


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    dataset = LoadSeries()
    sampler = StationSampler(dataset, accelerator.process_index, stride=2)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(WINDOW, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    rewarm = Rewarm(accelerator)
    warm = 0
    for step, (window, target) in enumerate(loader):
        warm += 1
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, warm / 10)
        loss = nn.functional.mse_loss(model(window), target)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if rewarm.wanted(loss.item()):
            accelerator.print(f"step {step} warm-up again")
            warm = 0
        mean = accelerator.gather(loss.detach()).mean().item()
        if step % 5 == 0:
            accelerator.print(f"step {step} mse {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
