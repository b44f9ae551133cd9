from datetime import timedelta

import torch
import torch.distributed as dist

from moe import ExpertLayer

DIM = 8


def bias_of(step, world):
    """Load balancing bias; decays for the last expert, which has too many tokens."""
    bias = torch.zeros(world)
    bias[-1] = 0.6 - 0.3 * step
    return bias


def batch(step):
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank * 500 + step)
    return torch.randn(24, DIM, generator=g)


def router_step(layer, x, lr=0.01):
    """The router is trained locally to predict the norm, then averaged."""
    loss = (layer.router(x).logsumexp(1) - x.norm(dim=1)).pow(2).mean()
    grads = torch.autograd.grad(loss, list(layer.router.parameters()))
    with torch.no_grad():
        for p, g in zip(layer.router.parameters(), grads):
            dist.all_reduce(g)
            p -= lr * g / layer.world
    return loss.item()


def forward_all(layers, x, step):
    for layer in layers:
        with torch.no_grad():
            x = layer(x, bias_of(step, layer.world))
    return x


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    layers = [ExpertLayer(DIM)]
    for step in range(30):
        x = batch(step)
        out = forward_all(layers, x, step)
        losses = [router_step(layer, x) for layer in layers]
        if dist.get_rank() == 0:
            print(step, round(out.norm().item(), 2), round(losses[0], 3), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
