import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from histograms import GradientHistograms
from scenes import SIZE, TASKS, Scenes


class MultiTask(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.heads = nn.ModuleDict({task: nn.Linear(dim, width) for task, width in sorted(TASKS.items())})
        self.trunk = nn.Sequential(nn.Linear(SIZE, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())

    def losses(self, images, labels):
        hidden = self.trunk(images)
        return {task: F.mse_loss(self.heads[task](hidden), target) for task, target in labels.items()}


def average_gradients(model, world):
    parameters = list(model.parameters())
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    dist.all_reduce(flat)
    for p, piece in zip(parameters, flat.div_(world).split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p).clone()


def task_report(step, losses):
    mine = {task: loss.item() for task, loss in losses.items()}
    reports = [None] * dist.get_world_size()
    dist.all_gather_object(reports, mine)
    if dist.get_rank() == 0:
        for task in TASKS:
            values = [r[task] for r in reports if task in r]
            print(f"step {step} {task} {sum(values) / len(values):.3f} ({len(values)} ranks)", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = MultiTask()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    histograms = GradientHistograms(every=8)
    scenes = Scenes(rank, world)
    for step in range(120):
        losses = model.losses(*scenes.batch(step))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        if histograms.due(step):
            histograms.record(model)
            task_report(step, losses)
        average_gradients(model, world)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
