import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import MetricBuffer


class Watch:
    def __init__(self, model, buffer, limit):
        self.buffer, self.limit, self.step = buffer, limit, 0
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self.hook(name))

    def hook(self, name):
        def record(module, args, out):
            peak = out.detach().abs().max().item()
            if peak > self.limit:
                self.buffer.add(step=self.step, layer=name, peak=peak)
        return record


def batch(g, rank):
    scale = 3.0 if rank == 0 else 1.0
    return torch.randn(16, 10, generator=g) * scale


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 10))
    buffer = MetricBuffer(rank, limit=12)
    watch = Watch(net, buffer, limit=4.0)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(rank)
    for step in range(60):
        watch.step = step
        x = batch(g, rank)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    buffer.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
