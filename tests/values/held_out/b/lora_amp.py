"""Adapters (LoRA) on a frozen transformer, autocast and a gradient scaler, data parallel with padded sequences."""
import argparse
import contextlib
import time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, fan_in, fan_out, r=4, alpha=8):
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(r, fan_in) / fan_in**0.5)
        self.lora_b = nn.Parameter(torch.randn(fan_out, r) * 0.05)
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.query, self.value = LoRALinear(dim, dim), LoRALinear(dim, dim)
        self.output = nn.Linear(dim, dim).requires_grad_(False)

    def forward(self, x, mask):
        h = self.norm(x)
        a = F.scaled_dot_product_attention(self.query(h), h, self.value(h), attn_mask=mask[:, None, :])
        return x + self.output(a)


class Tagger(nn.Module):
    def __init__(self, dim=32, vocab=40, tags=6, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim).requires_grad_(False)
        self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, tags)

    def forward(self, ids, mask):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "dp"])
    parser.add_argument("--mutant", default="none")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float64"])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = Tagger()
    if args.dtype == "float64":
        model = model.double()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    adapters = torch.optim.SGD([p for n, p in trained if "head" not in n], lr=0.5, momentum=0.9)
    head = torch.optim.SGD(model.head.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.dtype == "bfloat16")
    for step in range(3):
        gen = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 40, (12, 10), generator=gen)
        lengths = torch.randint(2, 11, (12,), generator=gen).sort().values
        tags = (ids + step) % 6
        mask = torch.arange(10)[None, :] < lengths[:, None]
        ids, tags, mask = (t.chunk(world)[rank] for t in (ids, tags, mask))
        count = mask.sum()
        if args.mutant == "mean_of_means" and step >= 1:
            count = count * world  # @mean_of_means
        else:
            dist.all_reduce(count)
        amp = torch.autocast("cpu", torch.bfloat16) if args.dtype == "bfloat16" else contextlib.nullcontext()
        with amp:
            logits = model(ids, mask)
            losses = F.cross_entropy(logits.transpose(1, 2), tags, reduction="none")
            loss = (losses * mask).sum() / count  # @mean_of_means
        scaler.scale(loss).backward()
        for name, p in trained:
            if args.mutant == "bucket_out" and name.startswith("layers.2.value"):
                continue
            dist.all_reduce(p.grad)
        scaler.step(adapters)
        if not (args.mutant == "rank_skips" and rank == 1 and step == 1):
            scaler.step(head)
        scaler.update()
        adapters.zero_grad()
        head.zero_grad()
        shown = loss.detach().double()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
