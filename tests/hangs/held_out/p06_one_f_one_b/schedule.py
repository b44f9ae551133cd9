"""One forward, one backward: at most `world - rank` micro-batches are in flight on a rank."""
import collections


class OneForwardOneBackward:
    def __init__(self, link, stage, loss, micro):
        self.link = link
        self.stage = stage
        self.loss = loss
        self.micro = micro
        self.flight = collections.deque()
        self.total = 0.0

    def forward(self, batches, targets):
        received = self.link.recv_forward()
        x = next(batches) if received is None else received
        y = self.stage(x)
        if self.link.last:
            y = self.loss(y, next(targets)) / self.micro
            self.total += y.item()
        self.flight.append((received, y))
        self.link.send_forward(y)

    def backward(self):
        grad = self.link.recv_backward()
        received, y = self.flight.popleft()
        y.backward(grad)
        self.link.send_backward(None if received is None else received.grad)

    def run(self, batches, targets):
        batches, targets = iter(batches), iter(targets)
        self.total = 0.0
        warmup = min(self.micro, self.link.world - self.link.rank - 1)
        for _ in range(warmup):
            self.forward(batches, targets)
        for _ in range(self.micro - warmup):
            self.forward(batches, targets)
            self.backward()
        for _ in range(warmup):
            self.backward()
        return self.total
