import torch
import torch.distributed as dist


class Evaluator:
    """Accuracy on the held-out shard, in portions; gives up when the model is clearly worse than before."""

    def __init__(self, x, y, portion=16):
        self.x, self.y, self.portion = x, y, portion
        self.best = 0.0

    def portions(self):
        return zip(self.x.split(self.portion), self.y.split(self.portion))

    @torch.no_grad()
    def __call__(self, net):
        net.eval()
        right = seen = 0
        start = 0
        while start < len(self.x):
            x, y = self.x[start:start + self.portion], self.y[start:start + self.portion]
            right += (net(x).argmax(1) == y).sum().item()
            seen += len(y)
            start += self.portion
            if seen >= 32 and right / seen < 0.5 * self.best:
                accuracy = None
                break
        else:
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, (right, seen))
            accuracy = sum(p[0] for p in parts) / sum(p[1] for p in parts)
            self.best = max(self.best, right / seen)
        net.train()
        return accuracy
