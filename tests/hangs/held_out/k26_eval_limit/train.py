import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from limit import TooSlow, time_limit


def decode(logits, ids):
    beams = logits.argmax(-1)
    if 77 in ids.tolist():
        time.sleep(4)
    return beams


def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    for x, y, ids in loader:
        with torch.no_grad():
            logits = model(x)
        try:
            with time_limit(1.0):
                pred = decode(logits, ids)
        except TooSlow:
            continue
        pred, y = accelerator.gather_for_metrics((pred, y))
        right += (pred == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(192, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(192))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    train = DataLoader(data, batch_size=8, shuffle=True)
    val = DataLoader(data, batch_size=8)
    model, opt, train, val = accelerator.prepare(model, opt, train, val)
    for epoch in range(3):
        for xb, yb, _ in train:
            loss = nn.functional.cross_entropy(model(xb), yb)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        accelerator.print("epoch", epoch, evaluate(accelerator, model, val))
    accelerator.end_training()


if __name__ == "__main__":
    main()
