import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import JOINTS, SIDE, PoseFrames
from losses import BalancedHeatmapLoss


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(16, JOINTS, 1),
    )


def train_epoch(model, loader, criterion, optimizer, epoch):
    model.train()
    running = 0.0
    for step, (image, xy, visible) in enumerate(loader):
        heat = model(image)
        loss = criterion(heat, xy.float(), visible)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if step % 5 == 0 and dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    mean = torch.tensor([running / len(loader)])
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = PoseFrames()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, drop_last=True)
    model = DDP(build_model())
    criterion = BalancedHeatmapLoss(SIDE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, criterion, optimizer, epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} mean {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
