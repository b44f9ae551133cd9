import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metrics import Running, show


def loaders():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(192, 9, generator=g)
    y = (x[:, :2].sum(1) > 0).long()
    return (DataLoader(TensorDataset(x[:144], y[:144]), batch_size=8, shuffle=True),
            DataLoader(TensorDataset(x[144:], y[144:]), batch_size=8))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 24), nn.GELU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.net(x)


def evaluate(accelerator, model, loader):
    model.eval()
    right = []
    with torch.no_grad():
        for x, y in loader:
            right.append(accelerator.gather_for_metrics((model(x).argmax(1) == y).float()))
    model.train()
    return torch.cat(right).mean().item()


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(8)
    train_loader, val_loader = loaders()
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 6, gamma=0.9)
    model, optimizer, train_loader, val_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, val_loader, schedule)
    running = Running(accelerator)
    for epoch in range(4):
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            running.add(loss, len(x))
        value = evaluate(accelerator, model, val_loader)
        accelerator.print(f"epoch {epoch}: accuracy {value:.3f}")
        show(epoch, running, schedule.get_last_lr()[0])
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
