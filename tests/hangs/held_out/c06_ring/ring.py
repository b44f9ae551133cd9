import torch
import torch.distributed as dist


class RingAttention(torch.nn.Module):
    """Attention over a sequence which is split over the ranks; keys and values travel around the ring."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = torch.nn.Linear(dim, 3 * dim)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.right = (self.rank + 1) % self.world
        self.left = (self.rank - 1) % self.world

    def rotate(self, kv, pad):
        kv_in, pad_in = torch.empty_like(kv), torch.empty_like(pad)
        ops = [dist.P2POp(dist.isend, kv, self.right), dist.P2POp(dist.irecv, kv_in, self.left),
               dist.P2POp(dist.isend, pad, self.right), dist.P2POp(dist.irecv, pad_in, self.left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return kv_in, pad_in

    @staticmethod
    def merge(acc, norm, top, scores, v):
        new_top = torch.maximum(top, scores.max(-1, keepdim=True).values)
        weight = (scores - new_top).exp()
        old = (top - new_top).exp()
        return acc * old + weight @ v, norm * old + weight.sum(-1, keepdim=True), new_top

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        acc = torch.zeros_like(q)
        norm = torch.full((len(x), 1), 1e-6)
        top = torch.full((len(x), 1), -1e4)
        kv = torch.stack([k, v])
        pad = pad.to(torch.uint8)
        for hop in range(self.world):
            if pad.all():
                continue
            scores = q @ kv[0].t() / x.shape[-1] ** 0.5
            scores = scores.masked_fill(pad.bool()[None], -1e4)
            acc, norm, top = self.merge(acc, norm, top, scores, kv[1])
            if hop < self.world - 1:
                kv, pad = self.rotate(kv.detach(), pad)
        return acc / norm
