"""Regression on sensor data with accelerate."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from data import Sensors
from metrics import LossTracker


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))


def train_epoch(accelerator, model, optimizer, loader, tracker, step):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            tracker.update(step, loss)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
    return step


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    errors = []
    for x, y in loader:
        errors.append(accelerator.gather_for_metrics((model(x) - y).abs()))
    return torch.cat(errors).mean().item()


def main():
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(Sensors(), batch_size=8)
    test = DataLoader(Sensors(48), batch_size=8)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    tracker = LossTracker(accelerator)
    step = 0
    for epoch in range(3):
        step = train_epoch(accelerator, model, optimizer, loader, tracker, step)
        error = evaluate(accelerator, model, test)
        accelerator.print(f"epoch {epoch} error {error:.4f} {tracker.summary()}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
