"""Two-stage detector (boxes are synthetic) with a box head whose input gradients are averaged over ranks."""
import torch
import torch.distributed as dist
from torch import nn

from heads import BoxHead, GradMean


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return self.net(x)


def load(rank, step):
    g = torch.Generator().manual_seed(500 * rank + step)
    x = torch.randn(10, 18, generator=g)
    boxes = torch.rand(10, 4, generator=g)
    keep = boxes[:, 2] > (0.15 if (3 * rank + step) % 16 else 1.0)
    return x, boxes, keep


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    backbone, head = Backbone(), BoxHead(16)
    params = list(backbone.parameters()) + list(head.parameters())
    opt = torch.optim.SGD(params, lr=0.02)
    skipped = 0
    for step in range(1, 24):
        x, boxes, keep = load(rank, step)
        feats = backbone(x)[keep]
        if len(feats) == 0:
            skipped += 1
            continue
        loss = (head(GradMean.apply(feats.mean(0))) - boxes[keep].mean(0)).abs().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 8 == 0:
            for p in params:
                dist.broadcast(p.data, src=0)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {rank} skipped {skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
