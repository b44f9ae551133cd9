"""Hyperparameters are proposed, voted for, and sent out by a changing leader."""
import random
from datetime import timedelta

import torch.distributed as dist


class Proposal:
    def __init__(self, rank, lr, text):
        self.rank, self.lr, self.text = rank, lr, text

    def __repr__(self):
        return f"<{self.rank}: {self.lr:.4f} {len(self.text)}>"


class Parliament:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rng = random.Random(self.rank)

    def propose(self, round_):
        # objects of very different sizes
        return Proposal(self.rank, self.rng.random(), "x" * (10 ** self.rng.randrange(1, 5)))

    def collect(self, proposal, leader):
        if self.rank == leader:
            box = [None] * self.world
            dist.gather_object(proposal, box, dst=leader)
            return box
        dist.gather_object(proposal, dst=leader)
        return None

    def announce(self, proposals, leader):
        box = [None]
        if proposals is not None:
            box[0] = min(proposals, key=lambda p: p.lr)
        dist.broadcast_object_list(box, src=leader)
        return box[0]

    def assign(self, leader):
        parts = None
        if self.rank == leader:
            parts = [{"rank": r, "items": list(range(r * 5))} for r in range(self.world)]
        out = [None]
        dist.scatter_object_list(out, parts, src=leader)
        assert out[0]["rank"] == self.rank
        return out[0]

    def tally(self, items):
        rows = [None] * self.world
        dist.all_gather_object(rows, len(items))
        return sum(rows)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    p = Parliament()
    for round_ in range(10):
        leader = (3 * round_ + 1) % p.world
        chosen = p.announce(p.collect(p.propose(round_), leader), leader)
        total = p.tally(p.assign(leader)["items"])
        if p.rank == leader:
            print("round", round_, chosen, total, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
