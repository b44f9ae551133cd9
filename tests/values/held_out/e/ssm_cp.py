"""A state-space model (gated diagonal recurrence with a causal convolution); the sequence is divided over ranks."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "cp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--uneven", action="store_true", help="parts of the sequence of different lengths")
parser.add_argument("--schedule", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
DIM, INNER, KERNEL, LAYERS, SEQ, BATCH, CLASSES = 24, 32, 4, 3, 24, 4, 10

dist.init_process_group("gloo")
RANK, CP = dist.get_rank(), dist.get_world_size()
LENGTHS = [SEQ // CP] * CP
if args.uneven and CP > 1:
    LENGTHS[0], LENGTHS[-1] = LENGTHS[0] + 3, LENGTHS[-1] - 3
START = sum(LENGTHS[:RANK])
FAULTY = LAYERS - 1


def send_receive(tensor, to, source):
    """Sends a tensor to a rank and returns what another one sends, zeros where there is none."""
    tensor, received = tensor.contiguous(), torch.zeros_like(tensor).contiguous()
    works = []
    if 0 <= to < CP:
        works.append(dist.isend(tensor, to))
    if 0 <= source < CP:
        works.append(dist.irecv(received, source))
    for work in works:
        work.wait()
    return received


class HaloFromLeft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, width, drop_gradient, first):
        ctx.width, ctx.length, ctx.drop_gradient, ctx.first = width, x.shape[1], drop_gradient, first
        tail = x[:, :width] if first else x[:, -width:]  # @halo_first
        return send_receive(tail, RANK + 1, RANK - 1)  # @halo_first

    @staticmethod
    def backward(ctx, grad):
        grad = send_receive(grad, RANK - 1, RANK + 1)  # @halo_grad
        if ctx.drop_gradient:
            grad = torch.zeros_like(grad)  # @halo_grad
        left, right = (0, ctx.length - ctx.width) if ctx.first else (ctx.length - ctx.width, 0)
        return F.pad(grad, (0, 0, left, right)), None, None, None  # @halo_grad


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(CP)]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad[RANK]


class CausalConv(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(INNER, 1, KERNEL) * 0.5)
        self.bias = nn.Parameter(torch.randn(INNER) * 0.1)
        self.drop_gradient = args.mutant == "halo_grad" and layer == FAULTY
        self.first = args.mutant == "halo_first" and layer == FAULTY

    def forward(self, x):
        halo = HaloFromLeft.apply(x, KERNEL - 1, self.drop_gradient, self.first)
        x = torch.cat([halo, x], dim=1).transpose(1, 2)  # @halo_first @halo_grad
        return F.conv1d(x, self.weight, self.bias, groups=INNER).transpose(1, 2)  # @halo_first


class Scan(nn.Module):
    """h[t] = a[t] h[t-1] + b[t], along the whole sequence."""

    def forward(self, a, b):
        h, states = torch.zeros_like(b[:, 0]), []
        for t in range(b.shape[1]):
            h = a[:, t] * h + b[:, t]
            states.append(h)
        local, decay = torch.stack(states, dim=1), a.cumprod(dim=1)
        if CP == 1:
            return local
        lasts, decays = AllGather.apply(local[:, -1]), AllGather.apply(decay[:, -1])
        carries = [torch.zeros_like(h)]
        for rank in range(CP - 1):
            before = carries[-1] if args.mutant == "carry_decay" else decays[rank] * carries[-1]  # @carry_decay
            carries.append(before + lasts[rank])  # @carry_decay
        carry = torch.stack(carries)[RANK]  # @carry_decay
        return local + decay * carry[:, None]  # @carry_decay


class Mixer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.in_proj = nn.Linear(DIM, 2 * INNER)
        self.conv, self.scan = CausalConv(layer), Scan()
        self.decay = nn.Linear(INNER, INNER)
        self.out_proj = nn.Linear(INNER, DIM)

    def forward(self, x):
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x))
        a = torch.sigmoid(self.decay(x) + 2)
        return self.out_proj(self.scan(a, (1 - a) * x) * F.silu(gate))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(DIM), Mixer(layer)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(8, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.inputs(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(21)
    model = Tagger().to(DTYPE)
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4) if args.schedule else None
    data = torch.Generator().manual_seed(8)
    for step in range(3):
        x = torch.randn(BATCH, SEQ, 8, generator=data)
        # The tag of a position depends on positions before it.
        tags = (x.cumsum(1)[..., :CLASSES] * 2).abs().sum(-1).long() % CLASSES
        own = slice(START, START + LENGTHS[RANK])
        logits = model(x[:, own].to(DTYPE))
        total = F.cross_entropy(logits.flatten(0, 1), tags[:, own].flatten(), reduction="sum")
        loss = total / (BATCH * SEQ)
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if not (args.mutant == "conv_local" and ".conv." in name):
                dist.all_reduce(p.grad)  # @conv_local
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        shown = loss.detach().double()
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss {shown.item():.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        rows.append([(now**2).sum() / CP, ((now - initial[name]) ** 2).sum() / CP])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
