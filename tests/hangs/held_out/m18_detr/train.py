"""Set-prediction detector, trained in epochs with a validation pass of its own data per rank."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from detector import Criterion, Detector
from engine import evaluate, train_one_epoch
from scenes import SceneData, collate, shard_for


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Detector())
    criterion = Criterion()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = SceneData(shard_for(96, rank, world), seed=1)
    val = SceneData(shard_for(50, rank, world), seed=2)
    train_loader = DataLoader(train, batch_size=8, collate_fn=collate, drop_last=True)
    val_loader = DataLoader(val, batch_size=4, collate_fn=collate, num_workers=1)
    for epoch in range(3):
        train_one_epoch(model, criterion, train_loader, opt)
        stats = evaluate(model, criterion, val_loader)
        if rank == 0:
            print(f"epoch {epoch} " + " ".join(f"{k} {v:.4f}" for k, v in stats.items()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
