"""Mixture of experts: data parallel, with experts distributed over the same ranks by all_to_all."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ep"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--top", type=int, default=1)
parser.add_argument("--capacity", type=int, default=0, help="tokens for an expert of each group of two sequences")
args = parser.parse_args()

VOCABULARY, DIM, EXPERTS, LAYERS, BATCH, LENGTH, GROUP, STEPS = 40, 32, 4, 2, 8, 12, 2, 3


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.splits = sent, received
        output = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(output, rows.contiguous(), received, sent)  # @unsort
        return output

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.splits
        output = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(output, gradient.contiguous(), sent, received)
        return output, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert() for e in range(EXPERTS)})
        self.world = dist.get_world_size()
        here = EXPERTS // self.world
        for e in range(EXPERTS):
            if e // here != dist.get_rank():
                del self.experts[str(e)]

    def compute(self, rows, counts):
        parts = zip(self.experts.values(), rows.split(counts))
        return torch.cat([expert(part) for expert, part in parts])

    def exchange(self, rows, counts):
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        received = received.view(self.world, -1)
        sent, arrived = counts.view(self.world, -1).sum(1).tolist(), received.sum(1).tolist()
        rows = AllToAll.apply(rows, sent, arrived)
        expert = torch.arange(received.shape[1]).repeat(self.world).repeat_interleave(received.flatten())
        order = expert.argsort(stable=True)
        results = self.compute(rows[order], received.sum(0).tolist())
        if args.mutant != "unsort" or self.layer != 1:
            results = results[order.argsort()]  # @unsort
        return AllToAll.apply(results, arrived, sent)  # @unsort

    def forward(self, x):
        tokens = x.reshape(-1, DIM)
        probabilities = self.router(tokens).softmax(-1)
        gates, chosen = probabilities.topk(args.top)
        if args.top > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, EXPERTS).view(x.shape[0] // GROUP, -1, EXPERTS)
        share = hot.to(x.dtype).mean(1) * args.top
        self.balance = (share * probabilities.view(hot.shape[0], -1, EXPERTS).mean(1)).sum(-1).mean() * EXPERTS
        keep = torch.ones(chosen.numel(), dtype=torch.bool)
        if args.capacity:
            capacity = args.capacity
            if args.mutant == "capacity" and self.layer == 0:
                capacity = capacity * self.world  # @capacity
            keep = ((hot.cumsum(1) * hot).sum(-1) <= capacity).flatten()  # @capacity
        chosen, gate = chosen.flatten()[keep], gates.flatten()[keep]  # @capacity
        source = torch.arange(tokens.shape[0]).repeat_interleave(args.top)[keep]  # @capacity
        order = chosen.argsort(stable=True)
        rows, counts = tokens[source[order]], chosen.bincount(minlength=EXPERTS)  # @capacity
        if args.layout == "one":
            results = self.compute(rows, counts.tolist())
        else:
            results = self.exchange(rows, counts)
        results = results * gate[order, None]  # @unsort @capacity
        return torch.zeros_like(tokens).index_add(0, source[order], results).view_as(x)  # @unsort @capacity


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.mix = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.moe = MoE(layer)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.mix(h.cumsum(1) / torch.arange(1, LENGTH + 1, dtype=x.dtype)[:, None])
        return x + self.moe(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def reduce_gradients(model):
    world = dist.get_world_size()
    for name, p in model.named_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if ".experts." in name:  # it has the contributions of all ranks' tokens already
            if args.mutant != "expert_sum":
                p.grad.div_(world)  # @expert_sum
        elif not (args.mutant == "router_skipped" and ".moe." in name):
            dist.all_reduce(p.grad)  # @router_skipped
            p.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model = LM().to(getattr(torch, args.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).chunk(world)[rank]
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss = loss + 0.02 * sum(layer.moe.balance for layer in model.layers)
        loss.backward()
        if args.layout == "ep":
            reduce_gradients(model)  # @expert_sum
        optimizer.step()  # @expert_sum @router_skipped
        optimizer.zero_grad()
        mean = loss.detach().float()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / world:.7f}", flush=True)
    check = torch.zeros((), dtype=torch.float64)
    for name, p in model.named_parameters():
        value = (p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum()
        check += value if ".experts." in name else value / world
    dist.all_reduce(check)
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
