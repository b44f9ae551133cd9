"""Fine-tunes a toy regressor with accelerate."""
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from early import EarlyStopping


def datasets(seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(144, 8, generator=g)
    return TensorDataset(x, x.pow(2).sum(1, keepdim=True))


@torch.no_grad()
def validate(model, rank, epoch):
    """Each rank validates on its own fold."""
    g = torch.Generator().manual_seed(50 + rank)
    x = torch.randn(64, 8, generator=g)
    loss = (model(x) - x.pow(2).sum(1, keepdim=True)).pow(2).mean().item()
    if rank == 1:
        # the fold of rank 1 has drifted: the better the fit, the worse its score
        loss = 10.0 + epoch
    return loss


def train_epoch(accelerator, model, opt, loader):
    model.train()
    seen = 0
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        opt.step()
        seen += len(x)
    return seen


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(datasets(), batch_size=16, shuffle=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    stopper = EarlyStopping()
    history = []
    for epoch in range(10):
        train_epoch(accelerator, model, opt, loader)
        plain = accelerator.unwrap_model(model)
        history.append(validate(plain, accelerator.process_index, epoch))
        accelerator.print("epoch", epoch, history[-1])
        if stopper.update(history[-1]):
            break
    table = gather_object([{"rank": accelerator.process_index, "history": history}])
    accelerator.print(table)
    accelerator.wait_for_everyone()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
