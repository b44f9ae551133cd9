"""Some ranks train, others evaluate; both have a group of their own."""
import torch.distributed as dist


class Roles:
    def __init__(self, trainers):
        world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.trainers = list(range(trainers))
        self.judges = list(range(trainers, world))
        self.train_group = dist.new_group(self.trainers)
        self.judge_group = dist.new_group(self.judges)

    @property
    def trains(self):
        return self.rank in self.trainers
