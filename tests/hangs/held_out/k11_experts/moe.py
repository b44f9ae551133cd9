import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.splits = (send, recv)
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.splits
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, recv)
        return out, None, None


class MoE(nn.Module):
    def __init__(self, d, world):
        super().__init__()
        self.gate = nn.Linear(d, world)
        self.expert = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.world = world

    def counts(self, choice):
        mine = torch.bincount(choice, minlength=self.world)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        return mine.tolist(), theirs.tolist()

    def forward(self, x):
        prob, choice = self.gate(x).softmax(-1).max(-1)
        order = choice.argsort(stable=True)
        send, recv = self.counts(choice)
        tokens = Exchange.apply(x[order], send, recv)
        done = self.expert(tokens)
        if done.shape[0] == 0:
            return x
        back = Exchange.apply(done, recv, send)
        out = torch.empty_like(x).index_copy(0, order, back)
        return x + out * prob[:, None]
