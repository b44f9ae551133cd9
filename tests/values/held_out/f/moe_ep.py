"""Mixture of experts: data parallel over all ranks, experts over the ranks of an axis, exchanged by all_to_all."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ep", "dp_ep"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, LAYERS, EXPERTS, TOP, LENGTH, BATCH = 40, 32, 2, 4, 2, 8, 16


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sizes_in, sizes_out, group):
        ctx.sizes, ctx.group = (sizes_out, sizes_in), group
        out = x.new_empty(sum(sizes_out), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), sizes_out, sizes_in, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, *ctx.sizes, ctx.group), None, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert() for e in range(EXPERTS)})
        self.group, self.ranks, self.balance = None, 1, None

    def part(self, mesh):
        self.group, self.ranks = mesh.get_group(), mesh.size()
        own = EXPERTS // self.ranks
        for e in range(EXPERTS):
            if e // own != mesh.get_local_rank():
                del self.experts[str(e)]

    def forward(self, x):
        tokens = x.flatten(0, 1)
        probabilities = self.gate(tokens).softmax(-1)
        weights, choice = probabilities.topk(TOP)
        flat = choice.flatten()
        counts = flat.bincount(minlength=EXPERTS)
        share = counts.to(x.dtype)
        if args.mutant != "balance_local":
            # the balance is that of the global batch
            dist.all_reduce(share)  # @balance_local
        share = share / share.sum()  # @balance_local
        self.balance = EXPERTS * (share * probabilities.mean(0)).sum()  # @balance_local
        order = flat.argsort(stable=True)
        routed = tokens.repeat_interleave(TOP, 0)[order]
        own = EXPERTS // self.ranks
        if self.group is not None:
            arrived = torch.empty_like(counts)
            dist.all_to_all_single(arrived, counts, group=self.group)
            sizes_in = counts.view(self.ranks, own).sum(1).tolist()
            sizes_out = arrived.view(self.ranks, own).sum(1).tolist()
            routed = Exchange.apply(routed, sizes_in, sizes_out, self.group)
        else:
            arrived = counts
        segments = routed.split(arrived.tolist())  # by rank, then by expert
        done = [None] * len(segments)
        for j, expert in enumerate(self.experts.values()):
            mine = segments[j::own]
            for r, y in enumerate(expert(torch.cat(mine)).split([len(s) for s in mine])):
                done[r * own + j] = y
        back = torch.cat(done)
        if self.group is not None:
            back = Exchange.apply(back, sizes_out, sizes_in, self.group)
        if args.mutant == "combine_order":
            back = back[order]  # @combine_order
        else:
            back = back[order.argsort()]
        back = back.view(len(tokens), TOP, -1)
        return (back * weights[..., None]).sum(1).view_as(x)  # @combine_order


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.mix = nn.LayerNorm(DIM), nn.Linear(LENGTH, LENGTH)
        self.norm2, self.moe = nn.LayerNorm(DIM), MoE()

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.moe(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def reduce_gradients(model, mesh, world):
    for name, p in model.named_parameters():
        if ".experts." not in name:
            dist.all_reduce(p.grad)
            p.grad /= world
            continue
        # an expert has seen the tokens of all ranks of its axis already
        dist.all_reduce(p.grad, group=mesh["dp"].get_group())  # @expert_mean
        p.grad /= mesh["dp"].size() if args.mutant == "expert_mean" else world  # @expert_mean


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = Model().to(DTYPE)
    for layer in model.layers:
        layer.moe.gate.weight.data *= 3
    if args.layout != "one":
        mesh = init_device_mesh("cpu", (1, world) if args.layout == "ep" else (2, world // 2), mesh_dim_names=("dp", "ep"))
        for layer in model.layers:
            layer.moe.part(mesh["ep"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(3):
        g = torch.Generator().manual_seed(130 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g).sort(0).values  # ranks differ
        own = tokens.chunk(world)[rank]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(own[:, :-1]).flatten(0, 1), own[:, 1:].flatten())
        loss = loss + 0.5 * sum(layer.moe.balance for layer in model.layers)
        loss.backward()
        if args.layout != "one":
            reduce_gradients(model, mesh, world)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    if args.verify:
        total = torch.zeros((), dtype=torch.float64)
        for name, p in model.named_parameters():
            shared = mesh["dp"].size() if args.layout != "one" and ".experts." in name else world
            total += p.detach().double().abs().sum() / shared
        dist.all_reduce(total)
        if rank == 0:
            print(f"sum {total.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
