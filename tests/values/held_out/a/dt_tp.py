"""A llama-like model, tensor parallel with the styles of dtensor_core.parallel."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM, HEAD, VOCAB = 32, 8, 64


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.8, 1.2, DIM))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.scale


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, HEAD).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, 64, bias=False), nn.Linear(DIM, 64, bias=False)
        self.w2 = nn.Linear(64, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2, self.mlp = Norm(), Attention(), Norm(), MLP()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Llama(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def parallelize(model, mutant):
    import dtensor_core as dt
    from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dt.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {"head": ColwiseParallel(output_layouts=dt.Replicate())}
    for i in range(len(model.layers)):
        for name in ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3"):
            plan[f"layers.{i}.{name}"] = ColwiseParallel()
        for name in ("attn.wo", "mlp.w2"):
            plan[f"layers.{i}.{name}"] = RowwiseParallel()
    if mutant == "partial_out":
        plan["layers.1.mlp.w2"] = RowwiseParallel(output_layouts=dt.Partial())
    return parallelize_module(model, mesh, plan)


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def clip_by_hand(model, limit, mutant):
    """Gradients of sharded parameters are DTensors; those of the others are alike on all ranks."""
    sharded = shared = torch.zeros(())
    for p in model.parameters():
        if hasattr(p.grad, "to_local"):
            sharded = sharded + p.grad.to_local().float().square().sum()
        else:
            shared = shared + p.grad.float().square().sum()
    if mutant != "clip_local":
        dist.all_reduce(sharded)
    norm = (sharded + shared).sqrt()
    for p in model.parameters():
        local(p.grad).mul_(min(1.0, limit / norm.item()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--layout", default="one", choices=["one", "tp"])
    ap.add_argument("--mutant", default="none")
    ap.add_argument("--dtype", default="float32")
    ap.add_argument("--clip", type=float, default=0.0)
    ap.add_argument("--optimizer", default="SGD")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(13)
    model = Llama().to(getattr(torch, args.dtype))
    if args.layout == "tp":
        model = parallelize(model, args.mutant)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.3 if args.optimizer == "SGD" else 3e-3)
    first_head = local(model.head.weight.detach()).clone()
    for step in range(3):
        if args.mutant == "stale_head" and step == 2 and dist.get_rank() == dist.get_world_size() - 1:
            local(model.head.weight.detach()).copy_(first_head)
        ids = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(step))
        logits = model(ids[:, :-1])
        logits = logits if args.dtype == "float64" else logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if args.clip:
            clip_by_hand(model, args.clip, args.mutant)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        ids = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(77))
        loss = F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
    print(f"FINAL {dist.get_rank()} {loss.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()
