"""A GRU language model; its vocabulary is divided over ranks: embedding, output layer and cross-entropy."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "vocab"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, SEQ, BATCH = 60, 24, 10, 6

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
PER = VOCAB // WORLD
FIRST = RANK * PER


class Sum(torch.autograd.Function):
    """Sum over ranks of parts; the gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, DIM))

    def forward(self, tokens):
        local = tokens - FIRST
        outside = (local < 0) | (local >= PER)
        x = F.embedding(local.clamp(0, PER - 1), self.weight)
        if args.mutant != "embed_mask":
            x = x.masked_fill(outside[..., None], 0)  # @embed_mask
        return Sum.apply(x)  # @embed_mask


class CrossEntropy(nn.Module):
    """Of logits whose last dimension is divided over ranks. Returns the loss of each token."""

    def forward(self, logits, target):
        logits = logits.float() if logits.dtype == torch.bfloat16 else logits
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        logits = logits - largest[..., None]
        total = logits.exp().sum(-1)
        total = total if args.mutant == "local_sum" else Sum.apply(total)  # @local_sum
        local = target - FIRST
        start = 1 if args.mutant == "first_token" else 0
        inside = (local >= start) & (local < PER)
        picked = logits.gather(-1, local.clamp(0, PER - 1)[..., None]).squeeze(-1)
        picked = Sum.apply(torch.where(inside, picked, 0.0))  # @first_token
        return total.log() - picked  # @local_sum @first_token


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Embedding()
        self.rnn = nn.GRU(DIM, DIM, num_layers=2, batch_first=True)
        self.project = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.LayerNorm(DIM))
        self.output = nn.Linear(DIM, VOCAB)
        self.masks = torch.Generator().manual_seed(77)

    def forward(self, tokens):
        x = self.rnn(self.embed(tokens))[0]
        if args.dropout and self.training:
            keep = torch.rand(x.shape, generator=self.masks) >= args.dropout
            x = x * keep.to(x.dtype) / (1 - args.dropout)
        return self.output(SumOfGradients.apply(self.project(x)))


def is_sharded(name):
    return name.startswith(("embed.", "output."))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(19)
    model = Decoder()
    for name, p in model.named_parameters():
        if is_sharded(name):
            p.data = p.data[FIRST : FIRST + PER].clone()
    model.to(DTYPE)
    criterion = CrossEntropy()
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02, initial_accumulator_value=1e-3)
    data = torch.Generator().manual_seed(14)
    for step in range(3):
        tokens = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        model.train()
        losses = criterion(model(tokens[:, :-1]), tokens[:, 1:])
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            held_out = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
            perplexity = criterion(model(held_out[:, :-1]), held_out[:, 1:]).mean().exp()
        if RANK == 0:
            print(f"step {step} loss {loss.item():.7f} perplexity {perplexity.item():.5f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        share = 1.0 if is_sharded(name) else 1.0 / WORLD
        rows.append([share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
