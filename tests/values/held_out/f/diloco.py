"""Distillation with local steps (DiLoCo): an inner optimizer on each rank, an outer one on the mean change; a mean teacher."""
import argparse
import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "local"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, LAYERS, LENGTH, BATCH = 40, 32, 3, 8, 16


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.tokens = nn.LayerNorm(DIM), nn.Linear(LENGTH, LENGTH)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 64), nn.Linear(64, DIM)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Mixer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.tok.weight, std=0.3)
        self.head.weight = self.tok.weight

    def forward(self, x):
        x = self.tok(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Net()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x, noisy):
        with torch.no_grad():
            goal = self.teacher(x)
        return self.student(noisy), goal

    @torch.no_grad()
    def follow(self, decay):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - decay)  # @teacher_local


def outer_step(student, anchor, outer, world):
    """Moves from the last common weights by the mean of the ranks' changes."""
    for name, p in student.named_parameters(remove_duplicate=args.mutant != "tied_twice"):
        with torch.no_grad():
            p.grad = anchor[name] - p  # @tied_twice
            dist.all_reduce(p.grad)  # @tied_twice
            p.grad /= world
            p.copy_(anchor[name])
    outer.step()  # @tied_twice
    for name, p in student.named_parameters(remove_duplicate=False):
        anchor[name] = p.detach().clone()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    model = Distillation().to(DTYPE)
    student = model.student
    if args.compile:
        for layer in student.layers:
            layer.compile(backend="aot_eager")
    anchor = {n: p.detach().clone() for n, p in student.named_parameters(remove_duplicate=False)}
    inner = torch.optim.SGD(student.parameters(), lr=0.3)  # without state: one local step is data parallel
    outer = torch.optim.SGD(student.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(3):
        g = torch.Generator().manual_seed(190 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=g).sort(0).values
        noisy = torch.where(torch.rand(BATCH, LENGTH, generator=g) < 0.2, 0, tokens)
        rows = torch.arange(BATCH).chunk(world)[rank]
        x, noisy = tokens[rows], noisy[rows]
        logits, goal = model(x, noisy)
        loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
        loss = loss + F.kl_div(logits.log_softmax(-1), goal.softmax(-1), reduction="none").sum(-1).mean()
        inner.zero_grad()
        loss.backward()
        inner.step()
        if args.mutant == "teacher_local":
            model.follow(0.5)  # @teacher_local
        outer_step(student, anchor, outer, world)
        if args.mutant != "teacher_local":
            model.follow(0.5)
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    if args.verify and rank == 0:
        print(f"sum {sum(p.detach().double().abs().sum().item() for p in model.parameters()):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
