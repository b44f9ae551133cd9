"""A language model with tied weights in DistributedDataParallel: accumulation with no_sync, padding, autocast."""
import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

PAD = 0


class TiedLM(nn.Module):
    def __init__(self, vocab=50, dim=32, length=12):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        nn.init.normal_(self.wte.weight, std=0.3)
        self.wpe = nn.Embedding(length, dim)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.ln = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        length = ids.shape[1]
        x = self.wte(ids) + self.wpe.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.encoder:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.lm_head(self.ln(x))


def batch_of(step, rows=16, length=13, vocab=50):
    g = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(1, vocab, (rows, length), generator=g)
    ends = 5 + torch.arange(rows) * 8 // (rows - 1)
    return ids.masked_fill(torch.arange(length) >= ends[:, None], PAD)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "ddp"])
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--mutant", default="none")
    parser.add_argument("--dtype", default="float32", help="bfloat16 is autocast, float64 the whole model")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--scaler", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(5)
    model = TiedLM()
    if args.dtype == "float64":
        model.double()
    net = DistributedDataParallel(model) if args.layout == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.scaler)

    def loss_of(ids, total):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            logits = net(ids[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum")
        return loss * world / total

    for step in range(3):
        ids = batch_of(step)
        mine = ids.chunk(world)[rank]
        total = (ids[:, 1:] != PAD).sum()
        if args.mutant == "count_local":
            total = (mine[:, 1:] != PAD).sum() * world
        micros = mine.chunk(args.micro)
        for i, micro in enumerate(micros):
            last = i == args.micro - 1
            if args.mutant == "never_sync" and step == 1:
                last = False
            if args.mutant == "count_micro":
                total = (micro[:, 1:] != PAD).sum() * world
            no_sync = args.layout == "ddp" and not last
            with net.no_sync() if no_sync else contextlib.nullcontext():
                loss = loss_of(micro, total)
                scaler.scale(loss).backward()
        if args.clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)

    with torch.no_grad():
        ids = batch_of(9)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
    print(f"FINAL {rank} {loss.item():.6f} {model.wte.weight.norm().item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
