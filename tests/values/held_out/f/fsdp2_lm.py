"""Language model in FSDP2: on one axis, hybrid, or with tensor parallelism; clipping by hand, reload of the optimizer."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "fsdp", "hsdp", "fsdp_tp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH, MICRO = 40, 32, 4, 3, 10, 16, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, DIM // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, 2 * DIM, bias=False)
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.attn = nn.RMSNorm(DIM), Attention()
        self.mlp_norm, self.mlp = nn.RMSNorm(DIM), MLP()

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.head(self.norm(x))


def parallelize(model, rank):
    """Shards the model. Returns which part of the data the rank has, and how many parts there are."""
    if args.layout == "one":
        return None, 0, 1
    if args.layout == "fsdp":
        mesh = root = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
        part, parts = mesh.get_local_rank(), mesh.size()
    elif args.layout == "hsdp":
        mesh = root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        part, parts = rank, 4
    else:
        world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
        col, row = ColwiseParallel, RowwiseParallel
        plan = {"attn.wq": col(), "attn.wk": col(), "attn.wv": col(), "attn.wo": row()}
        plan |= {"mlp.gate": col(), "mlp.up": col(), "mlp.down": row()}
        for layer in model.layers:
            parallelize_module(layer, world["tp"], plan)
        mesh = root = world["shard"]
        part, parts = (rank % 2 if args.mutant == "data_rank" else mesh.get_local_rank()), 2
    if args.mutant == "root_mesh":
        root = mesh["shard"]
    for i, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=i < LAYERS - 1)
        if args.mutant == "divide_block" and i == 1:
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_gradient_divide_factor(1.0)  # @divide_block
    fully_shard(model, mesh=root)  # @root_mesh
    return mesh, part, parts


def clip(parameters, limit):
    total = 0.0
    for p in parameters:
        g = p.grad
        if isinstance(g, DTensor):
            g = g.to_local() if args.mutant == "clip_local" else g
        norm = torch.linalg.vector_norm(g)  # @clip_local
        total = total + (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2  # @clip_local
    scale = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in parameters:
        g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        g.mul_(scale)  # @clip_local
    return total.sqrt()


def new_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.1, eps=1e-5)


def reload(model, optimizer, mesh):
    """As after a restart: a new optimizer, with the states of a checkpoint of full tensors."""
    saved = {}
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        saved[name] = {k: v.full_tensor() if isinstance(v, DTensor) else v.clone() for k, v in state.items()}
    optimizer = new_optimizer(model)
    for name, p in model.named_parameters():
        for key, value in saved[name].items():
            if isinstance(p, DTensor) and key != "step":
                axis = "replicate" if args.mutant == "reload_axis" else "shard"
                index = mesh.get_local_rank(axis)
                own = value.chunk(mesh["shard"].size())[index].clone()  # @reload_axis
                value = DTensor.from_local(own, p.device_mesh, p.placements, run_check=False)  # @reload_axis
            optimizer.state[p][key] = value
    return optimizer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = Model().to(DTYPE)
    mesh, part, parts = parallelize(model, rank)
    optimizer = new_optimizer(model)
    for step in range(3):
        g = torch.Generator().manual_seed(30 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        mean = 0.0
        for i, micro in enumerate(tokens.chunk(MICRO)):
            if mesh is not None:
                model.set_requires_gradient_sync(i == MICRO - 1)
            own = micro.chunk(parts)[part]  # @data_rank
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                logits = model(own[:, :-1])  # @data_rank
            loss = F.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(DTYPE, torch.float32)), own[:, 1:].flatten()) / MICRO
            loss.backward()
            mean = mean + loss.detach()
        norm = clip(list(model.parameters()), 0.5)
        optimizer.step()  # @reload_axis
        optimizer.zero_grad()
        if step == 0 and args.layout in ("one", "hsdp"):
            optimizer = reload(model, optimizer, mesh)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.7f} norm {norm.item():.6f}", flush=True)
    if args.verify:
        full = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
        if rank == 0:
            print(f"sum {sum(p.detach().double().abs().sum().item() for p in full):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
