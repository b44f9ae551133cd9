"""Language model in the schedules of torch.distributed.pipelining, with a schedule of the learning rate."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "gpipe", "1f1b", "interleaved"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, MICRO = 40, 32, 4, 8, 8, 16, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x):
        x = self.tok(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x))


class Stage(nn.Module):
    """A range of layers, under the names that they have in the model."""

    def __init__(self, model, index, stages, first_layer):
        super().__init__()
        size = LAYERS // stages
        self.tok = model.tok if index == 0 else None
        self.layers = nn.ModuleDict({str(i): model.layers[str(i)] for i in range(first_layer, first_layer + size)})
        self.norm = model.norm if index == stages - 1 else None
        self.head = model.head if index == stages - 1 else None

    def forward(self, x):
        x = x if self.tok is None else self.tok(x)
        for layer in self.layers.values():
            x = layer(x)  # @layer_order
        return x if self.head is None else self.head(self.norm(x))


def loss_function(logits, target):
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    if args.mutant == "scaled_twice":
        # the schedule divides the gradients, too
        loss = loss / MICRO  # @scaled_twice
    return loss


def build(model, rank, world):
    local = 2 if args.layout == "interleaved" else 1
    count = local * world
    modules, stages = [], []
    for i in range(local):
        index = i * world + rank
        first = index * (LAYERS // count)
        if args.mutant == "layer_order":  # consecutive stages on one rank, as without interleaving
            first = (rank * local + i) * (LAYERS // count)  # @layer_order
        modules.append(Stage(model, index, count, first))
        stages.append(PipelineStage(modules[-1], index, count, torch.device("cpu")))
    if args.layout == "interleaved":
        return nn.ModuleList(modules), ScheduleInterleaved1F1B(stages, MICRO, loss_fn=loss_function)
    schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[args.layout]
    return modules[0], schedule(stages[0], MICRO, loss_fn=loss_function)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model, schedule = Model().to(DTYPE), None
    if args.layout != "one":
        model, schedule = build(model, rank, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (s + 1))
    for step in range(3):
        g = torch.Generator().manual_seed(110 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        losses = []
        if schedule is None:
            loss = loss_function(model(x), y)
            loss.backward()
            losses.append(loss.detach())
        else:
            first, last = rank == 0, rank == world - 1
            schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))  # @scaled_twice
        optimizer.step()  # @warm_last @scaled_twice
        optimizer.zero_grad()
        if args.mutant != "warm_last" or losses:
            warm.step()  # @warm_last
        mean = torch.stack([l.detach().float() for l in losses]).mean() if losses else torch.zeros(())
        dist.broadcast(mean, world - 1)
        if rank == 0:
            print(f"step {step} loss {mean.item():.7f}", flush=True)
    if args.verify:
        total = sum(p.detach().double().abs().sum() for p in model.parameters())
        dist.all_reduce(total)
        if rank == 0:
            print(f"sum {total.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
