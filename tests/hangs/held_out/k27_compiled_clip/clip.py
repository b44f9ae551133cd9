import torch
import torch.distributed as dist


class GlobalClip:
    def __init__(self, limit):
        self.limit, self.used = limit, 0

    def local_norm(self, params):
        return torch.stack([p.grad.norm() for p in params]).norm()

    def __call__(self, params):
        norm = self.local_norm(params)
        if norm <= self.limit:
            return norm
        self.used += 1
        norms = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        scale = self.limit / (torch.stack(norms).norm() + 1e-6)
        for p in params:
            p.grad.mul_(scale)
        return norm
