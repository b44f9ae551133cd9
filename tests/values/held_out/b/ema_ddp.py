"""DistributedDataParallel with accumulation (no_sync), a tied autoencoder and an average of its weights."""
import argparse
import contextlib
import copy
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.inner = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.code = nn.Linear(hidden, 8)

    def forward(self, x):
        return self.code(F.silu(self.norm(self.inner(x))))


class AutoEncoder(nn.Module):
    def __init__(self, features=32, hidden=48):
        super().__init__()
        self.encoder = Encoder(features, hidden)
        self.expand = nn.Sequential(nn.Linear(8, hidden), nn.SiLU())
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        h = self.expand(self.encoder(x))
        return F.linear(h, self.encoder.inner.weight.t(), self.bias)  # tied


@torch.no_grad()
def update_average(average, model, decay=0.6):
    for a, p in zip(average.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)  # @ema_stale @ema_rank


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "ddp", "ddp_reload"])
    parser.add_argument("--mutant", default="none")
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    model = AutoEncoder()
    average = copy.deepcopy(model).requires_grad_(False)
    wrapped = model if args.layout == "one" else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    held_out = torch.randn(10, 32, generator=torch.Generator().manual_seed(99))
    for step in range(3):
        data = torch.randn(24, 32, generator=torch.Generator().manual_seed(step)).cumsum(-1) / 4
        total = torch.zeros(())
        micros = data.chunk(world)[rank].chunk(args.accumulate)
        for i, x in enumerate(micros):
            wait = i < args.accumulate - 1
            if args.mutant == "no_sync_last" and step >= 1:
                wait = True
            hold = wrapped.no_sync() if wait and args.layout != "one" else contextlib.nullcontext()
            with hold:
                loss = F.mse_loss(wrapped(x), x) / args.accumulate
                loss.backward()  # @no_sync_last
            total += loss.detach()
        if args.mutant == "ema_stale":
            update_average(average, model)
            optimizer.step()
        else:
            optimizer.step()
            if args.mutant != "ema_rank" or rank == 0 or step == 0:
                update_average(average, model)
        optimizer.zero_grad()
        if not (args.mutant == "lr_drift" and rank == world - 1 and step == 0):
            schedule.step()
        if args.layout == "ddp_reload":
            state = {k: v.clone() for k, v in model.state_dict().items()}
            moments = copy.deepcopy(optimizer.state_dict())
            model.load_state_dict(state)
            optimizer.load_state_dict(moments)
        average.eval()
        with torch.no_grad():
            error = F.mse_loss(average(held_out), held_out)
        shown = torch.stack([total, error])
        dist.all_reduce(shown)
        if rank == 0:
            w = sum(p.double().sum() for p in model.parameters()).item()
            print(f"step {step} loss {shown[0].item() / world:.7f} average {shown[1].item() / world:.7f} {w:.6f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
