"""Rank 0 publishes checkpoints through an external tool, with its output in the log."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from publish import Publisher


class Ema:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 5)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    ema = Ema(model.module)
    publisher = Publisher() if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 41):
        x = torch.randn(16, 20, generator=g)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model.module)
        if step % 8 == 0:
            if publisher:
                publisher.publish(ema.shadow, step, verbose=step >= 24)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
