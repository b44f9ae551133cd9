import torch
import torch.distributed as dist

from stages import WIDTH


class Engine:
    """Fill-drain schedule: all forwards, then all backwards."""

    def __init__(self, stage, rank, world, optimizer, rows=8):
        self.stage = stage
        self.rank = rank
        self.world = world
        self.opt = optimizer
        self.rows = rows
        self.inflight = []
        self.losses = []

    def receive_activation(self):
        buf = torch.empty(self.rows, WIDTH)
        dist.recv(buf, src=self.rank - 1, tag=1)
        return buf

    def receive_gradient(self, like):
        grad = torch.empty_like(like)
        dist.recv(grad, src=self.rank + 1, tag=2)
        return grad

    def forward_one(self, batch):
        if self.stage.first:
            x = self.stage.body[0].weight.new_tensor(batch[0].tolist())
            keep = True
        else:
            x = self.receive_activation()
            keep = bool(x.std(dim=0).max() > 0)
        if not keep and not self.stage.last:
            return
        x.requires_grad_(not self.stage.first)
        y = self.stage(x)
        if self.stage.last:
            loss = torch.nn.functional.mse_loss(y, batch[1])
            self.losses.append(loss.item())
            self.inflight.append((x, loss))
        else:
            self.inflight.append((x, y))
            dist.send(y.detach(), dst=self.rank + 1, tag=1)

    def backward_one(self):
        x, y = self.inflight.pop(0)
        if self.stage.last:
            y.backward()
        else:
            y.backward(self.receive_gradient(y))
        if not self.stage.first:
            dist.send(x.grad, dst=self.rank - 1, tag=2)

    def run(self, batches):
        self.losses.clear()
        self.opt.zero_grad()
        for batch in batches:
            self.forward_one(batch)
        while self.inflight:
            self.backward_one()
        self.opt.step()
        return sum(self.losses) / max(1, len(self.losses))
