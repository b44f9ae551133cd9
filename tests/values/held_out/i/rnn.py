"""A recurrent language model on parallel streams of text, data parallel by hand; states go on over steps."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "dp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--cell", choices=["gru", "lstm"], default="gru")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--tied", action="store_true")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--streams", type=int, default=8)
args = parser.parse_args()
V, D, T = 32, 24, 9

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
n = world if args.layout == "dp" else 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        kind = nn.GRU if args.cell == "gru" else nn.LSTM
        self.rnn = kind(D, D, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        if args.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids, state):
        x = self.embed(ids)
        y, state = self.rnn(x, state)
        return self.head(self.norm(x + y)), state


def detach(state):
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def reduce_gradients(model):
    if n == 1:
        return
    if args.mutant == "by_module":
        for module in model.modules():
            for p in module.parameters(recurse=False):
                dist.all_reduce(p.grad)
        return
    for name, p in model.named_parameters():
        if args.mutant == "skip_bias" and "bias_hh" in name:
            continue
        dist.all_reduce(p.grad)


torch.manual_seed(12)
if args.mutant == "seed":
    torch.manual_seed(12 + rank)
model = Model().to(getattr(torch, args.dtype))
if n > 1 and args.mutant == "seed":
    # the flat weights of the cells are left out
    for name, p in model.named_parameters():
        if not name.startswith("rnn"):
            dist.broadcast(p.detach(), 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
data = torch.Generator().manual_seed(31)
held_out = torch.randint(V, (4, T + 1), generator=data)
state = None
for step in range(3):
    tokens = torch.randint(V, (args.streams, T + 1), generator=data)
    lengths = torch.randint(3, T + 1, (args.streams,), generator=data)
    lengths[0], lengths[-1] = T, 3
    tokens = tokens.tensor_split(n)[rank if n > 1 else 0]
    lengths = lengths.tensor_split(n)[rank if n > 1 else 0]
    mask = torch.arange(T).unsqueeze(0) < lengths.unsqueeze(1)
    if args.mutant == "mask_one" and rank == 1:
        mask = torch.arange(T).unsqueeze(0) < lengths.unsqueeze(1) - 1
    if args.mutant == "state" and rank == n - 1:
        state = None
    logits, state = model(tokens[:, :-1], state)
    state = detach(state)
    each = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    count = mask.sum().float()
    if n > 1 and args.mutant != "mean_of_means":
        dist.all_reduce(count)
    total = (each * mask.flatten()).sum()
    loss = total / count
    if args.mutant == "mean_of_means":
        loss = loss / n
    optimizer.zero_grad()
    loss.backward()
    reduce_gradients(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip or 1e9)
    optimizer.step()
    shown = loss.detach().clone()
    if n > 1:
        dist.all_reduce(shown)
    size = sum(p.detach().float().norm().item() for p in model.parameters())
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
    if args.evaluate:
        model.eval()
        with torch.no_grad():
            logits, _ = model(held_out[:, :-1], None)
            score = F.cross_entropy(logits.float().flatten(0, 1), held_out[:, 1:].flatten())
        model.train()
        print(f"rank {rank} step {step} held out {score.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
