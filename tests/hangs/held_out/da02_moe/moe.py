import torch
import torch.distributed as dist
from torch import nn


def exchange_counts(counts):
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    return received


class Expert(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        torch.manual_seed(7 + index)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class MoELayer(nn.Module):
    """Top-1 routing, one expert per rank."""

    def __init__(self, width, rank, world):
        super().__init__()
        torch.manual_seed(3)
        self.gate = nn.Linear(width, world, bias=False)
        with torch.no_grad():
            self.gate.weight.zero_()
            for e in range(world):
                self.gate.weight[e, e] = 1.0
        self.expert = Expert(width, rank)
        self.world = world

    def route(self, x):
        choice = self.gate(x).argmax(dim=1)
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=self.world)
        return order, counts

    def dispatch(self, tokens, send, recv):
        out = tokens.new_empty(int(recv.sum()), tokens.shape[1])
        dist.all_to_all_single(out, tokens.contiguous(), recv.tolist(), send.tolist())
        return out

    def combine(self, outputs, send, recv):
        back = outputs.new_empty(int(send.sum()), outputs.shape[1])
        dist.all_to_all_single(back, outputs.contiguous(), send.tolist(), recv.tolist())
        return back

    def forward(self, x):
        order, send = self.route(x)
        recv = exchange_counts(send)
        tokens = self.dispatch(x[order].detach(), send, recv)
        if tokens.shape[0] == 0:
            return torch.zeros_like(x), tokens
        outputs = self.expert(tokens)
        back = self.combine(outputs.detach(), send, recv)
        result = torch.empty_like(back)
        result[order] = back
        return result, outputs
