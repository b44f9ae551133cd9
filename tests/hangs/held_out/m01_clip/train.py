"""Two-tower contrastive training with in-batch negatives from all ranks."""
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

from pairs import PairData, split_pairs
from towers import TwoTower, contrastive_loss

BATCH = 16
EPOCHS = 3


def run_epoch(model, loader, opt):
    total, n = 0.0, 0
    for image, text in loader:
        a, b, scale = model(image, text)
        loss = contrastive_loss(a, b, scale)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        n += 1
    return total / max(n, 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = PairData(size=200)
    mine = Subset(data, split_pairs(len(data), world)[rank])
    loader = DataLoader(mine, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(rank))
    model = DDP(TwoTower())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        mean = run_epoch(model, loader, opt)
        out = torch.tensor([mean])
        dist.all_reduce(out)
        if rank == 0:
            print(f"epoch {epoch} loss {out.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
