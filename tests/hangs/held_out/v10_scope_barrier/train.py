import torch
import torch.distributed as dist
from torch import nn

from data import ShardReader
from session import session


class AutoEncoder(nn.Module):
    def __init__(self, dim=8, code=3):
        super().__init__()
        self.enc = nn.Linear(dim, code)
        self.dec = nn.Linear(code, dim)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def sync_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for g in grads:
        g.copy_(flat[offset : offset + g.numel()].view_as(g))
        offset += g.numel()


def train_on(model, opt, rows, batch=4):
    for x in rows.split(batch):
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        sync_gradients(model)
        opt.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with session("autoencoder") as rank:
        model = AutoEncoder()
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        for i, rows in enumerate(ShardReader(rank)):
            loss = train_on(model, opt, rows)
            if rank == 0:
                print(f"shard {i} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
