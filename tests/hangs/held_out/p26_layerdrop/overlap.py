"""Gradients are averaged as soon as they are there."""
import torch.distributed as dist


class Overlap:
    def __init__(self, model):
        self.world = dist.get_world_size()
        self.pending = []
        self.handles = [
            p.register_post_accumulate_grad_hook(self.on_grad) for p in model.parameters() if p.requires_grad
        ]

    def on_grad(self, p):
        self.pending.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish(self):
        for p, work in self.pending:
            work.wait()
            p.grad /= self.world
        self.pending.clear()

    def remove(self):
        for handle in self.handles:
            handle.remove()
