import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from data import make_loaders
from stopping import Patience

EPOCHS = 12


class Regressor(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x))


def train_epoch(accelerator, model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, count = 0.0, 0
    for x, y in loader:
        total += nn.functional.mse_loss(model.module(x), y, reduction="sum").item()
        count += len(y)
    return total / count


def main():
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    train_loader, valid_loader = make_loaders(accelerator.process_index, 8)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)

    patience = Patience()
    history = []
    for epoch in range(EPOCHS):
        train_epoch(accelerator, model, optimizer, train_loader)
        patience.update(validate(model, valid_loader))
        history.append(patience.best)
        accelerator.print(f"epoch {epoch}: best {patience.best:.4f}")
        if patience.exhausted:
            break

    best = torch.tensor([min(history)])
    scores = accelerator.gather(best)
    accelerator.print("best of all sites", scores.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
