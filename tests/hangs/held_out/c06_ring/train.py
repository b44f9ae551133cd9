import torch
import torch.distributed as dist

from ring import RingAttention
from text import Documents

DIM = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.attention = RingAttention(DIM)
        self.norm = torch.nn.LayerNorm(DIM)
        self.out = torch.nn.Linear(DIM, DIM)

    def forward(self, x, pad):
        return self.out(self.norm(x + self.attention(x, pad)))


def average_gradients(net):
    flat = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    dist.all_reduce(flat)
    return flat.norm() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = Block()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    docs = Documents([24, 22, 19, 24, 13, 21], full=24, dim=DIM)
    for step, (x, pad) in enumerate(docs.chunks(rank, world)):
        y = net(x, pad)
        loss = (y - x)[~pad].pow(2).sum() / 24
        opt.zero_grad()
        loss.backward()
        norm = average_gradients(net)
        opt.step()
        if rank == 0:
            print(f"step {step} gradient {norm:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
