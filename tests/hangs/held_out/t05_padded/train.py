"""Two pipeline stages by torch.distributed.pipelining."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from corpus import PAD, batches

DIM, VOCAB = 16, 32


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, ids):
        return torch.tanh(self.mix(self.emb(ids)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, h):
        return self.out(h)


def loss_fn(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)


class Runner:
    def __init__(self, rank, n_micro):
        self.rank = rank
        torch.manual_seed(rank)
        self.module = First() if rank == 0 else Last()
        stage = PipelineStage(self.module, rank, 2, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_micro, loss_fn=loss_fn)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def feed(self, ids):
        self.schedule.step(ids)

    def learn(self, target):
        if (target != PAD).sum() == 0:
            return None
        losses = []
        self.schedule.step(target=target, losses=losses)
        return torch.stack(losses).mean().item()

    def update(self):
        self.opt.step()
        self.opt.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    runner = Runner(rank, n_micro=4)
    for step, (ids, target) in enumerate(batches(12)):
        if rank == 0:
            runner.feed(ids)
        else:
            loss = runner.learn(target)
            print("step", step, "loss", loss, flush=True)
        runner.update()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
