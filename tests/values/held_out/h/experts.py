"""Mixture of experts: each rank has a part of the batch and a part of the experts, tokens travel by all-to-all."""
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
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
FEATURES, DIM, EXPERTS, CLASSES, BATCH, LENGTH, STEPS = 12, 24, 4, 10, 8, 6, 3


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sizes = sent, received
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent)
        return y

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.sizes
        x = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(x, grad.contiguous(), sent, received)
        return x, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(i): Expert() for i in range(EXPERTS)})

    def forward(self, x):
        rank, world = dist.get_rank(), dist.get_world_size()
        flat = x.flatten(0, 1)
        probs = self.router(flat).float().softmax(-1)
        gate, choice = probs.max(-1)
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=EXPERTS)
        everyone = [torch.empty_like(counts) for _ in range(world)]
        dist.all_gather(everyone, counts)
        per = EXPERTS // world
        sent = [int(counts[r * per:(r + 1) * per].sum()) for r in range(world)]
        received = [int(c[rank * per:(rank + 1) * per].sum()) for c in everyone]
        tokens = Exchange.apply(flat[order], sent, received)
        # they come sorted by source, then by expert
        names = torch.cat([torch.arange(rank * per, (rank + 1) * per).repeat_interleave(
            c[rank * per:(rank + 1) * per]) for c in everyone])
        out = torch.zeros_like(tokens)
        for e in range(rank * per, (rank + 1) * per):
            where = (names == e).nonzero()[:, 0]
            out = out.index_add(0, where, self.experts[str(e)](tokens[where]))
        back = Exchange.apply(out, received, sent)
        y = torch.empty_like(flat).index_copy(0, order, back)
        if args.mutant == "gate_order":
            gate = gate[order]  # @gate_order
        y = y * gate[:, None].to(y.dtype)  # @gate_order
        # balance: share of tokens times mean probability
        total = counts.float()
        number = torch.tensor(float(len(flat)))
        if args.mutant != "aux_local":
            dist.all_reduce(total)  # @aux_local
        dist.all_reduce(number)
        share = total / total.sum()  # @aux_local
        aux = EXPERTS * (share * probs.sum(0) / number).sum()  # @aux_local
        return y.view_as(x), aux  # @gate_order @aux_local


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(DIM), MoE()

    def forward(self, x):
        y, aux = self.moe(self.norm(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x, aux = self.stem(x), 0.0
        for layer in self.layers:
            x, a = layer(x)
            aux = aux + a  # @aux_local
        return self.head(x), aux


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = Model().to(DTYPE)
    if world > 1:
        per = EXPERTS // world
        for layer in model.layers:
            for e in range(EXPERTS):
                if e // per != rank:
                    del layer.moe.experts[str(e)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-5)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(7 + step)
        x = torch.randn(BATCH, LENGTH, FEATURES, generator=g).to(DTYPE)
        y = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=g)
        total = torch.zeros(())
        for rows in torch.arange(BATCH).chunk(args.accumulate):
            rows = rows.chunk(world)[rank]
            logits, aux = model(x[rows])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y[rows].flatten(), reduction="sum")
            loss = loss / (BATCH * LENGTH) + 0.5 * aux / args.accumulate  # @aux_local
            loss.backward()  # @expert_mix @router_alone
            total += loss.detach()
        square = torch.zeros(())
        for name, p in model.named_parameters():
            own = ".experts." in name
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if args.mutant == "expert_mix":
                own = ".experts" in name and name.endswith("weight")  # @expert_mix
            if args.mutant == "router_alone":
                own = own or ".moe." in name  # @router_alone
            if not own:
                dist.all_reduce(p.grad)  # @expert_mix @router_alone
            if ".experts." in name:
                square += p.grad.float().square().sum()
        if args.clip:
            dist.all_reduce(square)
            square += sum(p.grad.float().square().sum() for n, p in model.named_parameters() if ".experts." not in n)
            for p in model.parameters():
                p.grad.mul_((args.clip / (square.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()  # @expert_mix @router_alone
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
