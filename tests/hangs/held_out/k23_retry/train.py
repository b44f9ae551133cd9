import torch
import torch.distributed as dist
from torch import nn

from retry import retry


class Source:
    def __init__(self, rank):
        self.rank, self.reads = rank, 0
        self.g = torch.Generator().manual_seed(rank)

    def rows(self):
        self.reads += 1
        text = ["3;1", "4;2", "5;3"] if (self.rank, self.reads) != (2, 4) else ["3;1", "4", "5;3"]
        return text * 4

    def parse(self, text):
        pairs = [line.split(";") for line in text]
        return torch.tensor([[float(a), float(b)] for a, b in pairs]) + torch.randn(len(text), 2, generator=self.g)


@retry(times=3)
def next_batch(source):
    text = source.rows()
    longest = torch.tensor([len(text)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    data = source.parse(text)
    pad = int(longest) - len(data)
    return nn.functional.pad(data, (0, 0, 0, pad))


def evaluate(net, x):
    outs = [torch.empty(len(x), 1) for _ in range(dist.get_world_size())]
    with torch.no_grad():
        dist.all_gather(outs, net(x))
    return torch.cat(outs).mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    source = Source(rank)
    for step in range(12):
        x = next_batch(source)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = evaluate(net, x)
        if rank == 0:
            print(step, loss.item(), value, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
