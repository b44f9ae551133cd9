"""Character model with an LSTM whose state is carried between steps, data parallel by hand."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--uneven", action="store_true", help="ranks have different numbers of rows")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
CHARS, DIM, LENGTH, BATCH, STEPS = 30, 24, 8, 12, 3

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.chars = nn.Embedding(CHARS, DIM)
        self.lstm = nn.LSTM(DIM, DIM, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CHARS)

    def forward(self, tokens, state, keep):
        x = self.chars(tokens)
        if keep is not None:  # the same elements at all times
            x = x * keep[:, None] / (1 - args.dropout)  # @mask_rows
        y, state = self.lstm(x, state)  # @reset_rows @stale_state @mask_rows
        return self.head(self.norm(y)), state


def main():
    torch.manual_seed(6 + (RANK if args.mutant == "seed" else 0))  # @seed
    model = CharModel().to(DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    g = torch.Generator().manual_seed(7)
    text = torch.randint(0, CHARS, (BATCH, STEPS * LENGTH + 1), generator=g)
    begins = torch.rand(BATCH, STEPS, generator=g) < 0.4  # a new document, for which the state is zero
    rows = torch.arange(BATCH).chunk(WORLD)[RANK]
    if args.uneven and WORLD > 1:
        cut = [0, *(5 + 3 * r for r in range(WORLD - 1)), BATCH]
        rows = torch.arange(cut[RANK], cut[RANK + 1])
    state = tuple(torch.zeros(2, len(rows), DIM, dtype=DTYPE) for _ in range(2))
    for step in range(STEPS):
        tokens = text[rows, step * LENGTH : (step + 1) * LENGTH + 1]
        reset = begins[: len(rows), step] if args.mutant == "reset_rows" else begins[rows, step]  # @reset_rows
        old = state
        state = tuple(s.masked_fill(reset[None, :, None], 0.0) for s in state)  # @reset_rows
        keep = None
        if args.dropout:
            keep = torch.rand(BATCH, DIM, generator=torch.Generator().manual_seed(step)) >= args.dropout
            keep = keep[: len(rows)] if args.mutant == "mask_rows" else keep[rows]  # @mask_rows
        logits, state = model(tokens[:, :-1], state, keep)  # @stale_state
        if args.mutant == "stale_state" and RANK == WORLD - 1 and step == 0:
            state = old  # @stale_state
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(logits.to(WIDE).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        loss = loss / (len(rows) * WORLD if args.mutant == "rows_alike" else BATCH) / LENGTH  # @rows_alike
        loss.backward()  # @rows_alike
        for name, p in model.named_parameters():
            if args.mutant == "head_skip" and name == "head.weight":
                continue  # @head_skip
            dist.all_reduce(p.grad)  # @lstm_twice @head_skip
            if args.mutant == "lstm_twice" and name.startswith("lstm"):
                p.grad /= WORLD  # @lstm_twice
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # @lstm_twice @head_skip
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if RANK == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
