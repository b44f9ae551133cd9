"""A layer of experts, one per rank, with tokens that are routed by hand."""
import time

import torch
import torch.distributed as dist

from exchange import TokenExchange

WIDTH = 8


def route(step, rank, world):
    """Tokens of a step and the ranks of their experts."""
    generator = torch.Generator().manual_seed(step * world + rank)
    count = 24 + 3 * step if rank == 1 else 24
    tokens = torch.randn(count, WIDTH, generator=generator)
    owners = (torch.arange(count) + step) % world
    return tokens, owners


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    expert = torch.nn.Linear(WIDTH, WIDTH)
    exchange = TokenExchange(WIDTH, budget=48)
    for step in range(60):
        tokens, owners = route(step, rank, world)
        batch = exchange.dispatch(tokens, owners)
        with torch.no_grad():
            load = torch.tensor([float(len(batch)), expert(batch).square().mean().item()])
        dist.all_reduce(load)
        if rank == 0 and step % 4 == 0:
            print(f"step {step}: {load[0]:.0f} tokens, dropped {exchange.dropped}", flush=True)
        time.sleep(0.12)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
