"""A mixture of experts, data parallel by hand: a hook for each parameter sums its gradient as soon as it is complete."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, EXPERTS, ROWS, LENGTH = 40, 32, 4, 12, 10


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 48), nn.Linear(48, DIM)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class HashMoE(nn.Module):
    """Tokens choose experts by their id; a gate scales the result."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x, ids):
        gates = torch.sigmoid(self.gate(x))
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            mine = ids % EXPERTS == e
            y = y.index_put((mine,), (expert(x[mine]) * gates[mine][:, e:e + 1]).to(y.dtype))
        return y


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm1, self.mix = nn.LayerNorm(DIM), nn.Linear(LENGTH, LENGTH)
        self.norm2, self.moe = nn.LayerNorm(DIM), HashMoE()
        self.number = number

    def forward(self, x, ids, keep):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2) * keep
        return x + self.moe(self.norm2(x), ids)


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(2))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids, keeps):
        x = self.embed(ids)
        for block, keep in zip(self.blocks, keeps):
            x = block(x, ids, keep)
        return self.out(x)


def reduce_when_complete(model):
    def hook(p):
        dist.all_reduce(p.grad)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return hook


def main(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(53)
    model = MoE()
    if args.dtype == "float64":
        model.double()
    hook = reduce_when_complete(model)
    if args.mutant == "hook_twice":
        model.blocks[1].moe.gate.weight.register_post_accumulate_grad_hook(hook)
    if args.compile:
        for block in model.blocks:
            block.mix.compile(backend=args.compile)
            for expert in block.moe.experts:
                expert.compile(backend=args.compile, dynamic=True)
    decay = [p for n, p in model.named_parameters() if "norm" not in n]
    plain = [p for n, p in model.named_parameters() if "norm" in n]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9)
    part = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    for step in range(3):
        g = torch.Generator().manual_seed(200 + step)
        ids = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=g)
        masks = (torch.rand(2, ROWS, 1, DIM, generator=g) > 0.2) / 0.8
        mine = part
        if args.mutant == "mask_rows" and step >= 1:
            mine = slice(0, ROWS // world)
        keeps = [masks[0][part], masks[1][mine]]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            logits = model(ids[part, :-1], keeps)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[part, 1:].flatten()) / world
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
    with torch.no_grad():
        ids = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(9))
        loss = F.cross_entropy(model(ids[:, :-1], [torch.ones(())] * 2).flatten(0, 1), ids[:, 1:].flatten())
    print(f"FINAL {rank} {loss.item():.6f} {model.blocks[1].moe.gate.weight.norm().item():.6f}\n", end="", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "dp"])
    parser.add_argument("--mutant", default="none")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", default="", help="a backend")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    main(options)
    dist.barrier()
    dist.destroy_process_group()
