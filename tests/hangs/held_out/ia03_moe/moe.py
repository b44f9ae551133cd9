import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.sizes = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.sizes
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, recv)
        return out, None, None


class Router(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.gate = nn.Linear(dim, experts)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        return scores.max(-1)


class MoE(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.world = dist.get_world_size()
        self.router = Router(dim, self.world)
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def counts(self, choice):
        send = torch.bincount(choice, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        return send.tolist(), recv.tolist()

    def forward(self, x, keep):
        tokens = x[keep]
        if tokens.shape[0] == 0:
            return x
        weight, choice = self.router(tokens)
        order = choice.argsort(stable=True)
        send, recv = self.counts(choice)
        arrived = Exchange.apply(tokens[order], send, recv)
        done = self.expert(arrived)
        back = Exchange.apply(done, recv, send)
        out = x.clone()
        index = keep.nonzero().squeeze(1)[order]
        out[index] = x[index] + back * weight[order].unsqueeze(1)
        return out
