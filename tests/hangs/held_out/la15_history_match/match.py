import torch
import torch.distributed as dist


class HistoryMatch:
    """Fits one model of the reservoir to the logs of all wells, a time window after the other."""

    def __init__(self, model, world):
        self.model = model
        self.world = world
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.LBFGS(self.parameters, lr=0.3, max_iter=6, history_size=8)

    def average(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(flat)
        flat /= self.world
        for p, piece in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
            p.grad.copy_(piece.view_as(p))

    def fit_window(self, time, pressure, weight):
        def closure():
            self.optimizer.zero_grad()
            residual = weight * (self.model(time) - pressure)
            loss = residual.square().mean()
            loss.backward()
            self.average()
            return loss

        return self.optimizer.step(closure).detach()

    def misfit(self, loss):
        losses = [torch.zeros_like(loss) for _ in range(self.world)]
        dist.all_gather(losses, loss)
        return torch.stack(losses)
