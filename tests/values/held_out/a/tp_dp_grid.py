"""A residual MLP classifier on a grid of data parallel and tensor parallel ranks, all by hand; clipped by hand."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--layout", default="1x1", help="dp x tp")
ap.add_argument("--mutant", default="none")
ap.add_argument("--clip", type=float, default=0.0)
ap.add_argument("--ema", action="store_true")
args = ap.parse_args()
DP, TP = map(int, args.layout.split("x"))

dist.init_process_group("gloo")
RANK = dist.get_rank()
assert dist.get_world_size() == DP * TP
dp_rank, tp_rank = divmod(RANK, TP)
for i in range(DP):
    g = dist.new_group([i * TP + j for j in range(TP)])
    if i == dp_rank:
        tp_group = g
for j in range(TP):
    g = dist.new_group([i * TP + j for i in range(DP)])
    if j == tp_rank:
        dp_group = g


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=tp_group)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=tp_group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim, bias=False)

    def shard(self):
        for p, dim in ((self.fc1.weight, 0), (self.fc1.bias, 0), (self.fc2.weight, 1)):
            p.data = p.data.chunk(TP, dim)[tp_rank].clone()
            p.tp_sharded = True

    def forward(self, x):
        h = Enter.apply(self.norm(x))
        h = torch.relu(self.fc1(h))
        return x + Leave.apply(self.fc2(h))


class Net(nn.Module):
    def __init__(self, inputs=24, dim=32, classes=10, depth=3):
        super().__init__()
        self.stem = nn.Linear(inputs, dim)
        self.blocks = nn.Sequential(*(Block(dim, 64) for _ in range(depth)))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        return self.out(self.blocks(self.stem(x)))


def reduce_gradients(model):
    for name, p in model.named_parameters():
        group = dp_group
        if args.mutant == "wrong_group" and name == "blocks.1.norm.weight":
            group = tp_group
        dist.all_reduce(p.grad, group=group)
        if args.mutant == "divide_world":
            p.grad /= dist.get_world_size()
        else:
            p.grad /= DP


def clip(model, limit):
    sharded = sum(p.grad.square().sum() for p in model.parameters() if hasattr(p, "tp_sharded"))
    shared = sum(p.grad.square().sum() for p in model.parameters() if not hasattr(p, "tp_sharded"))
    if args.mutant != "clip_local":
        dist.all_reduce(sharded, group=tp_group)
    norm = (sharded + shared).sqrt()
    for p in model.parameters():
        p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


torch.manual_seed(3)
model = Net()
for block in model.blocks:
    block.shard()
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
ema = {k: p.detach().clone() for k, p in model.named_parameters()}
xs, ys = torch.randn(4, 16, 24), torch.randint(10, (4, 16))
for step in range(3):
    x, y = xs[step].chunk(DP)[dp_rank], ys[step].chunk(DP)[dp_rank]
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    reduce_gradients(model)
    norm = clip(model, args.clip) if args.clip else torch.zeros(())
    opt.step()
    schedule.step()
    if args.ema:
        with torch.no_grad():
            for k, p in model.named_parameters():
                ema[k].lerp_(p, 0.1)
            saved = {k: p.detach().clone() for k, p in model.named_parameters()}
            for k, p in model.named_parameters():
                p.copy_(ema[k])
            print(f"ema {nn.functional.cross_entropy(model(xs[3]), ys[3]).item():.6f}\n", end="")
            for k, p in model.named_parameters():
                p.copy_(saved[k])
with torch.no_grad():
    print(f"FINAL {RANK} {nn.functional.cross_entropy(model(xs[3]), ys[3]).item():.6f} {norm.item():.5f}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
