import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import DIM, UnlabeledPool, labeled


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 20), nn.ReLU(), nn.Linear(20, 2))

    def forward(self, x):
        return self.net(x)


class MeanTeacher:
    def __init__(self, student, decay=0.95):
        self.model = copy.deepcopy(student)
        self.decay = decay

    @torch.no_grad()
    def update(self, student):
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.lerp_(s, 1 - self.decay)

    @torch.no_grad()
    def targets(self, x):
        return self.model(x).softmax(-1)

    def publish(self):
        for p in self.model.parameters():
            dist.broadcast(p.data, src=0)


def train_epoch(model, teacher, opt, rank):
    pool = UnlabeledPool(rank)
    steps = 0
    for (x, y), u in zip(labeled(rank), pool.batches()):
        logits, soft = model(torch.cat([x, u])).split([len(x), len(u)])
        loss = nn.functional.cross_entropy(logits, y)
        loss = loss + 0.3 * nn.functional.cross_entropy(soft, teacher.targets(u))
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher.update(model.module)
        steps += 1
    return loss.item(), steps


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    student = Student()
    model = DDP(student)
    teacher = MeanTeacher(student)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        loss, steps = train_epoch(model, teacher, opt, rank)
        teacher.publish()
        if rank == 0:
            print(f"epoch {epoch}: {steps} steps, loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
