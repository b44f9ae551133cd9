import torch
import torch.distributed as dist

from population import Member, Scoreboard, share_best


def make_data(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 6, generator=g)
    return x, x @ torch.arange(1.0, 7.0)[:, None]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank, lr=(0.010, 0.003, 0.009)[rank])
    board = Scoreboard(world, close=1.05)
    x, y = make_data(3)
    for generation in range(8):
        for _ in range(5):
            member.step(x, y)
        value = member.evaluate(x, y)
        board.update(value)
        owner = board.owner(value, generation)
        share_best(member, owner)
        if rank == 0:
            print(generation, owner, board.values, flush=True)
    final = torch.tensor(member.evaluate(x, y))
    dist.all_reduce(final, op=dist.ReduceOp.MIN)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
