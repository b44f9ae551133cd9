import torch
import torch.distributed as dist

WIDTH = 6


class Balancer:
    def __init__(self, rank, world, threshold=8):
        self.rank, self.world, self.threshold = rank, world, threshold
        self.moved = 0

    def loads(self, tasks):
        mine = torch.tensor([len(tasks)])
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine)
        return [int(p) for p in parts]

    def plan(self, loads):
        """Who gives how much to whom, or None."""
        rich = max(range(self.world), key=lambda r: loads[r])
        poor = min(range(self.world), key=lambda r: loads[r])
        gap = loads[rich] - loads[poor]
        if gap < self.threshold:
            return None
        return rich, poor, gap // 2

    def rebalance(self, pool):
        loads = self.loads(pool.tasks)
        pool.drop_expired()
        loads[self.rank] = len(pool.tasks)
        move = self.plan(loads)
        if move is None:
            return
        rich, poor, amount = move
        if self.rank == rich:
            give = torch.stack(pool.take(amount))
            dist.send(torch.tensor([amount]), dst=poor)
            dist.send(give, dst=poor)
            self.moved += amount
        elif self.rank == poor:
            size = torch.empty(1, dtype=torch.int64)
            dist.recv(size, src=rich)
            got = torch.empty(int(size), WIDTH)
            dist.recv(got, src=rich)
            pool.extend(got)
