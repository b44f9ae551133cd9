"""A click model: embedding tables live on one rank each, dense layers are data parallel, all-to-all between them."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "sharded"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--eval", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
TABLES, ROWS, DIM, DENSE, BATCH, BAG = 6, 40, 16, 12, 24, 3

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
PER = TABLES // WORLD
MINE = range(RANK * PER, (RANK + 1) * PER)
LOCAL = BATCH // WORLD


class AllToAll(torch.autograd.Function):
    """The first dimension is divided into equal parts, of which each rank gets one."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class PooledExchange(nn.Module):
    """[whole batch, own tables, dim] to [own batch, all tables, dim]."""

    def forward(self, pooled):
        x = AllToAll.apply(pooled) if WORLD > 1 else pooled  # @order
        parts = list(x.split(LOCAL, 0))
        if args.mutant == "order":
            parts = parts[-RANK:] + parts[:-RANK]
        return torch.cat(parts, dim=1)  # @order


class Interaction(nn.Module):
    def forward(self, dense, sparse):
        features = torch.cat([dense[:, None], sparse], dim=1)
        products = features @ features.transpose(1, 2)
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        return torch.cat([dense, products[:, i, j]], dim=1)


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        tables = [nn.EmbeddingBag(ROWS, DIM, mode="mean") for _ in range(TABLES)]
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, DIM), nn.ReLU())
        pairs = TABLES * (TABLES + 1) // 2
        self.interaction, self.exchange = Interaction(), PooledExchange()
        self.top = nn.Sequential(nn.Linear(DIM + pairs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
        for table in tables:
            nn.init.normal_(table.weight, std=0.4)
        self.tables = nn.ModuleDict({str(i): tables[i] for i in MINE})

    def forward(self, dense, sparse):
        pooled = torch.stack([self.tables[str(i)](sparse[i]) for i in MINE], dim=1)
        return self.top(self.interaction(self.bottom(dense), self.exchange(pooled))).squeeze(-1)


def reduce_dense(model):
    for name, p in model.named_parameters():
        if name.startswith("tables."):
            p.grad.div_(1 if args.mutant == "table_mean" else WORLD)  # @table_mean
        elif not (args.mutant == "biases" and p.ndim == 1):
            dist.all_reduce(p.grad)  # @biases
            p.grad.div_(WORLD)


def batch(step):
    g = torch.Generator().manual_seed(100 + step)
    dense = torch.randn(BATCH, DENSE, generator=g)
    sparse = torch.randint(ROWS, (TABLES, BATCH, BAG), generator=g)
    clicked = (dense[:, 0] + torch.randn(BATCH, generator=g) > 0).float()
    start = RANK * LOCAL
    shift = 1 if args.mutant == "labels" and RANK == WORLD - 1 else 0
    mine = dense[start : start + LOCAL].to(DTYPE)
    return mine, sparse, clicked[start - shift : start - shift + LOCAL].to(DTYPE)  # @labels


def summary(model, initial):
    names = [n for n, _ in model.named_parameters() if not n.startswith("tables.")]
    names += [f"tables.{i}.weight" for i in range(TABLES)]
    own = dict(model.named_parameters())
    rows = torch.zeros(len(names), 2, dtype=torch.float64)
    for row, name in zip(rows, names):
        if name in own:
            now = own[name].detach().double().numpy()
            share = 1.0 if name.startswith("tables.") else 1.0 / WORLD
            row[0], row[1] = share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = ClickModel().to(DTYPE)
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    criterion = nn.BCEWithLogitsLoss()
    tables = list(model.tables.parameters())
    dense_parameters = [p for n, p in model.named_parameters() if not n.startswith("tables.")]
    optimizers = [torch.optim.SGD(tables, lr=2.0), torch.optim.SGD(dense_parameters, lr=0.1, momentum=0.9)]
    averaged = None
    if args.ema:
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    for step in range(3):
        dense, sparse, clicked = batch(step)
        model.train()
        loss = criterion(model(dense, sparse), clicked)  # @labels
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        reduce_dense(model)  # @biases
        for optimizer in optimizers:
            optimizer.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        if averaged is not None:
            averaged.update_parameters(model)
        if args.eval:
            (averaged or model).eval()
            with torch.no_grad():
                dense, sparse, clicked = batch(50)
                hits = ((averaged or model)(dense, sparse).sigmoid() - clicked).square().mean().double()
            dist.all_reduce(hits)
            if RANK == 0:
                print(f"eval {hits.item() / WORLD:.7f}")
        if RANK == 0:
            print(f"step {step} loss {mean.item() / WORLD:.7f}")
    summary(model, initial)


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
