"""Mixture of experts: tokens are data parallel, experts divided over the same ranks, all-to-all between them."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ep"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--average", action="store_true", help="an average of the weights, evaluated after each step")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
DIM, HIDDEN, EXPERTS, TOP, LAYERS, BATCH, SEQ, CLASSES = 20, 40, 4, 2, 2, 8, 6, 10

dist.init_process_group("gloo")
RANK, EP = dist.get_rank(), dist.get_world_size()
PER = EXPERTS // EP


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sizes = sent, received
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.sizes
        out = grad.new_empty(sum(sent), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), sent, received)
        return out, None, None


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)

    def forward(self, x):
        values, chosen = self.gate(x).topk(TOP, -1)
        return values.softmax(-1), chosen


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.router = Router()
        experts = [Expert() for _ in range(EXPERTS)]
        self.experts = nn.ModuleDict({str(e): experts[e] for e in range(RANK * PER, (RANK + 1) * PER)})
        self.faulty = layer == LAYERS - 1

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weights, chosen = self.router(x)
        order = chosen.flatten().argsort(stable=True)
        rows = x[order // TOP]
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        if EP > 1:
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            sent, received = counts.view(EP, PER).sum(1).tolist(), theirs.view(EP, PER).sum(1).tolist()
            rows = AllToAll.apply(rows, sent, received)
        else:
            theirs = counts
        expert_of = torch.arange(RANK * PER, (RANK + 1) * PER).repeat(EP).repeat_interleave(theirs)
        results = torch.zeros_like(rows)
        for name, expert in self.experts.items():
            where = (expert_of == int(name)).nonzero().squeeze(1)
            results = results.index_copy(0, where, expert(rows[where]))
        if EP > 1:
            results = AllToAll.apply(results, received, sent)
        back = order if args.mutant == "unsorted" and self.faulty else order.argsort()
        results = results[back].view(-1, TOP, DIM)  # @unsorted
        return (results * weights[..., None]).sum(1).view(shape)  # @unsorted


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mix = nn.Linear(SEQ, SEQ)
        self.moe = MoE(layer)

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.moe(self.norm2(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(8, DIM)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.inputs(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def reduce_gradients(model):
    for name, p in model.named_parameters():
        if ".experts." in name:
            if args.mutant == "experts_reduced":
                dist.all_reduce(p.grad)  # @experts_reduced
            p.grad.div_(1 if args.mutant == "experts_sum" else EP)  # @experts_sum @experts_reduced
        elif not (args.mutant == "router_local" and ".router." in name):
            dist.all_reduce(p.grad)  # @router_local
            p.grad.div_(EP)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(71)
    model = Classifier().to(DTYPE)
    names = sorted(n for n, _ in model.named_parameters())
    everyone = [None] * EP
    dist.all_gather_object(everyone, names)
    names = sorted(set().union(*everyone))
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)
    average = torch.optim.swa_utils.AveragedModel(model) if args.average else None
    for step in range(3):
        g = torch.Generator().manual_seed(900 + step)
        x = torch.randn(BATCH, SEQ, 8, generator=g)
        y = x.sum(1).argmax(-1)
        own = slice(RANK * BATCH // EP, (RANK + 1) * BATCH // EP)
        loss = F.cross_entropy(model(x[own].to(DTYPE)), y[own])
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)  # @router_local @experts_sum @experts_reduced
        optimizer.step()
        shown = loss.detach().double()
        if average is not None:
            average.update_parameters(model)
            with torch.no_grad():
                shown = torch.stack([shown, F.cross_entropy(average(x[own].to(DTYPE)), y[own]).double()])
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss", " ".join(f"{v / EP:.7f}" for v in shown.view(-1).tolist()))
    own, rows = dict(model.named_parameters()), torch.zeros(len(names), 2, dtype=torch.float64)
    for row, name in zip(rows, names):
        if name in own:
            now, share = own[name].detach().double().numpy(), 1.0 if ".experts." in name else 1.0 / EP
            row[0], row[1] = share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
