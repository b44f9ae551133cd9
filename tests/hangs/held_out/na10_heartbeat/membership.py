import time

import torch.distributed as dist


class Membership:
    """Who takes part in the training; ranks that leave announce it in the store."""

    TTL = 1.0

    def __init__(self, rank, world):
        self.store = dist.PrefixStore("members", dist.distributed_c10d._get_default_store())
        self.rank, self.world = rank, world
        self.states = {}
        self.read_at = 0.0
        self.store.set(str(rank), "active")

    def announce(self, state):
        self.store.set(str(self.rank), state)

    def view(self):
        if time.monotonic() - self.read_at > self.TTL:
            self.states = {r: self.store.get(str(r)).decode() for r in range(self.world)}
            self.read_at = time.monotonic()
        return self.states

    def active(self):
        return [r for r, state in sorted(self.view().items()) if state == "active"]
