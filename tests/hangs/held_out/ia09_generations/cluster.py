import torch.distributed as dist


class Cluster:
    """A default group that can be made anew under another prefix of the store."""

    def __init__(self):
        self.store, self.rank, self.world = next(dist.rendezvous("env://"))
        self.generation = 0

    def join(self):
        prefixed = dist.PrefixStore(f"gen{self.generation}", self.store)
        dist.init_process_group("gloo", store=prefixed, rank=self.rank, world_size=self.world)

    def leave(self):
        dist.destroy_process_group()
        self.generation += 1
