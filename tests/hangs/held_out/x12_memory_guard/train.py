import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from guard import Budget, FeatureCache


class Videos:
    """Clips of different length; long ones are rare."""

    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(rank)
        self.frames = [30] * 40
        if rank == 2:
            self.frames[20:26] = [900] * 6

    def __iter__(self):
        for i, n in enumerate(self.frames):
            yield i, torch.randn(n, 8, generator=self.g)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(8, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, clip):
        h = torch.tanh(self.frame(clip))
        return self.head(h.mean(0)), h


def train(model, opt, videos, cache):
    for i, clip in videos:
        out, feats = model(clip)
        loss = (out - clip.mean()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        cache.put(i, feats.detach())
        if dist.get_rank() == 0 and i % 10 == 0:
            print(i, loss.item(), len(cache), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, opt, Videos(dist.get_rank()), FeatureCache(Budget(400_000)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
