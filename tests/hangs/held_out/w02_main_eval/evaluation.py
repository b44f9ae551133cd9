import time

import torch
import torch.distributed as dist


class Evaluator:
    """Rank 0 evaluates the whole set; all learn from it whether to stop."""

    def __init__(self, x, y, patience=2):
        self.x, self.y = x, y
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    @torch.no_grad()
    def score(self, net):
        total = 0.0
        for x, y in zip(self.x.split(50), self.y.split(50)):
            time.sleep(0.25)
            total += (net(x) - y).pow(2).sum().item()
        return total / len(self.y)

    def should_stop(self, net):
        flag = torch.zeros(1, dtype=torch.long)
        if dist.get_rank() == 0:
            score = self.score(net)
            if score < self.best * 0.5:
                self.best, self.bad = score, 0
            else:
                self.bad += 1
            flag[0] = self.bad >= self.patience
            print(f"evaluation {score:.4f}", flush=True)
        dist.broadcast(flag, src=0)
        return bool(flag)
