"""Pipeline of stages with micro-batches, sent and received by hand or with torch.distributed.pipelining."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "hand", "gpipe", "1f1b"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--tie", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--micro", type=int, default=4)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, LAYERS, LENGTH, BATCH, STEPS = 36, 32, 4, 8, 16, 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(DIM), nn.Linear(LENGTH, LENGTH)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        y = self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)  # @stale
        x = x + y
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleDict({str(i): Layer() for i in range(LAYERS)})
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        if args.tie:
            self.head.weight = self.tok.weight

    def cut(self, stage, stages):
        per = LAYERS // stages
        for i in range(LAYERS):
            if i // per != stage:
                del self.layers[str(i)]
        if stage > 0:
            self.tok = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, x):
        if self.tok is not None:
            x = self.tok(x)
        for layer in self.layers.values():
            x = layer(x)  # @stale
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def step_by_hand(model, tokens, target, rank, world):
    """All micro-batches forward, then all backward."""
    kept, total = [], torch.zeros(())
    buffer = torch.empty(BATCH // args.micro, LENGTH, DIM, dtype=DTYPE)
    for x, y in zip(tokens.chunk(args.micro), target.chunk(args.micro)):
        if rank > 0:
            if args.mutant != "stale":
                buffer = torch.empty_like(buffer)
            dist.recv(buffer, rank - 1)  # @stale
            x = buffer.detach().requires_grad_()  # @stale
        out = model(x)  # @stale
        if rank < world - 1:
            dist.send(out.detach().contiguous(), rank + 1)
        else:
            out = loss_of(out, y) / args.micro
            total += out.detach()
        kept.append((x, out))
    for i, (x, out) in enumerate(kept):
        if args.mutant == "last_first" and rank == 0:
            out = kept[args.micro - 1 - i][1]  # @last_first
        grad = None
        if rank < world - 1:
            grad = torch.empty_like(out)
            dist.recv(grad, rank + 1)  # @last_first
        out.backward(grad)  # @last_first @stale
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


def clip(model, rank, world):
    square = torch.zeros(())
    for p in model.parameters():
        if args.tie and world > 1 and rank > 0 and model.head is not None and p is model.head.weight:
            continue  # counted by the first stage
        square += p.grad.float().square().sum()
    if args.mutant != "clip_stage":
        dist.all_reduce(square)  # @clip_stage
    for p in model.parameters():
        p.grad.mul_((args.clip / (square.sqrt() + 1e-6)).clamp(max=1.0))  # @clip_stage


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    model = Model().to(DTYPE)
    ends = dist.new_group(sorted({0, world - 1}))
    if args.layout != "one":
        model.cut(rank, world)
    schedule = None
    if args.layout in ("gpipe", "1f1b"):
        stage = PipelineStage(model, rank, world, torch.device("cpu"))
        kind = ScheduleGPipe if args.layout == "gpipe" else Schedule1F1B
        schedule = kind(stage, args.micro, loss_fn=loss_of, scale_grads=args.mutant != "sum_of_micro")  # @sum_of_micro
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, eps=1e-5)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(90 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        tokens, target = tokens[:, :-1], tokens[:, 1:].contiguous()
        if args.mutant == "target_order" and rank == world - 1:
            target = torch.cat(target.chunk(args.micro)[::-1])  # @target_order
        if schedule is None:
            total = step_by_hand(model, tokens, target, rank, world)  # @target_order
        else:
            losses = []
            inputs = (tokens,) if rank == 0 else ()
            if rank == world - 1:
                schedule.step(*inputs, target=target, losses=losses)  # @sum_of_micro @target_order
                total = torch.stack([x.detach() for x in losses]).mean()
            else:
                schedule.step(*inputs)  # @sum_of_micro
                total = torch.zeros(())
        if args.tie and world > 1 and rank in (0, world - 1):
            weight = model.tok.weight if rank == 0 else model.head.weight
            if args.mutant == "tied":
                mean = weight.grad.clone()  # @tied
                dist.all_reduce(mean, group=ends)  # @tied
                if rank == 0:
                    weight.grad.copy_(mean)  # @tied
            else:
                dist.all_reduce(weight.grad, group=ends)  # @tied
        if args.clip:
            clip(model, rank, world)  # @clip_stage
        optimizer.step()  # @clip_stage @tied @sum_of_micro
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
