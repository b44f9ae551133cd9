import torch


class Meter:
    def __init__(self, beta=0.9):
        self.beta = beta
        self.value = None

    def update(self, x):
        self.value = x if self.value is None else self.beta * self.value + (1 - self.beta) * x
        return self.value


def report(accelerator, loss, meter, step):
    """Mean loss of all processes, smoothed, for the console."""
    losses = accelerator.gather(loss.detach().reshape(1))
    smooth = meter.update(losses.mean().item())
    accelerator.print(f"step {step} loss {smooth:.4f} ({losses.numel()} processes)")
    return smooth


def count_params(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def seed_all(seed):
    torch.manual_seed(seed)
