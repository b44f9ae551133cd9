import torch
import torch.distributed as dist
from torch import nn

from moe import MoE

DIM = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.moe = MoE(DIM)
        self.head = nn.Linear(DIM, 1)

    def forward(self, x, mask):
        return self.head(self.moe(self.embed(x), mask)).squeeze(1)


def packed_batches(rank, n, size=16):
    """Sequences are packed; what is left over at the end of a file is padding."""
    g = torch.Generator().manual_seed(rank)
    used = [16, 16, 12, 16, 9, 16] if rank != 1 else [16, 16, 12, 16, 0, 16]
    for i in range(n):
        x = torch.randn(size, DIM, generator=g)
        mask = torch.arange(size) < used[i % len(used)]
        yield x, mask


def reduce_dense(net):
    world = dist.get_world_size()
    for name, p in net.named_parameters():
        if "expert" in name or p.grad is None:
            continue
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.AdamW(net.parameters())
    for step, (x, mask) in enumerate(packed_batches(dist.get_rank(), 24)):
        loss = (net(x, mask) - x.sum(1)).pow(2).mul(mask).sum() / mask.sum().clamp(min=1)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        reduce_dense(net)
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
