"""Population based training: after each round, the best member's settings go to all."""
import torch
import torch.distributed as dist


class Population:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.settings = {"lr": 0.02 * (self.rank + 1), "momentum": 0.5}
        self.scores = [0.0] * self.world

    def report(self, score):
        own = torch.tensor([score])
        parts = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(parts, own)
        for r, part in enumerate(parts):
            previous = self.scores[r] or part.item()
            self.scores[r] = part.item() if r == self.rank else 0.5 * (previous + part.item())

    def exploit(self):
        best = max(range(self.world), key=self.scores.__getitem__)
        box = [self.settings if self.rank == best else None]
        dist.broadcast_object_list(box, src=best)
        self.settings = dict(box[0])
        self.explore()
        return best

    def explore(self):
        self.settings["lr"] *= 1.1 if self.rank % 2 else 0.9
