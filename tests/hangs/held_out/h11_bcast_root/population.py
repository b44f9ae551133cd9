"""Population-based training: scores and who is copied."""
import torch
import torch.distributed as dist


class Scoreboard:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.running = None

    def exchange(self, score):
        mine = torch.tensor([score])
        table = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(table, mine)
        return [t.item() for t in table]

    def winner(self, score):
        scores = self.exchange(score)
        # own score is known with its history, others' are not
        if self.running is None:
            self.running = score
        self.running = 0.5 * self.running + 0.5 * score
        scores[self.rank] = self.running
        return min(range(self.world), key=scores.__getitem__)
