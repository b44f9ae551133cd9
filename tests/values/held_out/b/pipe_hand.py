"""A pipeline by hand: stages send activations on and gradients back; the embedding is also the output layer."""
import argparse
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "pipe"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=4)
parser.add_argument("--max-norm", type=float, default=1.0)
args = parser.parse_args()
VOCAB, DIM, DEPTH, BATCH, LENGTH = 40, 32, 4, 8, 10
dtype = getattr(torch, args.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.rnn = nn.Linear(2 * DIM, 2 * DIM)
        self.out = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        h = self.norm(x)
        before = F.pad(h, (0, 0, 1, 0))[:, :-1]
        return x + self.out(F.silu(self.rnn(torch.cat([h, before], -1))))


class Stage(nn.Module):
    """Some of the layers; names of parameters are those of the whole model."""

    def __init__(self, rank, world):
        super().__init__()
        self.first, self.last = rank == 0, rank == world - 1
        embed, norm = nn.Embedding(VOCAB, DIM), nn.LayerNorm(DIM)
        nn.init.normal_(embed.weight, std=0.3)
        layers = [Layer() for _ in range(DEPTH)]
        if self.first or self.last:
            self.embed = embed
        per = DEPTH // world
        self.layers = nn.ModuleDict({str(i): layers[i] for i in range(rank * per, (rank + 1) * per)})
        if self.last:
            self.norm = norm

    def forward(self, x):
        if self.first:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return F.linear(self.norm(x), self.embed.weight) if self.last else x


def clip(stage, max_norm, world):
    square = torch.zeros(())
    for name, p in stage.named_parameters():
        if name == "embed.weight" and stage.first and not stage.last:
            continue  # counted by the last stage
        square += p.grad.float().square().sum()  # @clip_stage
    if args.mutant != "clip_stage":
        dist.all_reduce(square)
    scale = torch.clamp(max_norm / (square.sqrt() + 1e-6), max=1)
    for p in stage.parameters():
        p.grad.mul_(scale.to(p.grad.dtype))  # @clip_stage


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(13)
    stage = Stage(rank, world).to(dtype)
    ends = dist.new_group([0, world - 1]) if world > 1 else None
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.2, momentum=0.9)
    shape = (BATCH // args.micro, LENGTH, DIM)
    for step in range(3):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(30 + step))
        micros = ids.chunk(args.micro)
        inputs, outputs, shown = [], [], torch.zeros((), dtype=torch.float64)
        for m in micros:  # all forward
            if stage.first:
                x = m[:, :-1]
            else:
                x = torch.empty(shape, dtype=dtype)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if stage.last:
                logits = y.float() if dtype == torch.bfloat16 else y
                y = F.cross_entropy(logits.flatten(0, 1), m[:, 1:].flatten()) / args.micro
                shown += y.detach().double()
            else:
                dist.send(y.detach(), rank + 1)
            inputs.append(x)
            outputs.append(y)
        for i in reversed(range(args.micro)):  # all backward
            if stage.last:
                outputs[i].backward()
            else:
                grad = torch.empty(shape, dtype=dtype)
                dist.recv(grad, rank + 1)
                j = args.micro - 1 - i if args.mutant == "backward_order" and rank == 0 and step >= 1 else i
                outputs[j].backward(grad)  # @backward_order
            if not stage.first:
                dist.send(inputs[i].grad, rank - 1)
        if world > 1 and (stage.first or stage.last) and args.mutant != "tied_not_added":
            dist.all_reduce(stage.embed.weight.grad, group=ends)
        clip(stage, args.max_norm, world)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


main()
