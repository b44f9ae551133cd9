import torch.distributed as dist


class Board:
    """Progress of the workers in the store of the job."""

    def __init__(self, name):
        default = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(name, default)
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def post(self, stage, value):
        self.store.set(f"{stage}/{self.rank}", str(value))

    def collect(self, stage):
        keys = [f"{stage}/{rank}" for rank in range(self.world)]
        self.store.wait(keys)
        return [int(self.store.get(key)) for key in keys]
