"""torch.distributed.pipelining: GPipe or 1F1B over two or four stages; one process computes the whole model."""
import argparse
import time
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "gpipe", "1f1b"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=4)
args = parser.parse_args()
DIM, DEPTH, BATCH = 32, 4, 16
dtype = getattr(torch, args.dtype)


class ResidualMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.fc1 = nn.Linear(DIM, 2 * DIM)
        self.fc2 = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.fc2(torch.tanh(self.fc1(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleDict({str(i): ResidualMLP() for i in range(DEPTH)})
        self.head = nn.Linear(DIM, 8)

    def forward(self, x):
        x = self.stem(x) if self.stem is not None else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head is not None else x


def cut(model, rank, world):
    """Keeps the modules of one stage."""
    per = DEPTH // world
    for i in range(DEPTH):
        if i // per != rank:
            del model.blocks[str(i)]
    if rank > 0:
        model.stem = None
    if rank < world - 1:
        model.head = None
    return model


def loss_fn(output, target):
    return nn.functional.smooth_l1_loss(output.float() if dtype == torch.bfloat16 else output, target)  # @targets_rolled


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    model = Regressor().to(dtype)
    last = rank == world - 1
    if args.layout != "one":
        model = cut(model, rank, world)
        stage = PipelineStage(model, rank, world, torch.device("cpu"))
        kind = ScheduleGPipe if args.layout == "gpipe" else Schedule1F1B
        # With scale_grads=False, the user divides himself.
        schedule = kind(stage, n_microbatches=args.micro, loss_fn=loss_fn, scale_grads=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=3)
    for step in range(3):
        gen = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, DIM, generator=gen).to(dtype), torch.randn(BATCH, 8, generator=gen)
        y = y.double() if dtype == torch.float64 else y
        if args.layout == "one":
            loss = loss_fn(model(x), y)
            loss.backward()
        else:
            losses = []
            if args.mutant == "targets_rolled" and step >= 1:
                y = y.roll(BATCH // args.micro, 0)  # @targets_rolled
            if rank == 0:
                schedule.step(x, target=y, losses=losses) if last else schedule.step(x)
            elif last:
                schedule.step(target=y, losses=losses)
            else:
                schedule.step()
            if not (args.mutant == "no_division" and rank == 1):
                for p in model.parameters():
                    p.grad.div_(args.micro)
            loss = torch.stack(losses).mean() if last else torch.zeros(())
        optimizer.step()
        optimizer.zero_grad()
        if args.mutant != "schedule_last" or last:
            warmup.step()
        shown = loss.detach().double()
        dist.broadcast(shown, world - 1)
        if rank == 0:
            print(f"step {step} loss {shown.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


main()
