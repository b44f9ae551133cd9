import torch.distributed as dist

from exploit import Leaderboard
from member import Member

STARTS = (0.26, 0.11, 0.06)
SPEEDS = (0.05, 0.03, 0.075)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    member = Member(STARTS[rank], SPEEDS[rank])
    board = Leaderboard()
    for generation in range(30):
        member.train()
        own = member.evaluate()
        best = board.exploit(member, own)
        if rank == 0:
            print(f"generation {generation}: best member {best}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
