import torch
import torch.distributed as dist


class LayerStatistics:
    """Gathers the norm of the gradient behind each layer from all ranks."""

    def __init__(self, layers):
        self.norms = {}
        self.handles = [layer.register_full_backward_hook(self.collect) for layer in layers]

    def collect(self, layer, grad_input, grad_output):
        norm = grad_output[0].norm().reshape(1)
        norms = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        self.norms[layer] = torch.cat(norms).mean().item()

    def remove(self):
        for handle in self.handles:
            handle.remove()


def average_gradients(model):
    """One reduction of all gradients; layers that were dropped add zeros."""
    flat = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten()
                      for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad = flat[offset:offset + p.numel()].view_as(p).clone()
        offset += p.numel()
