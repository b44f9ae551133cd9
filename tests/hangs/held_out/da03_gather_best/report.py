import torch.distributed as dist


class Leaderboard:
    """Collects the trials of all ranks on the rank that has the best one so far."""

    def __init__(self, rank, world):
        self.rank = rank
        self.world = world
        self.best = {r: float("inf") for r in range(world)}
        self.history = []

    def observe(self, losses):
        for owner, value in losses.items():
            self.best[owner] = min(self.best[owner], value)

    def owner(self):
        return min(self.best, key=lambda r: (round(self.best[r], 3), r))

    def collect(self, trial):
        home = self.owner()
        rows = [None] * self.world if self.rank == home else None
        dist.gather_object(trial, rows, dst=home)
        if rows is not None:
            self.history.append(rows)
        return home
