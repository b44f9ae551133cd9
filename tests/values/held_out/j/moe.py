"""A mixture of experts: each rank has some of the experts and a part of the batch, and tokens travel by all_to_all."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, EXPERTS, DEPTH, ROWS, LENGTH, STEPS = 40, 24, 2, 4, 2, 8, 8, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ep"])
parser.add_argument("--dtype", default="float32")
parser.add_argument("--route", default="top", choices=["top", "hash"], help="who chooses experts")
parser.add_argument("--balance", type=float, default=0.05)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
own = range(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.send, ctx.receive = send, receive
        out = x.new_empty((sum(receive), x.shape[1]))
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty((sum(ctx.send), gradient.shape[1]))
        dist.all_to_all_single(out, gradient.contiguous(), ctx.send, ctx.receive)
        return out, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(index): Expert() for index in range(EXPERTS)})

    def forward(self, x, tokens):
        rows = x.reshape(-1, DIM)
        probabilities = self.router(rows).float().softmax(-1)
        if args.route == "top":
            chosen = probabilities.topk(2, -1).indices
        else:
            first = tokens.flatten() % EXPERTS
            chosen = torch.stack([first, (first + 1 + tokens.flatten() // EXPERTS % 3) % EXPERTS], -1)
        weights = probabilities.gather(1, chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        order = chosen.flatten().argsort(stable=True)
        sent = rows[order // 2]
        if args.layout == "one":
            parts = sent.split(counts.tolist())
            done = torch.cat([self.experts[str(index)](part) for index, part in enumerate(parts)])
        else:
            done = self.elsewhere(sent, counts)
        back = done[order.argsort()].view(-1, 2, DIM)
        y = (back * weights.unsqueeze(-1)).sum(1)
        share = counts.float() / counts.sum()
        if args.layout == "ep":
            dist.all_reduce(share)
            share = share / world
        balance = EXPERTS * (share * probabilities.mean(0)).sum()
        return y.view_as(x), balance

    def elsewhere(self, sent, counts):
        """The results of the experts for the tokens, computed on the ranks that have the experts."""
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts)
        send = counts.view(world, -1).sum(1).tolist()
        receive = incoming.view(world, -1).sum(1).tolist()
        got = Exchange.apply(sent, send, receive)
        expert = torch.arange(len(own)).repeat(world).repeat_interleave(incoming)
        order = expert.argsort(stable=True)
        parts = got[order].split(incoming.view(world, -1).sum(0).tolist())
        done = torch.cat([self.experts[str(index)](part) for index, part in zip(own, parts)])
        back = done[order if args.mutant == "unsorted" else order.argsort()]
        return Exchange.apply(back, receive, send)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.moe = nn.LayerNorm(DIM), Mixture()

    def forward(self, x, tokens):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, DIM))
        y, balance = self.moe(self.norm2(x), tokens)
        return x + y, balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x, balance = self.embed(tokens), 0.0
        for block in self.blocks:
            x, term = block(x, tokens)
            balance = balance + term
        return self.head(self.norm(x)), balance


torch.manual_seed(11)
model = Model()
if args.layout == "ep":
    for block in model.blocks:
        for index in set(range(EXPERTS)) - set(own):
            del block.moe.experts[str(index)]
model.to(getattr(torch, args.dtype))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def reduce_gradients():
    for name, p in model.named_parameters():
        if ".experts." not in name or args.mutant == "mixed":
            dist.all_reduce(p.grad)
            p.grad /= world
        elif args.mutant != "expert_scale":
            p.grad /= world


for step in range(STEPS):
    draw = torch.Generator().manual_seed(40 + step)
    batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
    mine = batch.chunk(world)[rank]
    logits, balance = model(mine[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), mine[:, 1:].flatten()) + args.balance * balance
    loss.backward()
    if args.layout == "ep":
        reduce_gradients()
    experts = [p.grad.float().square().sum() for n, p in model.named_parameters() if ".experts." in n]
    dense = [p.grad.float().square().sum() for n, p in model.named_parameters() if ".experts." not in n]
    squares = torch.stack(experts).sum()
    dist.all_reduce(squares)
    norm = (squares + torch.stack(dense).sum()).sqrt()
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item() / world:.6f} norm {norm.item():.6f}", flush=True)
dist.destroy_process_group()
