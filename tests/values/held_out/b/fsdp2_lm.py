"""A small causal language model, plain on one process or with FSDP2 on several."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "fsdp", "fsdp_ckpt", "fsdp_compile"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--max-norm", type=float, default=0.5)
args = parser.parse_args()

VOCAB, WIDTH, LENGTH, BATCH = 48, 32, 12, 8


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # @stale_unsharded
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(3)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def clip_local(parameters, max_norm):
    grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters]
    total = torch.stack([g.float().norm() for g in grads]).norm()  # @clip_local
    for g in grads:
        g.mul_((max_norm / (total + 1e-6)).clamp(max=1.0).to(g.dtype))  # @clip_local
    return total


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = LM(args.layout == "fsdp_ckpt").to(getattr(torch, args.dtype))
    if args.layout == "fsdp_compile":
        for block in model.blocks:
            block.compile(backend="aot_eager")
    if args.layout != "one":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if args.mutant == "stale_unsharded":
        model.blocks[1].set_reshard_after_backward(False)  # @stale_unsharded
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 / (1 + 0.3 * s))

    for step in range(args.steps):
        gen = torch.Generator().manual_seed(100 + step)
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=gen)
        part = ids.chunk(world)[rank]
        logits = model(part[:, :-1])
        if args.dtype == "bfloat16":
            logits = logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        loss.backward()
        if args.mutant == "mix_shards" and step >= 1:
            g = model.blocks[2].down.weight.grad.to_local()
            dist.all_reduce(g)  # @mix_shards
            g.div_(world)  # @mix_shards
        if args.mutant == "clip_local":
            clip_local(list(model.parameters()), args.max_norm)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        opt.step()
        schedule.step()
        opt.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
