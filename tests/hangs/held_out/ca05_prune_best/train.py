import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ckpt import Keeper

EXPORTER = 1


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def shared_folder():
    box = [tempfile.mkdtemp(prefix="run-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def validate(model, x, y):
    with torch.no_grad():
        value = (model(x) - y).pow(2).mean()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def fit(model, keeper, steps=48, every=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(dist.get_rank())
    val_x = torch.randn(32, 6, generator=generator)
    val_y = val_x.sum(dim=1)
    best = (float("inf"), None)
    for step in range(steps):
        if step == 20:
            optimizer.param_groups[0]["lr"] = 0.9
        x = torch.randn(16, 6, generator=generator)
        loss = (model(x) - x.sum(dim=1)).clamp(-3, 3).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == every - 1:
            if dist.get_rank() == 0:
                keeper.save(step, model.module)
            value = validate(model, val_x, val_y)
            if value < best[0]:
                best = (value, step)
    return best


def export(model, keeper, step):
    if dist.get_rank() == EXPORTER:
        model.load_state_dict(keeper.load(step))
        torch.jit.trace(model, torch.zeros(1, 6))
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=EXPORTER)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    keeper = Keeper(shared_folder())
    model = DDP(Regressor())
    value, step = fit(model, keeper)
    print(f"rank {dist.get_rank()}: best is step {step} with {value:.4f}", flush=True)
    export(model.module, keeper, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
