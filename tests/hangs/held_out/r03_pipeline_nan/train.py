import logging
import math

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss

from stages import Stage, batch_of

STEPS = 10
log = logging.getLogger("train")


class PipelineTrainer:
    def __init__(self, rank, world):
        torch.manual_seed(rank)
        self.first = rank == 0
        self.last = rank == world - 1
        self.module = Stage()
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        stage = PipelineStage(self.module, rank, world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=mse_loss)
        self.loss = None

    def step(self, x, y):
        self.optimizer.zero_grad()
        if self.first:
            self.schedule.step(x)
        elif self.last:
            losses = []
            self.schedule.step(target=y, losses=losses)
            self.loss = torch.stack(losses).mean().item()
        else:
            self.schedule.step()
        self.optimizer.step()

    def diverged(self):
        return self.loss is not None and not math.isfinite(self.loss)


def fit(trainer):
    done = 0
    for step in range(STEPS):
        x, y = batch_of(step)
        trainer.step(x, y)
        if trainer.diverged():
            log.error("step %d: loss is %s, stopping", step, trainer.loss)
            break
        if trainer.last:
            log.info("step %d: loss %.4f", step, trainer.loss)
        done += 1
    return done


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    trainer = PipelineTrainer(dist.get_rank(), dist.get_world_size())
    done = fit(trainer)
    dist.barrier()
    if trainer.first:
        log.info("%d steps", done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
