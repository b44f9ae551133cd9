"""FSDP2 over the data axis and torch's tensor parallelism over the other axis of a mesh."""
import argparse
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

ap = argparse.ArgumentParser()
ap.add_argument("--layout", default="one", choices=["one", "tp", "fsdp_tp"])
ap.add_argument("--mutant", default="none")
ap.add_argument("--dtype", default="float32")
opts = ap.parse_args()
DIM, HEADS, LAYERS = 32, 4, 2


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wk = nn.Linear(DIM, DIM, bias=False)
        self.wv = nn.Linear(DIM, DIM, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, DIM // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, 64, bias=False)
        self.w3 = nn.Linear(DIM, 64, bias=False)
        self.w2 = nn.Linear(64, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # @partial_output


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(DIM), Attention()
        self.ffn_norm, self.feed_forward = RMSNorm(DIM), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))  # @partial_output


class Llama(nn.Module):
    def __init__(self, vocab=40):
        super().__init__()
        self.tok = nn.Embedding(vocab, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm(DIM)
        self.output = nn.Linear(DIM, vocab, bias=False)

    def forward(self, ids):
        h = self.tok(ids)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = Llama().to(getattr(torch, opts.dtype))
dp_rank, dp_size, tp_group = 0, 1, None
if opts.layout != "one":
    dp_size = 1 if opts.layout == "tp" else 2
    mesh = init_device_mesh("cpu", (dp_size, world // dp_size), mesh_dim_names=("dp", "tp"))
    dp_rank, tp_group = mesh["dp"].get_local_rank(), mesh["tp"].get_group()
    for i, layer in enumerate(model.layers):
        plan = {f"attention.w{n}": ColwiseParallel() for n in "qkv"}
        plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w1": ColwiseParallel()}
        plan |= {"feed_forward.w3": ColwiseParallel(), "feed_forward.w2": RowwiseParallel()}
        if opts.mutant == "partial_output" and i == 1:
            plan["feed_forward.w2"] = RowwiseParallel(output_layouts=Partial())
        parallelize_module(layer, mesh["tp"], plan)
    if opts.layout == "fsdp_tp":
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
for step in range(3):
    data = torch.randint(0, 40, (8, 13), generator=torch.Generator().manual_seed(50 + step))
    rows = data.chunk(dp_size)[dp_rank]
    optimizer.zero_grad()
    logits = model(rows[:, :-1])
    logits = logits.float() if opts.dtype == "bfloat16" else logits
    loss = F.cross_entropy(logits.reshape(-1, 40), rows[:, 1:].reshape(-1))
    loss.backward()
    if opts.mutant == "norm_again" and step >= 1:
        scale_grad = model.norm.scale.grad
        dist.all_reduce(scale_grad.to_local(), group=tp_group)  # @norm_again
    optimizer.step()
    if dp_size > 1:
        loss = loss.detach().clone()
        dist.all_reduce(loss, group=mesh["dp"].get_group())
    if rank == 0:
        print("step", step, "loss", f"{loss.item() / dp_size:.7f}")
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # threads of gloo may need the interpreter once more
