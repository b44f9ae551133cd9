import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from stages import Source, make_stage

STEPS = 10
MICRO = 4


class Runner:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.first = self.rank == 0
        self.last = self.rank == self.world - 1
        self.module = make_stage(self.rank, self.world)
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=F.mse_loss)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.02)
        self.source = Source()
        self.losses = []

    def forward_backward(self, x, y):
        if self.first:
            self.schedule.step(x)
        elif self.last:
            losses = []
            self.schedule.step(target=y, losses=losses)
            self.losses.append(sum(float(loss.detach()) for loss in losses) / MICRO)
        else:
            self.schedule.step()

    def run(self):
        skipped = 0
        for step in range(STEPS):
            x, y = self.source(step)
            if self.first and not torch.isfinite(x).all():
                skipped += 1
                continue
            self.optimizer.zero_grad()
            self.forward_backward(x, y)
            self.optimizer.step()
        return skipped

    def report(self, skipped):
        curve = [self.losses]
        dist.broadcast_object_list(curve, src=self.world - 1)
        if self.first:
            print(f"{skipped} batches skipped, losses {curve[0]}", flush=True)


def main():
    dist.init_process_group("gloo")
    runner = Runner()
    skipped = runner.run()
    runner.report(skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
