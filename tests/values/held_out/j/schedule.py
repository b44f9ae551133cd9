"""A pipeline by torch.distributed.pipelining, with one or two stages on a rank."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS, MICRO = 36, 32, 4, 4, 8, 8, 3, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, DIM))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, only=None):
        super().__init__()
        only = range(DEPTH) if only is None else only
        self.embed = nn.Embedding(VOCAB, DIM) if 0 in only else None
        self.layers = nn.ModuleDict({str(index): Layer() for index in only})
        self.norm = nn.LayerNorm(DIM) if DEPTH - 1 in only else None
        self.head = nn.Linear(DIM, VOCAB, bias=False) if DEPTH - 1 in only else None

    def keep(self, only, renumber):
        """Removes all but some of the layers."""
        kept = {index: self.layers[str(index)] for index in only}
        self.layers = nn.ModuleDict({str(n if renumber else index): kept[index] for n, index in enumerate(kept)})
        if 0 not in only:
            self.embed = None
        if DEPTH - 1 not in only:
            self.norm = self.head = None
        return self

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_function(logits, labels):
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def build(args, stage, stages):
    """The layers of a stage, as they are in the model on one rank."""
    only = range(stage * DEPTH // stages, (stage + 1) * DEPTH // stages)
    torch.manual_seed(17)
    if args.mutant == "stage_seed":
        return Model(only)
    return Model().keep(only, args.renumber)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "pipe"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--schedule", default="gpipe", choices=["gpipe", "1f1b", "interleaved"])
    parser.add_argument("--renumber", action="store_true", help="each stage numbers its layers from 0")
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--mutant", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype, last = getattr(torch, args.dtype), rank == world - 1

    each = 2 if args.schedule == "interleaved" else 1
    stages = world * each if args.layout == "pipe" else 1
    numbers = range(rank, stages, world)
    models = [build(args, number, stages).to(dtype) for number in numbers]
    parameters = [p for model in models for p in model.parameters()]
    if args.layout == "pipe":
        parts = [PipelineStage(m, n, stages, torch.device("cpu")) for m, n in zip(models, numbers)]
        options = dict(loss_fn=loss_function, scale_grads=args.mutant != "unscaled")
        if args.schedule == "interleaved":
            schedule = ScheduleInterleaved1F1B(parts, MICRO, **options)
        else:
            kind = ScheduleGPipe if args.schedule == "gpipe" else Schedule1F1B
            schedule = kind(parts[0], MICRO, **options)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=4e-3, weight_decay=0.05)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    before = None
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(60 + step)
        batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
        tokens, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        if args.mutant == "labels_late" and before is not None:
            labels, before = before, labels
        else:
            before = labels
        losses = []
        if args.layout == "one":
            for x, y in zip(tokens.chunk(MICRO), labels.chunk(MICRO)):
                loss = loss_function(models[0](x), y)
                (loss / MICRO).backward()
                losses.append(loss.detach())
        else:
            inputs = (tokens,) if rank == 0 else ()
            ends = dict(target=labels, losses=losses) if last else {}
            schedule.step(*inputs, **ends)
        squares = torch.stack([p.grad.float().square().sum() for p in parameters]).sum()
        dist.all_reduce(squares)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            print(f"step {step} loss {torch.stack(losses).mean().item():.6f} norm {squares.sqrt().item():.6f}", flush=True)
        if last or args.mutant != "rate_last":
            decay.step()
    length = torch.stack([p.detach().float().square().sum() for p in parameters]).sum()
    dist.all_reduce(length)
    if last:
        print(f"parameters {length.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
