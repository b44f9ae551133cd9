import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from model import Patience, build_stage


class Trainer:
    def __init__(self, rank, world, micro=4):
        self.rank, self.world = rank, world
        self.last = rank == world - 1
        self.net = build_stage(rank, world)
        stage = PipelineStage(self.net, rank, world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_microbatches=micro, loss_fn=nn.functional.cross_entropy)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.stopper = Patience()
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(16, 16, generator=g)
        self.y = torch.randint(0, 4, (16,), generator=g)

    def step(self):
        self.opt.zero_grad()
        losses = []
        if self.rank == 0:
            self.schedule.step(self.x)
        elif self.last:
            self.schedule.step(target=self.y, losses=losses)
        else:
            self.schedule.step()
        self.opt.step()
        return torch.stack(losses).mean().item() if losses else None

    def fit(self, steps):
        done = 0
        for done in range(1, steps + 1):
            loss = self.step()
            if loss is not None and self.stopper.update(loss):
                print(f"no progress since {self.stopper.best:.4f}, stopping after {done} steps", flush=True)
                break
        return done


def summarize(trainer, done):
    sizes = [None] * trainer.world
    dist.all_gather_object(sizes, {"steps": done, "params": sum(p.numel() for p in trainer.net.parameters())})
    if trainer.rank == 0:
        print(sizes)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank(), dist.get_world_size())
    done = trainer.fit(400)
    summarize(trainer, done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
