"""GPT-2 like model, tensor and sequence parallel by hand; activations between blocks are [sequence, batch, dim]."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "sp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--schedule", action="store_true")
args = parser.parse_args()

VOCAB, DIM, HEADS, INNER, LAYERS, BATCH, LENGTH = 80, 48, 4, 128, 3, 3, 16
dist.init_process_group("gloo")
RANK = dist.get_rank()
SP = dist.get_world_size() if args.layout == "sp" else 1
DTYPE = getattr(torch, args.dtype)


def gather_sequence(x):
    parts = [torch.empty_like(x) for _ in range(SP)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def scatter_sum(x):
    y = x.new_empty(x.shape[0] // SP, *x.shape[1:])
    dist.reduce_scatter_tensor(y, x.contiguous())
    return y


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, consumers):
        ctx.consumers = consumers  # "sharded": each has a part of the gradient; "alike": all have the same
        return gather_sequence(x)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.consumers == "sharded":
            return scatter_sum(gradient), None
        return gradient.chunk(SP)[RANK].contiguous(), None  # @fc1_gather


class ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scatter_sum(x)

    @staticmethod
    def backward(ctx, gradient):
        return gather_sequence(gradient)


def gather(x, consumers="sharded"):
    return x if SP == 1 else Gather.apply(x, consumers)


class Dropout(nn.Module):
    """Masks of the whole sequence, of which a rank takes its part."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x):
        if not args.dropout:
            return x
        shape = (x.shape[0] * SP, *x.shape[1:])
        keep = torch.rand(shape, generator=self.generator) >= args.dropout
        return x * keep.chunk(SP)[RANK] / (1 - args.dropout)


class Column(nn.Linear):
    def __init__(self, inputs, outputs, consumers="sharded"):
        super().__init__(inputs, outputs)
        self.consumers = consumers

    def forward(self, x):
        return super().forward(gather(x, self.consumers))  # @fc1_gather


class Row(nn.Linear):
    def forward(self, x):
        if SP == 1:
            return super().forward(x)
        return ScatterSum.apply(F.linear(x, self.weight)) + self.bias


class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.qkv = Column(DIM, 3 * DIM)
        self.proj = Row(DIM, DIM)
        self.drop = Dropout(100 + index)

    def forward(self, x):
        qkv = self.qkv(x)
        length, batch, _ = qkv.shape
        q, k, v = (t.view(length, batch, -1, DIM // HEADS).permute(1, 2, 0, 3) for t in qkv.chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.proj(y.permute(2, 0, 1, 3).reshape(length, batch, -1)))


class MLP(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.fc1 = Column(DIM, INNER, "alike" if args.mutant == "fc1_gather" and index == 1 else "sharded")
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = Row(INNER, DIM)
        self.drop = Dropout(200 + index)

    def forward(self, x):
        return self.drop(self.fc2(self.act(self.fc1(x))))


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(DIM), Attention(index)
        self.ln2, self.mlp = nn.LayerNorm(DIM), MLP(index)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.ln_f = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):  # of the whole sequence: [sequence, batch]
        here = tokens.chunk(SP)[RANK]
        positions = torch.arange(len(here)) + RANK * len(here)
        if args.mutant == "positions":
            positions = torch.arange(len(here))  # @positions
        x = self.wte(here) + self.wpe(positions)[:, None]  # @positions
        for block in self.blocks:
            x = block(x)
        x = gather(self.ln_f(x), "alike")
        return self.lm_head(x)


def part(name, value):
    if "qkv" in name:
        return torch.cat([t.chunk(SP)[RANK] for t in value.chunk(3)])
    if "fc1" in name:
        return value.chunk(SP)[RANK]
    if "proj.weight" in name or "fc2.weight" in name:
        return value.chunk(SP, 1)[RANK]
    return value


torch.manual_seed(5)
model = GPT().to(DTYPE)
for name, parameter in model.named_parameters():
    parameter.data = part(name, parameter.data).clone()
if args.compile:
    for block in model.blocks:
        block.mlp.act.compile(backend="aot_eager")
# Parameters that ranks hold alike, but use on their part of the sequence only
by_sequence = [n for n, _ in model.named_parameters() if "ln" in n or "wte" in n or "wpe" in n or n.endswith(("proj.bias", "fc2.bias"))]
if args.mutant == "row_bias":
    by_sequence = [n for n in by_sequence if not n.endswith(("proj.bias", "fc2.bias"))]
decay = [p for p in model.parameters() if p.dim() > 1]
other = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (s + 1) / 3 if args.schedule else 1.0)

for step in range(3):
    data = torch.randint(VOCAB, (LENGTH + 1, BATCH), generator=torch.Generator().manual_seed(70 + step))
    logits = model(data[:-1])
    loss = F.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(DTYPE, torch.float32)), data[1:].flatten())
    loss.backward()
    if SP > 1:
        named = dict(model.named_parameters())
        for name in by_sequence:
            dist.all_reduce(named[name].grad)  # @row_bias
    optimizer.step()  # @row_bias
    schedule.step()
    totals = torch.zeros(2, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        sharded = "qkv" in name or "fc1" in name or name.endswith(("proj.weight", "fc2.weight"))
        copies = 1 if sharded else SP
        totals[0] += parameter.detach().double().abs().sum() / copies
        totals[1] += parameter.grad.double().abs().sum() / copies
    if SP > 1:
        dist.all_reduce(totals)
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {loss.item():.7f} sum {totals[0].item():.7f} grad {totals[1].item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
