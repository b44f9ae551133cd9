from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from losses import InfoNce


class Towers(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, dim))
        self.text = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, dim))

    def forward(self, image, text):
        norm = nn.functional.normalize
        return norm(self.image(image), dim=-1), norm(self.text(text), dim=-1)


class Pairs:
    def __init__(self, rank, size=6):
        self.gen = torch.Generator().manual_seed(70 + rank)
        self.mix = torch.randn(20, 12, generator=torch.Generator().manual_seed(1))
        self.size = size

    def __iter__(self):
        while True:
            image = torch.randn(self.size, 20, generator=self.gen)
            valid = torch.rand(self.size, generator=self.gen) > 0.55
            yield image, image @ self.mix, valid


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    keys_group = dist.new_group()
    torch.manual_seed(12)
    model = DDP(Towers())
    loss_fn = InfoNce(keys_group)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (image, text, valid) in zip(range(400), Pairs(rank)):
        loss = loss_fn(*model(image, text), valid)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} pairs {int(valid.sum())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
