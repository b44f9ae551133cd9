"""Mixture of experts; experts live on different ranks and tokens travel by all_to_all."""
import argparse
import time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--layout", default="one", choices=["one", "ep"])
p.add_argument("--mutant", default="none")
p.add_argument("--experts", type=int, default=4)
args = p.parse_args()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.send, ctx.receive = send, receive
        out = x.new_empty(sum(receive), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.receive)
        return out, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))  # @wrong_expert


class MoE(nn.Module):
    def __init__(self, dim, index):
        super().__init__()
        self.index = index
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.per_rank = args.experts // self.world
        self.router = nn.Linear(dim, args.experts, bias=False)
        everyone = [Expert(dim, 2 * dim) for _ in range(args.experts)]
        mine = range(self.rank * self.per_rank, (self.rank + 1) * self.per_rank)
        self.experts = nn.ModuleDict({str(e): everyone[e] for e in mine})

    def run_experts(self, x, chosen):
        out = torch.zeros_like(x)
        for e, expert in self.experts.items():
            wanted = int(e)
            if args.mutant == "wrong_expert" and self.index == 1 and self.rank == 1:
                wanted = 2 * self.rank * self.per_rank + self.per_rank - 1 - wanted
            at = (chosen == wanted).nonzero().squeeze(-1)
            if len(at):
                out = out.index_add(0, at, expert(x[at]))  # @wrong_expert
        return out

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).max(-1)
        if args.layout == "one":
            y = self.run_experts(tokens, chosen)
        else:
            order = torch.argsort(chosen, stable=True)
            send = torch.bincount(chosen // self.per_rank, minlength=self.world)
            receive = torch.empty_like(send)
            dist.all_to_all_single(receive, send)
            send, receive = send.tolist(), receive.tolist()
            ids = torch.empty(sum(receive), dtype=torch.long)
            dist.all_to_all_single(ids, chosen[order], receive, send)
            y = self.run_experts(AllToAll.apply(tokens[order], send, receive), ids)
            back = AllToAll.apply(y, receive, send)
            y = torch.zeros_like(tokens).index_copy(0, order, back)
        return (y * weight.unsqueeze(-1)).view_as(x)


class Layer(nn.Module):
    def __init__(self, dim, index):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1, groups=4)
        self.moe = MoE(dim, index)

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.moe(self.norm2(x))


class Net(nn.Module):
    def __init__(self, dim=32, vocab=30):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Layer(dim, i) for i in range(2)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def synchronize(model, step):
    world = dist.get_world_size()
    for name, q in model.named_parameters():
        if q.grad is None:  # an expert without tokens
            q.grad = torch.zeros_like(q)
        if ".experts." in name and args.layout == "ep":
            if not (args.mutant == "expert_no_div" and name.startswith("layers.1")):
                q.grad.div_(world)
        elif args.mutant == "router_local" and step >= 1 and name == "layers.0.moe.router.weight":
            continue
        else:
            dist.all_reduce(q.grad)
            q.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(3):
        ids = torch.randint(0, 30, (8, 11), generator=torch.Generator().manual_seed(step))
        ids = ids.chunk(world)[rank]
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        loss.backward()
        synchronize(model, step)
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


main()
