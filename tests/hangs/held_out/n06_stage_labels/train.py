from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from stages import IGNORE, build_stage, token_loss
from corpus import Corpus


class Runner:
    def __init__(self, rank, world, chunks=4):
        self.rank, self.world = rank, world
        self.module = build_stage(rank, world)
        stage = PipelineStage(self.module, rank, world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, chunks, loss_fn=token_loss)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.losses = []

    @property
    def last(self):
        return self.rank == self.world - 1

    def forward_backward(self, tokens, labels):
        if self.rank == 0:
            self.schedule.step(tokens)
        elif self.last:
            losses = []
            self.schedule.step(target=labels, losses=losses)
            self.losses.append(torch.stack(losses).mean().item())
        else:
            self.schedule.step()

    def run_epoch(self, batches):
        for tokens, labels in batches:
            if self.last and (labels == IGNORE).all():
                continue
            self.opt.zero_grad()
            self.forward_backward(tokens, labels)
            self.opt.step()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    runner = Runner(rank, world)
    corpus = Corpus(batches=12)
    for epoch in range(4):
        runner.run_epoch(corpus.epoch(epoch))
        total = torch.tensor([sum(runner.losses), float(len(runner.losses))])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
