import torch
import torch.distributed as dist
import torch.nn as nn

from ring import RingExchange, ring_attention

DIM = 8
BLOCK = 4
STEPS = 6


class Layer(nn.Module):
    def __init__(self, exchange):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.exchange = exchange

    def forward(self, x, window):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return x + self.out(ring_attention(q, k, v, self.exchange, window))


def window_for(step, world):
    """The attended length, per block of queries; packed documents shorten it from step 2 on."""
    full = [world * BLOCK] * world
    if step < 2:
        return None
    full[1] = BLOCK  # a document starts with block 1
    return full


def sync_grads(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    dist.all_reduce(flat)
    offset = 0
    for p in model.parameters():
        if p.grad is not None:
            n = p.numel()
            p.grad.copy_(flat[offset : offset + n].view_as(p) / world)
            offset += n


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    exchange = RingExchange(rank, world)
    model = nn.ModuleList([Layer(exchange), Layer(exchange)])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        gen = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(2, BLOCK, DIM, generator=gen)
        target = x.flip(-1)
        for layer in model:
            x = layer(x, window_for(step, world))
        loss = (x - target).pow(2).mean()
        loss.backward()
        sync_grads(model, world)
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
