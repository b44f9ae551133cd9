"""1F1B with sends and receives of one step started together."""
import collections

import torch
import torch.distributed as dist


class Pipe:
    def __init__(self, stage, loss, shape, micro):
        self.stage, self.loss, self.shape, self.micro = stage, loss, shape, micro
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.prev = self.rank - 1 if self.rank > 0 else None
        self.next = self.rank + 1 if self.rank + 1 < self.world else None
        self.flight = collections.deque()
        self.total = 0.0

    def talk(self, send=(), recv=()):
        ops, buffers = [], []
        for tensor, peer in send:
            if peer is not None:
                ops.append(dist.P2POp(dist.isend, tensor.detach().contiguous(), peer))
        for peer in recv:
            buffers.append(None if peer is None else torch.empty(self.shape))
            if peer is not None:
                ops.append(dist.P2POp(dist.irecv, buffers[-1], peer))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return buffers

    def forward(self, x, received, target):
        if received is not None:
            x = received.requires_grad_()
        y = self.stage(x)
        if self.next is None:
            y = self.loss(y, target) / self.micro
            self.total += y.item()
        self.flight.append((received, y))
        return y

    def backward(self, grad):
        received, y = self.flight.popleft()
        y.backward(grad)
        return None if received is None else received.grad

    def run(self, xs, targets):
        self.total, pairs = 0.0, iter(zip(xs, targets))
        warmup = min(self.micro, self.world - self.rank - 1)
        for _ in range(warmup):
            x, target = next(pairs)
            (received,) = self.talk(recv=[self.prev])
            self.talk(send=[(self.forward(x, received, target), self.next)])
        rest = self.micro - warmup
        received = self.talk(recv=[self.prev])[0] if rest else None
        for i in range(rest):
            x, target = next(pairs)
            y = self.forward(x, received, target)
            (grad,) = self.talk(send=[(y, self.next)], recv=[self.next])
            out = self.backward(grad)
            wanted = [self.prev] if i + 1 < rest else []
            result = self.talk(send=[(out, self.prev)] if self.prev is not None else [], recv=wanted)
            received = result[0] if wanted else None
        for _ in range(warmup):
            (grad,) = self.talk(recv=[self.next])
            out = self.backward(grad)
            if self.prev is not None:
                self.talk(send=[(out, self.prev)])
        return self.total
