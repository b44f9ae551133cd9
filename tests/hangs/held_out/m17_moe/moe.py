import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn


class ExpertLayer(nn.Module):
    def __init__(self, dim, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        self.gate = nn.Linear(dim, world, bias=False)
        with torch.no_grad():
            self.gate.weight.copy_(torch.eye(dim)[:world] * 2)
            self.gate.weight[2] = torch.tensor([0.6] * 4 + [-0.6] * 4)
        torch.manual_seed(rank)
        self.expert = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))
        self.load = torch.zeros(world)

    def exchange(self, x, send, recv):
        out = x.new_empty(sum(recv), x.shape[1])
        return dnn.all_to_all_single(out, x, output_split_sizes=recv, input_split_sizes=send)

    def plan(self, choice):
        send = torch.bincount(choice, minlength=self.world)
        table = [torch.zeros_like(send) for _ in range(self.world)]
        dist.all_gather(table, send)
        self.load = torch.stack(table).sum(0)
        return send.tolist(), [int(row[self.rank]) for row in table]

    def forward(self, x):
        prob = self.gate(x).softmax(-1)
        weight, choice = prob.max(-1)
        order = choice.argsort(stable=True)
        send, recv = self.plan(choice)
        if send[self.rank] == len(x):
            mixed = self.expert(x)
        else:
            inner = self.exchange(x[order], send, recv)
            back = self.exchange(self.expert(inner), recv, send)
            mixed = torch.empty_like(back).index_copy(0, order, back)
        return x + weight[:, None] * mixed
