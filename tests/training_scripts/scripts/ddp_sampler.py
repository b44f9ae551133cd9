"""DistributedDataParallel over a sampler: accumulated steps, a checkpoint, evaluation."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)),
        bucket_cap_mb=0.001,
    )
    data = TensorDataset(torch.randn(64, 20), torch.randn(64, 1))
    sampler = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
            if number % 2 == 0:
                with model.no_sync():
                    nn.functional.mse_loss(model(x), y).backward()
                continue
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    folder: list[str] = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    checkpoint = Path(folder[0], "model.pt")
    if rank == 0:
        torch.save(model.module.state_dict(), checkpoint)
    dist.barrier()
    model.module.load_state_dict(torch.load(checkpoint))

    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y) for x, y in DataLoader(data, batch_size=32)]
    total = torch.stack(losses).mean()
    dist.reduce(total, dst=0)
    gathered: list[torch.Tensor] = [torch.empty_like(total) for _ in range(world_size)]
    dist.gather(total, gathered if rank == 0 else None, dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
