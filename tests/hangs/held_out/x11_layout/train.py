import torch
import torch.distributed as dist
import torch.nn as nn

from layout import Layout, host_overrides


class Worker:
    def __init__(self, layout):
        torch.manual_seed(0)
        self.layout = layout
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def train_step(self, step):
        g = torch.Generator().manual_seed(step * 10 + dist.get_rank())
        x = torch.randn(8, 4, generator=g)
        loss = (self.net(x) - x.mean(1, keepdim=True)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.layout.groups["train"])
            p.grad /= len(self.layout.members["train"])
        self.opt.step()
        return loss.item()

    def share(self):
        for p in self.net.parameters():
            dist.broadcast(p.data, src=3, group=self.layout.groups["eval"])

    def evaluate(self):
        x = torch.ones(2, 4)
        with torch.no_grad():
            return (self.net(x) - 1).abs().mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    greeting = torch.ones(1)
    dist.all_reduce(greeting)
    layout = Layout(host_overrides(rank)).build()
    worker = Worker(layout)
    for step in range(20):
        if layout.mine("train"):
            worker.train_step(step)
        if step % 5 == 4 and layout.mine("eval"):
            worker.share()
            print(rank, step, worker.evaluate(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
