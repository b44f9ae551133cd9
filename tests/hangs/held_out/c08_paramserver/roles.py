from enum import Enum, auto

import torch

import wire


class Phase(Enum):
    PULL = auto()
    COMPUTE = auto()
    PUSH = auto()
    DONE = auto()


class Server:
    def __init__(self, net, workers, rounds, lr):
        self.net, self.workers, self.rounds, self.lr = net, workers, rounds, lr

    def run(self):
        vec = wire.flat(self.net)
        for _ in range(self.rounds):
            for w in self.workers:
                wire.push(vec, w)
            grads = [wire.pull(vec, w) for w in self.workers]
            vec = vec - self.lr * torch.stack(grads).mean(0)
        wire.load(self.net, vec)


class Worker:
    """A worker as a state machine; `patience` rounds below `tolerance` are enough."""

    def __init__(self, net, data, rounds, tolerance=1e-3, patience=3):
        self.net, self.data, self.rounds = net, data, rounds
        self.tolerance, self.patience = tolerance, patience
        self.round, self.calm = 0, 0
        self.vec = wire.flat(net)

    def compute(self):
        x, y = self.data
        self.net.zero_grad()
        loss = (self.net(x) - y).pow(2).mean()
        loss.backward()
        self.calm = self.calm + 1 if loss.item() < self.tolerance else 0
        return loss.item()

    def transition(self, phase):
        match phase:
            case Phase.PULL:
                self.vec = wire.pull(self.vec, wire.SERVER)
                wire.load(self.net, self.vec)
                return Phase.COMPUTE
            case Phase.COMPUTE:
                self.compute()
                return Phase.PUSH
            case Phase.PUSH:
                wire.push(wire.flat_grad(self.net), wire.SERVER)
                self.round += 1
                if self.round == self.rounds or self.calm >= self.patience:
                    return Phase.DONE
                return Phase.PULL

    def run(self):
        phase = Phase.PULL
        while phase is not Phase.DONE:
            phase = self.transition(phase)
