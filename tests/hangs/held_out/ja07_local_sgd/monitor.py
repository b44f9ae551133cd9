import torch
import torch.distributed as dist


class LossMonitor:
    def __init__(self, every):
        self.every = every
        self.losses = []

    def add(self, step, loss):
        if torch.isfinite(loss):
            self.losses.append(loss.item())
        if (step + 1) % self.every == 0:
            self.report(step)

    def report(self, step):
        own = torch.tensor([sum(self.losses) / max(len(self.losses), 1)])
        means = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(means, own)
        self.losses.clear()
        if dist.get_rank() == 0:
            print(f"step {step}: {means.mean():.4f} (spread {means.max() - means.min():.4f})", flush=True)
