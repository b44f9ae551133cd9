"""Population-based training: every few rounds all members copy the best one."""
import torch
import torch.distributed as dist

from member import Member
from population import ScoreBoard, copy_best


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank)
    board = ScoreBoard(world, keep=3)
    for rnd in range(12):
        for _ in range(4):
            member.train_step()
        board.update(member.score())
        if (rnd + 1) % 2 == 0:
            source = copy_best(member, board)
            if rank == 0:
                print(f"round {rnd}: copied member {source}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
