import torch
import torch.distributed as dist


class Outbox:
    """Records waiting to be sent, one queue for each destination."""

    def __init__(self, world, chunk):
        self.world, self.chunk = world, chunk
        self.queues = [[] for _ in range(world)]

    def put(self, key, value):
        self.queues[key % self.world].append((key, value))

    def pending(self):
        return any(self.queues)

    def take(self):
        parts = []
        for q in range(self.world):
            parts.append(self.queues[q][: self.chunk])
            self.queues[q] = self.queues[q][self.chunk :]
        return parts


class Shuffler:
    def __init__(self, rank, world, chunk=16):
        self.rank, self.world = rank, world
        self.outbox = Outbox(world, chunk)
        self.received = []

    def exchange_round(self):
        parts = self.outbox.take()
        counts = torch.tensor([len(p) for p in parts])
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts)
        flat = [pair for p in parts for pair in p]
        send = torch.tensor(flat, dtype=torch.int64).reshape(-1, 2)
        recv = torch.empty(int(incoming.sum()), 2, dtype=torch.int64)
        dist.all_to_all_single(recv, send, incoming.tolist(), counts.tolist())
        self.received.append(recv)

    def run(self, records):
        for key, value in records:
            self.outbox.put(key, value)
        rounds = 0
        while self.outbox.pending():
            self.exchange_round()
            rounds += 1
        data = torch.cat(self.received) if self.received else torch.empty(0, 2, dtype=torch.int64)
        self.received = []
        return data, rounds
