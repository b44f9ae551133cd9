"""Tensor parallelism; large gradients are reported with their histogram and clipped."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from parallel import Model, tensor_parallel


class GradientMonitor:
    """Hooks at the parameters, which look at each gradient once it is there."""

    def __init__(self, model, limit):
        self.limit, self.seen = limit, {}
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(self.hook(name))

    def hook(self, name):
        def look(p):
            local = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
            if local.abs().max() > self.limit:
                self.report(name, p.grad)
                local.clamp_(-self.limit, self.limit)

        return look

    def report(self, name, grad):
        whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
        self.seen[name] = torch.histc(whole.flatten(), 10)


def data(steps):
    g = torch.Generator().manual_seed(4)
    for step in range(steps):
        x = torch.randn(6, 12, generator=g)
        yield x, x.flip(1) * (1 if step < 8 else 30)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = tensor_parallel(Model(), mesh)
    monitor = GradientMonitor(model, limit=6.0)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(data(60)):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 3), list(monitor.seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
