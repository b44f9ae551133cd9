import torch.distributed as dist


class Topology:
    """Data-parallel replicas of a pipeline; the ends of a pipeline share their embedding."""

    def __init__(self, rank, world, stages):
        self.rank = rank
        self.stages = stages
        self.replicas = world // stages
        self.stage = rank % stages
        self.replica = rank // stages
        self.dp_group = None
        self.pipe_group = None
        self.tied_group = None

    def pipeline(self, replica):
        return [replica * self.stages + s for s in range(self.stages)]

    def peers(self, stage):
        return [r * self.stages + stage for r in range(self.replicas)]

    @property
    def tied(self):
        return self.stage in (0, self.stages - 1)

    def build(self):
        if self.tied:
            ends = self.pipeline(self.replica)
            self.tied_group = dist.new_group([ends[0], ends[-1]])
        dist.barrier()
        for replica in range(self.replicas):
            group = dist.new_group(self.pipeline(replica))
            if replica == self.replica:
                self.pipe_group = group
        for stage in range(self.stages):
            group = dist.new_group(self.peers(stage))
            if stage == self.stage:
                self.dp_group = group
        return self
